"""``tieredstore cat --group``: a topic's records as read by a group member from bucket and broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Unpack

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.support.cli.cli_process import Result, tieredstore, write_settings
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import case_path
from tests.support.kafka.kafka_topics import Produced, delete_records
from tests.support.kafka.live_topics import TieredTopic
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import unanswered_port
from tieredstore.api.reading import ReadOptions
from tieredstore.config import load_settings
from tieredstore.consumer import Consumer
from tieredstore.consumer.cli.consume import ConsumedTopic
from tieredstore.errors import BrokerUnavailableError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.model import TopicIdPartition
from tieredstore.query.topic_columns import ColumnTypes
from tieredstore.testing.batches import ANONYMOUS, Producer, Record, build_batch

COUNT = 300
HOW: Final[ReadOptions] = {
    "types": lambda _: ColumnTypes(), "isolation": "read_committed", "on_loss": "fail", "columns": ("offset", "value"),
}  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    """Yield settings of a bucket with two partitions of 40 records each. Retention has deleted the first ones."""
    bucket = Bucket(tmp_path)
    first = [bucket.write(10, partition=partition) for partition in range(2)]
    for partition in range(2):
        bucket.write(40, partition=partition)
    bucket.delete(*first)
    yield write_settings(tmp_path, {**bucket.options, "chunk.size": "16384"})
    bucket.close()


def places(done: Result) -> list[tuple[int, int]]:
    """Return the partitions and offsets of JSON lines."""
    assert (done.code, done.stderr) == (0, ""), done
    return sorted((row["partition"], row["offset"]) for row in map(json.loads, done.text.splitlines()))


def both(start: int, stop: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(2) for offset in range(start, stop)]


@pytest.mark.parametrize(
    ("start", "first"),
    [((), 10), (("--from", "45"), 45), (("--last", "3"), 47), (("--last", "0"), 50), (("--from", "@0"), 10)],
)
def test_a_bucket_without_a_broker_to_its_end(stored: Path, start: tuple[str, ...], first: int) -> None:
    done = tieredstore("cat", "orders", "-c", stored, "--json", *start)
    assert places(done) == both(first, 50)


def test_as_many_as_are_wanted_in_any_form(stored: Path) -> None:
    asked = ("cat", "orders", "-c", stored, "-n", "2")
    assert len(places(tieredstore(*asked, "--json"))) == 2
    assert tieredstore(*asked, "--format", "%t %o %s;").text in {
        f"orders 10 orders-{partition}@10;orders 11 orders-{partition}@11;" for partition in range(2)
    }
    assert tieredstore(*asked, "--format", "%s").text.startswith("orders-")
    assert tieredstore(*asked).text.split()[:5] == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("orders", "--group", "g"), 2, "no broker is named"),
        (("orders", "--group", "g", "--last", "3", "--from", "3"), 2, "--last and --from exclude each other"),
        (("orders", "--group", "g", "--json", "--format", "csv"), 2, "exclude each other"),
        (("orders", "--group", "g", "--from", "latest"), 2, "not an offset or a time"),
        (("absent",), 3, "there is no topic 'absent' in the bucket"),
    ],
)
def test_what_cannot_be(stored: Path, options: tuple[str, ...], code: int, sentence: str) -> None:
    done = tieredstore("cat", *options, "-c", stored)
    assert (done.code, done.text) == (code, "")
    assert sentence in done.stderr


@pytest.mark.slow
def test_a_group_goes_on_where_it_was_written_to(kafka: KafkaServer, tmp_path: Path) -> None:
    """One run reads bucket and broker. The next run returns the records that the first run did not write."""
    tiered = TieredTopic(kafka, tmp_path)
    tiered.produce([Produced(b"%d" % at, b"v" * 100) for at in range(COUNT)])
    seam = tiered.tier(but_last=0)
    delete_records(kafka, tiered.topic, seam // 2)
    settings = write_settings(tmp_path, {**tiered.store, "chunk.size": "8192"})
    live = ("-c", settings, "--bootstrap-server", kafka.bootstrap_servers, "--json")
    asked = ("cat", tiered.topic, *live)
    assert [offset for _, offset in places(tieredstore(*asked))] == list(range(COUNT))
    group = ("--group", f"readers-of-{tiered.topic}", "--from", "5")
    assert [offset for _, offset in places(tieredstore(*asked, *group, "-n", "7"))] == list(range(5, 12))
    assert [offset for _, offset in places(tieredstore(*asked, *group))] == list(range(12, COUNT))
    assert places(tieredstore(*asked, *group)) == []
    absent = tieredstore("cat", "no-such-topic", *live, "--group", "g")
    assert (absent.code, absent.text) == (3, "")
    tiered.close()


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_one_sentence(stored: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command waits for a minute. Here, each look at the clock takes longer."""
    clock = itertools.count(0.0, 61.0).__next__
    with unanswered_port() as port:
        client = {"bootstrap.servers": f"127.0.0.1:{port}"}
        with (
            closing(
                ConsumedTopic(load_settings(stored), client, "orders", "g", None, HOW, follows=False, monotonic=clock)
            ) as consumed,
            pytest.raises(BrokerUnavailableError, match=r"^consuming topic 'orders': .*Connection refused"),
        ):
            list(consumed)
    said = [sentence for sentence in caplog.messages if f"127.0.0.1:{port} " in sentence]
    assert said == [f"broker 127.0.0.1:{port} cannot be reached: connection refused; trying again"]


