"""Single parts of the uploader: how it parses a broker's files, its errors and warnings, and watermarks."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.uploader.uploader_disk import BrokerDisk, extents, run_once, uploader_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import Hole, MoveBack, ShippedSegment, Watermark
from tieredstore.errors import (
    BrokerDeniedError,
    BrokerUnavailableError,
    ConfigError,
    CorruptDataError,
    NewerVersionError,
    TieredStoreError,
)
from tieredstore.kafka.checkpoints import ProducerState, format_producer_snapshot
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.live.broker_state import BrokerState
from tieredstore.model import (
    OpenFile,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    TopicPartition,
    Uuid,
)
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import BrokerEnvironment, Leadership
from tieredstore.uploader.broker import broker_environment, check_log_dir
from tieredstore.uploader.leadership import UNKNOWN_S, LeadershipView, leadership_of
from tieredstore.uploader.links import find_hold_dir
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.settings import uploader_settings_from
from tieredstore.uploader.settled import DiskSettling, Settled, high_watermarks, stable_offset
from tieredstore.uploader.topics import TopicAdvice, is_selected, refusal, warnings
from tieredstore.uploader.watermarks import agrees, chain_of

SERVER = """\
node.id=7
listeners=CONTROLLER://:9093,INSIDE://0.0.0.0:9092,TLS://broker:9094
listener.security.protocol.map=CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,TLS:SSL
controller.listener.names=CONTROLLER
"""


def settings(folder: Path, server: str = SERVER, **more: str) -> Any:
    log_dir = folder / "logs"
    log_dir.mkdir(exist_ok=True)
    (folder / "server.properties").write_text(f"{server}log.dirs={log_dir},{folder}\n")
    own = {f"uploader.{name.replace('_', '.')}": text for name, text in more.items()}
    return uploader_settings_from({"uploader.server.properties": str(folder / "server.properties"), **own})


def test_the_brokers_own_file_says_it_all(tmp_path: Path) -> None:
    environment = broker_environment(settings(tmp_path))
    assert environment.log_dirs == (tmp_path / "logs", tmp_path)
    assert environment.broker_id == 7
    assert environment.client == {"bootstrap.servers": "localhost:9092"}


def test_a_log_directory_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "again").symlink_to("logs")
    own = {"uploader.leadership": "static", "uploader.log.dirs": f"{tmp_path}/logs,{tmp_path}/again"}
    with pytest.raises(ConfigError, match=r"logs and .*again are the same folder: name it only once"):
        broker_environment(uploader_settings_from(own))


def test_folders_are_relative_to_the_folder_of_the_settings_file(tmp_path: Path) -> None:
    texts = {"uploader.leadership": "static", "uploader.log.dirs": "logs,/kafka/logs", "uploader.hold.dir": "held"}
    own = uploader_settings_from(texts, base_dir=tmp_path)
    assert broker_environment(own).log_dirs == (tmp_path / "logs", Path("/kafka/logs"))
    assert own.hold_dir == (tmp_path / "held",)


@pytest.mark.parametrize("protocol", ["SSL", "ssl"])
def test_a_listener_is_chosen_by_the_clients_protocol(tmp_path: Path, protocol: str) -> None:
    chosen = settings(tmp_path, kafka_security_protocol=protocol)
    assert broker_environment(chosen).client["bootstrap.servers"] == "broker:9094"


def test_a_set_property_replaces_that_of_the_file(tmp_path: Path) -> None:
    chosen = settings(tmp_path, log_dirs=str(tmp_path / "logs"), broker_id="9", kafka_bootstrap_servers="elsewhere:1")
    environment = broker_environment(chosen)
    assert (environment.log_dirs, environment.broker_id) == ((tmp_path / "logs",), 9)
    assert environment.client["bootstrap.servers"] == "elsewhere:1"


def test_the_id_may_be_that_of_the_log_directory(tmp_path: Path) -> None:
    chosen = settings(tmp_path, SERVER.replace("node.id=7\n", ""))
    with pytest.raises(ConfigError, match="the broker's id is unknown"):
        broker_environment(chosen)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=12\n")
    assert broker_environment(chosen).broker_id == 12


def test_without_a_listener_there_is_nobody_to_ask(tmp_path: Path) -> None:
    server = "node.id=1\nlisteners=SASL_SSL://:9092\n"
    with pytest.raises(ConfigError, match="a listener of PLAINTEXT"):
        broker_environment(settings(tmp_path, server))
    assert broker_environment(settings(tmp_path, server, leadership="static")).client == {}


@pytest.mark.parametrize(
    ("topic", "is_held"),
    [("orders", True), ("orders-eu", False), ("my.orders", False), ("__consumer_offsets", False), ("clicks", False)],
)
def test_topics_by_pattern(topic: str, is_held: bool) -> None:
    own = uploader_settings_from({"uploader.topics.include": "orders.*,__.*", "uploader.topics.exclude": ".*-eu"})
    assert is_selected(own, topic) is is_held


def test_topics_that_are_refused_and_warned_of() -> None:
    assert refusal({"cleanup.policy": "delete", "remote.storage.enable": "false"}) is None
    assert "compacted" in str(refusal({"cleanup.policy": "compact,delete"}))
    assert "tiers it itself" in str(refusal({"remote.storage.enable": "true"}))
    calm = {"file.delete.delay.ms": "600000", "retention.ms": "604800000", "segment.ms": "3600000"}
    assert list(warnings(calm, 300_000)) == []
    assert list(warnings({**calm, "retention.ms": "-1", "segment.ms": "1"}, 300_000)) == []
    hasty = {"retention.ms": "1000", "segment.ms": "604800000", "unclean.leader.election.enable": "true"}
    said = [sentence.partition(" ")[0] for sentence in warnings(hasty, 300_000)]
    assert said == ["file.delete.delay.ms", "retention.ms", "retention.ms", "unclean.leader.election.enable"]


def test_a_brokers_checkpoint_of_high_watermarks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert high_watermarks(tmp_path) is None
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\na.b 0 12\na-b 11 9223372036854775807\n")
    assert high_watermarks(tmp_path) == {("a.b", 0): 12, ("a-b", 11): 2**63 - 1}
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\na.b 0 12\nbroken\n")
    for _ in range(2):
        assert high_watermarks(tmp_path) == {}
    assert caplog.text.count("replication-offset-checkpoint cannot be read") == 1


def test_an_unreadable_checkpoint_of_high_watermarks_settles_nothing(tmp_path: Path) -> None:
    disk, store = BrokerDisk(tmp_path / "logs", segments=2), MemoryObjectStore()
    checkpoint = disk.log_dir / "replication-offset-checkpoint"
    checkpoint.mkdir()
    assert run_once(disk.log_dir, store) == ["its high watermark is not known yet"]
    checkpoint.rmdir()
    assert run_once(disk.log_dir, store) == []


def test_an_unreadable_checkpoint_of_epochs_settles_nothing(tmp_path: Path) -> None:
    disk = BrokerDisk(tmp_path / "logs", segments=2)
    partition = Partition(PARTITION, disk.folder)
    (disk.log_dir / "replication-offset-checkpoint").write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 9\n")
    assert DiskSettling([disk.log_dir]).ask([partition]) == {partition.name: Settled(9, 9, 0)}
    (disk.folder / LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n1\n0")
    assert DiskSettling([disk.log_dir]).ask([partition]) == {}


def test_transactions_that_the_latest_snapshot_has_open(tmp_path: Path) -> None:
    assert stable_offset(tmp_path, 50) == 50
    for offset, first_open in ((10, -1), (30, 17), (40, 23)):
        states = [ProducerState(1, 0, 0, 5, 0, 0, 0, -1), ProducerState(2, 0, 0, 25, 0, 0, 0, first_open)]
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(format_producer_snapshot(states))
    assert stable_offset(tmp_path, 50) == 23
    (tmp_path / f"{40:020d}.snapshot").write_bytes(b"damaged")
    assert stable_offset(tmp_path, 50) == 17


def test_an_epoch_that_nobody_tells_is_no_obstacle() -> None:
    assert Settled(10, 10, None).obstacle(9, ((3, 0),), is_deleted=False) is None
    assert Settled(10, 5, 3).obstacle(9, ((3, 0),), is_deleted=True) is None
    assert Settled(10, 5, 3).obstacle(9, ((3, 0),), is_deleted=False) is not None
    assert Settled(9, 9, 3).obstacle(9, ((3, 0),), is_deleted=True) is not None


class Fickle(Leadership):
    """Leadership that answers only while the test allows it."""

    answers = True

    def led(self) -> set[TopicPartition]:
        if not self.answers:
            raise BrokerUnavailableError("nobody is there")
        return {("a", self.environment.broker_id)}


def test_a_class_of_ones_own_says_who_leads_until_its_answer_is_too_old() -> None:
    environment = BrokerEnvironment((), 3, {})
    leadership = leadership_of(f"{__name__}.Fickle", environment, None)
    now_s = [0.0]
    view = LeadershipView(leadership, lambda: now_s[0])
    assert (view.is_known, view.was_ever_known, view.leads(("a", 3))) == (False, False, False)
    view.refresh()
    assert (view.is_known, view.leads(("a", 3)), view.leads(("a", 4))) == (True, True, False)
    Fickle.answers = False
    now_s[0] = UNKNOWN_S
    with pytest.raises(BrokerUnavailableError):
        view.refresh()
    assert view.is_known
    now_s[0] = UNKNOWN_S + 1
    assert (view.is_known, view.was_ever_known, view.leads(("a", 3))) == (False, True, True)


class Cluster:
    """A cluster that lists only the topics that the login may describe. ``ids`` has its other answers by topic."""

    def __init__(self, ids: dict[str, Uuid | None]) -> None:
        self.listed, self.ids = {"plain"}, ids
        self.error: TieredStoreError = BrokerDeniedError("no")

    def leaders(self) -> dict[TopicPartition, int]:
        return {(topic, 0): 1 for topic in self.listed}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, Uuid | None]:
        answers = {topic: self.ids[topic] for topic in topics if topic in self.ids}
        if not answers:
            raise self.error
        return answers


@pytest.mark.parametrize("ids", [{}, {"deleted": None}])
def test_a_topic_that_the_login_may_not_describe_is_named_once(
    ids: dict[str, Uuid | None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster: Any = Cluster(ids)
    leadership = leadership_of("auto", BrokerEnvironment((), 1, {}), cluster)
    leadership.watch({("plain", 0), ("secret", 0), ("secret", 1), *((topic, 0) for topic in ids)})
    cluster.ids, cluster.error = {}, BrokerUnavailableError("away")
    assert leadership.led() == {("plain", 0)}
    assert caplog.messages == []
    cluster.ids, cluster.error = ids, BrokerDeniedError("no")
    for _ in range(3):
        assert leadership.led() == {("plain", 0)}
    (line,) = caplog.messages
    assert line.startswith("topic secret: not shipped: this Kafka login has no right Describe")
    cluster.listed = {"plain", "secret"}
    assert leadership.led() == {("plain", 0), ("secret", 0)}
    cluster.listed = {"plain"}
    leadership.led()
    assert len(caplog.messages) == 2


numbers = st.integers(0, 2**63 - 1)
holes = st.builds(Hole, numbers, numbers, st.text(max_size=20), numbers, st.integers(-1, 99), st.none() | st.just("p/"))
watermarks = st.builds(
    Watermark,
    st.just(PARTITION),
    numbers,
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    numbers,
    st.none() | st.builds(ShippedSegment, st.just(str(PARTITION.topic_id)), numbers, numbers),
    st.lists(holes, max_size=3).map(tuple),
    st.lists(st.builds(MoveBack, numbers, numbers, st.integers(-1, 9), numbers), max_size=2).map(tuple),
)


@given(watermark=watermarks)
def test_a_watermark_is_read_as_it_was_written(watermark: Watermark) -> None:
    assert Watermark.parse(watermark.to_bytes(), PARTITION) == watermark


@given(watermark=watermarks, data=st.data())
def test_a_damaged_watermark_is_refused_or_another_one(watermark: Watermark, data: st.DataObject) -> None:
    raw = bytearray(watermark.to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        Watermark.parse(bytes(raw), PARTITION)
    except (CorruptDataError, NewerVersionError) as error:
        assert len(str(error)) < 500  # noqa: PT017


@pytest.mark.parametrize("name", ["next_offset", "leader_epoch", "holes", "segment", "topic_id", "version"])
@pytest.mark.parametrize("value", [None, -2, 2**70, "x", [1], {}, True, 1.5])
def test_each_field_of_a_watermark_is_looked_at(name: str, value: object) -> None:
    document = json.loads(Watermark(PARTITION, 5, 1).to_bytes())
    document[name] = value
    if (name, value) == ("segment", None):
        return
    with pytest.raises(CorruptDataError, match="is not a valid watermark"):
        Watermark.parse(json.dumps(document).encode(), PARTITION)


def test_a_watermark_of_another_partition_is_none() -> None:
    other = TopicIdPartition(PARTITION.topic_id, PARTITION.topic, 1)
    with pytest.raises(CorruptDataError, match="another partition"):
        Watermark.parse(Watermark(other, 5, 1).to_bytes(), PARTITION)


def test_a_run_of_holes_is_one() -> None:
    watermark = Watermark(PARTITION, 10, 1)
    for first, last, reason in ((10, 19, "gone"), (20, 29, "gone"), (30, 39, "damaged"), (50, 59, "gone")):
        watermark = watermark.over(Hole(first, last, reason, 5), 1)
    assert [(hole.first_offset, hole.last_offset) for hole in watermark.holes] == [(10, 29), (30, 39), (50, 59)]
    back = watermark.back(35, 4, 1, 9)
    assert [(hole.first_offset, hole.last_offset) for hole in back.holes] == [(10, 29), (30, 34)]
    assert (back.next_offset, back.leader_epoch) == (35, 4)


def test_a_hole_that_extends_another_one_keeps_its_writer_s_epoch() -> None:
    watermark = Watermark(PARTITION, 10, 5)
    for first, epoch in ((10, 5), (20, 6)):
        watermark = watermark.over(Hole(first, first + 9, "gone", 5, leader_epochs=((epoch, first),)), epoch)
    assert (watermark.leader_epoch, watermark.holes[0].leader_epochs) == (6, ((5, 10), (6, 20)))


def segment(start: int, end: int, *epochs: tuple[int, int]) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(PARTITION, Uuid.random())
    return RemoteLogSegmentMetadata(segment_id, start, end, 1, 0, 1, 0, epochs or ((0, start),))


@pytest.mark.parametrize(
    ("extents", "begin", "next_offset"),
    [
        ([(0, 9), (10, 19)], None, 20),
        ([(10, 19), (0, 9)], None, 20),
        ([(0, 9), (20, 29)], None, 10),
        ([(0, 9), (5, 24), (25, 25)], None, 26),
        ([(0, 29), (10, 19)], None, 30),
        ([(0, 9), (10, 19)], 10, 20),
        ([(0, 9), (15, 19)], 10, 10),
        ([], None, None),
    ],
)
def test_a_watermark_is_made_of_segments_that_join(
    extents: list[tuple[int, int]], begin: int | None, next_offset: int | None
) -> None:
    known = None if begin is None else Watermark(PARTITION, begin, -1)
    chain = chain_of(PARTITION, [segment(*extent) for extent in extents], ((0, 0),), known)
    assert (None if chain is None else chain.next_offset) == next_offset


@pytest.mark.parametrize(("begin", "next_offset"), [(None, 20), (0, 0), (5, 5), (10, 20), (15, 20)])
def test_a_watermark_that_is_made_begins_where_the_log_on_disk_does(begin: int | None, next_offset: int) -> None:
    """The log on disk may begin before the first stored segment, which begins at 10."""
    chain = chain_of(PARTITION, [segment(10, 19)], ((0, 0),), None, lambda: begin)
    assert chain is not None
    assert chain.next_offset == next_offset


def test_segments_of_leaders_that_were_deposed_hold_nothing_of_the_log() -> None:
    history = ((1, 0), (4, 20))
    assert agrees(segment(0, 19, (1, 0)), history)
    assert agrees(segment(10, 29, (1, 10), (4, 20)), history)
    assert not agrees(segment(20, 29, (1, 20)), history)
    assert not agrees(segment(10, 29, (1, 10), (2, 15)), history)
    # Segments before the known part of the history may belong to the log, unless their epoch is later.
    assert agrees(segment(0, 9, (0, 0)), ((1, 30),))
    assert agrees(segment(0, 9, (1, 0)), ((1, 30),))
    assert not agrees(segment(0, 9, (7, 0)), ((1, 30),))
    assert not agrees(segment(0, 39, (0, 0), (7, 20)), ((1, 30),))
    stored = [segment(0, 19, (1, 0)), segment(20, 29, (1, 20)), segment(20, 24, (4, 20))]
    chain = chain_of(PARTITION, stored, history, None)
    assert chain is not None
    assert chain.next_offset == 25


def test_an_open_file_is_read_whole_though_the_system_gives_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "file", os.pread
    path.write_bytes(bytes(range(256)))
    with path.open("rb") as file:
        held = OpenFile(path, file.fileno())
        assert held.read_bytes() == path.read_bytes()

        def some(descriptor: int, size: int, at: int) -> bytes:
            return real(descriptor, size // 2, at)

        monkeypatch.setattr(os, "pread", some)
        assert held.read_bytes() == path.read_bytes()


class Broker:
    """A broker with scripted answers, and an error for requests that it does not answer at all."""

    def __init__(self, answers: dict[str, dict[str, str]]) -> None:
        self.answers = answers
        self.error: TieredStoreError | None = None
        self.asked: list[list[str]] = []

    def topic_settings(self, topics: list[str]) -> dict[str, dict[str, str]]:
        self.asked.append(list(topics))
        answers = {topic: self.answers[topic] for topic in topics if topic in self.answers}
        if self.error is not None and not answers:
            raise self.error
        return answers


def advice_of(broker: Broker | None, **settings: str) -> TopicAdvice:
    parsed = uploader_settings_from({f"uploader.{name.replace('_', '.')}": value for name, value in settings.items()})
    return TopicAdvice(parsed, cast("BrokerState | None", broker))


def test_refused_warned_of_and_forced_topics(caplog: pytest.LogCaptureFixture) -> None:
    short = {"cleanup.policy": "delete", "retention.ms": "1000", "file.delete.delay.ms": "60000"}
    broker = Broker(
        {"plain": {}, "short": short, "table": {"cleanup.policy": "compact"}, "forced": {"cleanup.policy": "compact"}}
    )
    advice = advice_of(broker, force_topics="forced")
    with caplog.at_level(logging.WARNING):
        advice.ask(["plain", "short", "table", "forced"])
        advice.ask(["short"])
    assert len(broker.asked) == 1
    assert set(advice.refused) == {"table"}
    assert "uploader.force.topics=table" in caplog.text
    assert any("retention.ms is 1000" in sentence for sentence in advice.advice["short"])
    assert all(map(advice.knows, ("plain", "short", "table", "forced")))
    # Changed settings are reported again.
    broker.answers["table"] = {}
    advice.forget()
    advice.ask(["table"])
    assert advice.refused == {}


def test_a_warning_is_one_line_for_all_its_topics(caplog: pytest.LogCaptureFixture) -> None:
    many = {f"topic-{number:02d}": {"file.delete.delay.ms": "60000"} for number in range(14)}
    others = {"kept": {"retention.ms": "-1"}, "bytes": {"retention.ms": "-1", "retention.bytes": "5"}}
    advice = advice_of(Broker({**many, **others}))
    lines: list[str] = []
    for _ in range(2):
        caplog.clear()
        advice.ask([*many, *others])
        lines = caplog.messages
        (line,) = lines
        assert line.startswith("15 topics (bytes, topic-00, topic-01,")
        assert " and 5 more): file.delete.delay.ms is 60000" in line
        # An hour later.
        advice.forget()
    assert advice.advice["kept"] == ()
    assert advice.sentences() == lines


def test_a_refusal_is_one_line_for_all_its_topics(caplog: pytest.LogCaptureFixture) -> None:
    advice = advice_of(Broker({f"table-{number}": {"cleanup.policy": "compact"} for number in range(3)}))
    for _ in range(2):
        advice.ask(["table-0", "table-1", "table-2"])
        advice.forget()
    (line,) = caplog.messages
    assert line.startswith("3 topics (table-0, table-1, table-2): not shipped: it is compacted, ")
    assert line.endswith("uploader.force.topics=table-0,table-1,table-2")


def test_where_links_outlive_the_process_the_delay_of_deletion_does_not_matter() -> None:
    advice = advice_of(Broker({"plain": {}}), hold_dir="/held")
    advice.ask(["plain"])
    assert advice.advice["plain"] == ()


def test_an_outage_is_tried_again_and_a_refusal_ships_what_is_selected(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({})
    advice = advice_of(broker)
    broker.error = BrokerUnavailableError("away")
    with pytest.raises(BrokerUnavailableError):
        advice.ask(["orders"])
    assert not advice.knows("orders")
    broker.error = BrokerDeniedError("no")
    advice.ask(["orders"])
    assert advice.knows("orders")
    assert not advice.refused
    assert "are unavailable" in caplog.text


@pytest.mark.parametrize("error", [BrokerDeniedError("no"), None])
def test_what_is_known_of_a_topic_holds_while_brokers_give_no_answer(
    error: TieredStoreError | None, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker({"table": {"cleanup.policy": "compact"}})
    advice = advice_of(broker)
    advice.ask(["table"])
    broker.answers, broker.error = {}, error
    advice.forget()
    for _ in range(50):
        advice.ask(["table"])
    assert (set(advice.refused), advice.advice) == ({"table"}, {"table": ()})
    assert "not refused" not in caplog.text


def test_a_topic_that_is_never_told_of_is_shipped_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    broker: Any = Broker({})
    advice = advice_of(broker)
    for _ in range(50):
        advice.ask(["orders"])
    assert advice.knows("orders")
    assert 1 < len(broker.asked) < 50
    assert "topic orders: not refused, though the brokers do not give the topic's settings" in caplog.text


def test_a_single_run_ships_a_topic_whose_settings_are_denied(tmp_path: Path) -> None:
    disk, store = BrokerDisk(tmp_path / "logs", segments=2), MemoryObjectStore()
    other = replace(PARTITION, topic="other", topic_id=Uuid.random())
    BrokerDisk(tmp_path / "logs", other, segments=2)
    broker = Broker({"other": {}})
    broker.error = BrokerDeniedError("no")
    with uploader_of(disk.log_dir, store) as uploader:
        uploader.topics = TopicAdvice(uploader.own, cast("BrokerState", broker))
        assert list(uploader.run_once()) == []
    assert (extents(store), extents(store, other)) == ([(0, 9)], [(0, 9)])


def test_without_a_broker_nobody_is_asked() -> None:
    advice = advice_of(None)
    advice.ask(["orders"])
    assert advice.knows("orders")


def test_the_settings_of_a_re_created_topic_are_read_again() -> None:
    broker = Broker({"orders": {"cleanup.policy": "compact"}})
    advice, first = advice_of(broker), {"orders": Uuid.random()}
    for _ in range(2):
        advice.ask(["orders"], first)
    assert (len(broker.asked), set(advice.refused)) == (1, {"orders"})
    broker.answers["orders"] = {}
    advice.ask(["orders"], {"orders": Uuid.random()})
    assert advice.refused == {}
    advice.ask(["orders"])  # no folder of the topic is left
    assert len(broker.asked) == 2


def test_a_log_directory_on_a_failed_disk_is_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(ConfigError, match="cannot be read: Input/output error; repair its disk, or remove it from"):
        check_log_dir(tmp_path)


def test_a_log_directory_whose_file_system_is_unknown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "stat", fail)
    with pytest.raises(ConfigError, match="cannot be read: Input/output error"):
        find_hold_dir(tmp_path, [tmp_path])
