"""Producers' states computed from batches, compared with a real broker's snapshots, and with the broker's code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Producer as KafkaProducer

import tieredstore as ts
from tests.restore.logdir.log_dirs import fresh_bucket, make_log_dir, prepared, restore
from tests.restore.logdir.test_real_broker import records
from tests.support.cli.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tests.support.servers.kafka import KafkaServer, start_kafka
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import ProducerState, parse_producer_snapshot
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.producers import Producers
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

SNAPSHOTS = sorted(GOLDEN.glob("*/original/*/*.snapshot"))


def play(log: bytes, known: Sequence[ProducerState] = ()) -> Producers:
    producers = Producers(known)
    for header in read_batch_headers(log):
        producers.append(header, log[header.position : header.position + header.size_in_bytes])
    return producers


@pytest.mark.parametrize("folder", sorted({path.parent for path in SNAPSHOTS}), ids=lambda path: path.name)
def test_batches_give_the_snapshots_that_the_broker_wrote(folder: Path) -> None:
    paths = [path for path in SNAPSHOTS if path.parent == folder]
    states: tuple[ProducerState, ...] = ()
    for path in paths:
        logs = [log for log in path.parent.glob("*.log") if log.stem < path.stem]
        states = play(max(logs).read_bytes(), states).states
        kept = parse_producer_snapshot(path.read_bytes())
        # A broker that restarted between two snapshots has dropped expired producers.
        ids = {state.producer_id for state in kept}
        assert {state for state in states if state.producer_id in ids} == set(kept)
    assert states


ONE, TWO = Producer(1, 0, 5, transactional=True), Producer(2, 0, 0, transactional=True)


@pytest.mark.parametrize(
    ("batches", "states"),
    [
        pytest.param([build_batch([Record(b"a")], 0)], [], id="not idempotent"),
        pytest.param(
            [build_batch([Record(b"a", None, 9)] * 3, 7, producer=Producer(1, 2, 2**31 - 2))],
            [ProducerState(1, 2, 0, 9, 2, 9, -1, -1)],
            id="the sequence begins again",
        ),
        pytest.param(
            [build_batch([Record(b"a")], 0, producer=TWO), build_batch([Record(b"a")], 1, producer=ONE)],
            [ProducerState(2, 0, 0, 0, 0, 0, -1, 0), ProducerState(1, 0, 5, 1, 0, 0, -1, 1)],
            id="two are open",
        ),
        pytest.param(
            [
                build_batch([Record(b"a")], 0, producer=ONE),
                build_end_marker(1, ONE, commit=False, coordinator_epoch=4, timestamp_ms=8),
            ],
            [ProducerState(1, 0, 5, 0, 0, 8, 4, -1)],
            id="aborted",
        ),
        pytest.param(
            [
                build_batch([Record(b"a")], 0, producer=ONE),
                build_end_marker(1, Producer(1, 1), commit=True, coordinator_epoch=4, timestamp_ms=8),
            ],
            [ProducerState(1, 1, -1, -1, 0, 8, 4, -1)],
            id="the marker raises the epoch",
        ),
    ],
)
def test_a_state_follows_from_the_batches(batches: list[bytes], states: list[ProducerState]) -> None:
    producers = play(b"".join(batches))
    assert producers.states == tuple(states)
    assert [state.producer_id for state in producers.in_transactions] == [
        state.producer_id for state in states if state.current_txn_first_offset >= 0
    ]


@pytest.mark.parametrize("stop", [100, 605, 700, 1815, 3000])
def test_the_kept_state_is_that_of_the_cut(tmp_path: Path, stop: int) -> None:
    """The state follows from the batches before the cut and from the abort markers."""
    with fresh_bucket(tmp_path / "store", [GOLDEN / "07-txn" / "original"]) as bucket:
        (topic,) = bucket.topics("txn")
        log_dir = make_log_dir(tmp_path / "logs", {"txn": 1})
        options = RestoreOptions(stop=stop, producer_states="keep", open_transactions="abort")
        restore(bucket, log_dir, prepared(TopicIdPartition(topic.topic_id, "txn", 0)), options)
    folder = log_dir / "txn-0"
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    *_, last = sorted(folder.glob("*.snapshot"))
    *_, header = read_batch_headers(log)
    assert int(last.stem) == header.last_offset + 1
    assert set(parse_producer_snapshot(last.read_bytes())) == set(play(log).states)
    assert not play(log).in_transactions


@pytest.mark.parametrize(("first", "then"), [("keep", "drop"), ("drop", "keep")])
def test_a_whole_log_with_another_state_is_refused(
    tmp_path: Path, first: Literal["keep", "drop"], then: Literal["keep", "drop"]
) -> None:
    """With a kept state, a broker of another cluster would acknowledge records without storing them. The second
    restore must not report that all is there already."""
    with fresh_bucket(tmp_path / "store", [GOLDEN / "07-txn" / "original"]) as bucket:
        (topic,) = bucket.topics("txn")
        log_dir, plan = (
            make_log_dir(tmp_path / "logs", {"txn": 1}),
            prepared(TopicIdPartition(topic.topic_id, "txn", 0)),
        )
        options = RestoreOptions(stop=700, producer_states=first, open_transactions="abort")
        restore(bucket, log_dir, plan, options)
        assert {code for code, *_ in restore(bucket, log_dir, plan, options)} == {"there", "left_out"}
        with pytest.raises(ConfigError, match="another state of producers: use the --producer-state of the earlier"):
            restore(bucket, log_dir, plan, replace(options, producer_states=then), dry_run=True)


def test_a_damaged_snapshot_of_a_whole_log_is_named(tmp_path: Path) -> None:
    with fresh_bucket(tmp_path / "store", [GOLDEN / "07-txn" / "original"]) as bucket:
        (topic,) = bucket.topics("txn")
        log_dir = make_log_dir(tmp_path / "logs", {"txn": 1})
        plan = prepared(TopicIdPartition(topic.topic_id, "txn", 0))
        restore(bucket, log_dir, plan)
        snapshot = log_dir / "txn-0" / f"{3047:020d}.snapshot"
        snapshot.write_bytes(b"")
        with pytest.raises(BatchCorruptError, match=f"^{snapshot}: the producer snapshot has 0 bytes"):
            restore(bucket, log_dir, plan)


@pytest.mark.broker
def test_a_new_producer_gets_an_id_that_the_log_knows(tmp_path: Path) -> None:
    """A new cluster starts with producer id 0 again. Unless old states are dropped, its first record is lost."""
    # The records are new, because a broker forgets a producer after a day.
    now = int(time.time() * 1000)
    for topic in ("kept", "dropped"):
        where = TopicIdPartition(Uuid(topic.encode().ljust(16, b"-")), topic, 0)
        batches = [build_batch([Record(b"old", None, now)], at, producer=Producer(at, 0, 0)) for at in range(10)]
        states = [ProducerState(at, 0, 0, at, 0, now, -1, -1) for at in range(10)]
        write_segment(tmp_path / "disk", batches, partition=where, producers=states)
    (tmp_path / "store").mkdir()
    with ts.open(tmp_path / "store") as bucket:
        bucket.upload(tmp_path / "disk")
    store = ["--store", str(tmp_path / "store")]
    with start_kafka() as server:
        servers = ["--bootstrap-server", server.bootstrap_servers]
        for topic in ("kept", "dropped"):
            tieredstore("restore", "prepare", topic, *store, "--plan", tmp_path / f"{topic}.json", *servers).clean()
        assert server.process is not None
        server.process.stop()
        for topic, state in (("kept", "keep"), ("dropped", "drop")):
            words = ["--plan", tmp_path / f"{topic}.json", "--producer-state", state]
            tieredstore("restore", "logdir", server.log_dir, *store, *words).clean()
        server.process.start()
        assert send(server, "kept") == 0, "taken for a duplicate of the old record, and lost"
        assert send(server, "dropped") == 10
        ends = {topic: len(records(server, topic, 0, "read_uncommitted")) for topic in ("kept", "dropped")}
        assert ends == {"kept": 10, "dropped": 11}
        plan = ["--plan", tmp_path / "dropped.json"]
        shown = tieredstore("restore", "finish", *store, *plan, *servers).text
        # The time is a day after the newest record, rounded up to a whole second.
        moment = datetime.fromtimestamp(now // 1000 + 86_401, UTC)
        assert f"; add replicas after {moment:%Y-%m-%dT%H:%M:%SZ}, unless the producers' state was kept" in shown


def send(server: KafkaServer, topic: str) -> int:
    """Send a record with a new producer; return the offset that the broker reports."""
    offsets: list[int | None] = []
    producer = KafkaProducer({"bootstrap.servers": server.bootstrap_servers, "enable.idempotence": True})
    producer.produce(topic, b"new", partition=0, on_delivery=lambda _, sent: offsets.append(sent.offset()))
    assert producer.flush(60) == 0
    return offsets[0] or 0