class Group:
    """Consumer of a topic without a coordinator. It records the commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: list[int] = []

        def subscribe(consumer: Consumer, topics: list[str], on_assign: Callable[..., None]) -> None:
            places = [TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics]
            on_assign(consumer, places)
            consumer.assign(places)

        def store(_: Consumer, offsets: list[TopicPartition]) -> None:
            self.stored += [place.offset for place in offsets]

        monkeypatch.setattr(Consumer, "subscribe", subscribe)
        monkeypatch.setattr(Consumer, "store_offsets", store)

    def consume(
        self,
        settings: Path,
        write: Callable[[Iterator[Any]], None],
        topic: str = "orders",
        client: Mapping[str, str] = MappingProxyType({}),
        **how: Unpack[ReadOptions],
    ) -> None:
        found, chosen = load_settings(settings), HOW | how
        with closing(ConsumedTopic(found, client, topic, "readers", None, chosen, follows=False)) as consumed:
            write(iter(consumed))


def test_a_transaction_without_outcome_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = write_settings(tmp_path)
    assert tieredstore("upload", "-c", settings, case_path("07-txn") / "original").code == 0
    for base in (605, 1209, 1815, 2420):
        assert tieredstore("rm", "-c", settings, "txn", "-p", 0, "--segment", base, "--yes").code == 0
    shown = tieredstore("cat", "-c", settings, "txn", "--json")
    held_back = [line for line in shown.stderr.splitlines() if " to 604 of txn-0" in line]
    assert len(held_back) == 1
    group, seen = Group(monkeypatch), list[int]()

    def note(batches: Iterator[Any]) -> None:
        seen.extend(offset for batch in batches for offset in batch.column("offset").to_pylist())

    group.consume(settings, note, "txn")
    assert seen == [row["offset"] for row in shown.lines]
    assert capsys.readouterr().err.splitlines() == held_back
    seen.clear()
    group.consume(settings, note, "txn", limit=1)
    assert (len(seen), capsys.readouterr().err) == (1, "")
    seen.clear()
    group.consume(settings, note, "txn", isolation="read_uncommitted")
    assert seen == [row["offset"] for row in expected_rows("07-txn", 0) if row["offset"] < 605]


def test_the_brokers_offsets_after_a_transaction_without_outcome_are_named(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's log begins within the transaction. So the broker's later records are held back, too."""
    producers = [ANONYMOUS, Producer(7, 0, 0, transactional=True), ANONYMOUS, ANONYMOUS]
    batches = [build_batch([Record(b"v")], at, producer=one) for at, one in enumerate(producers)]
    opened = [ProducerState(7, 0, 0, 1, 0, 0, 0, 1)]
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), batches, range(4), producers=opened)
    broker, group, seen = ScriptedBroker({("orders", 0): ScriptedLog(3, 9)}), Group(monkeypatch), list[int]()
    monkeypatch.setattr("tieredstore.consumer.cli.consume.Consumer", broker.reader)

    def note(batches: Iterator[Any]) -> None:
        seen.extend(offset for batch in batches for offset in batch.column("offset").to_pylist())

    settings = write_settings(tmp_path, {**bucket.options, "chunk.size": "16384"})
    group.consume(settings, note, client={"bootstrap.servers": "127.0.0.1:1"})
    assert seen == [0]
    assert (
        "tieredstore: left out: offsets 1 to 8 of orders-0, held back by a transaction that has no outcome in the "
        "segments, which end at offset 3; --isolation read_uncommitted shows them\n"
    ) in capsys.readouterr().err  # that the broker cannot be reached may be told, too


def test_records_that_were_not_written_are_not_committed(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are stored when the next records are requested. After a failed write, none are requested."""
    group = Group(monkeypatch)

    def fail(batches: Iterator[Any]) -> None:
        next(batches)
        raise OSError("nobody reads on")

    with pytest.raises(OSError, match="nobody reads on"):
        group.consume(stored, fail)
    assert group.stored == []
    group.consume(stored, lambda batches: [*batches].clear(), limit=7)
    assert group.stored == [17]
