"""A real broker serves odd logs as the bucket does: old formats, compaction, aborted transactions, odd records."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import fresh_bucket
from tests.restore.logdir.test_real_broker import records, stored
from tests.support.cli.cli_process import tieredstore
from tests.support.records.record_batches import message, message_set
from tests.support.servers.kafka_cluster import KAFKA, KAFKA_39, start_kafka_cluster
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.live.cluster import LiveCluster
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker, seal_batch
from tieredstore.testing.segments import write_segment

T0 = 1_767_225_600_000
EPOCH = datetime.fromtimestamp(0, UTC)
ONE, TWO = (Producer(number, 5, 0, transactional=True) for number in (4001, 4002))
TOPICS = ("oldest", "odd", "aborted")


def compacted(offset: int, count: int, kept: int, producer: Producer) -> bytes:
    """Return a batch of ``count`` offsets from which compaction has removed all but the first ``kept`` records."""
    batch = bytearray(build_batch([Record(b"kept", b"k", T0)] * kept, offset, producer=producer))
    batch[23:27] = (count - 1).to_bytes(4, "big")
    seal_batch(batch)
    return bytes(batch)


def old_formats() -> dict[int, list[bytes]]:
    inner = b"".join(message(1, at, b"in a set %d" % at, b"key", T0 + at) for at in range(3))
    return {
        7: [message(0, 7, b"v0", b"key"), message(0, 8, None, b"tombstone"), message(1, 9, b"v1", b"key", T0)],
        10: [
            message_set(1, 12, inner, CompressionType.GZIP, T0 + 2),
            message(1, 13, b"append time", b"key", T0 + 9, 8),
            build_batch([Record(b"v2", b"key", T0 + 10)], 14, leader_epoch=3),
        ],
    }


def odd_records() -> dict[int, list[bytes]]:
    several = (("h", b"1"), ("h", None), ("", b""), ("ключ", b"\0"))
    return {
        100: [
            build_batch([Record(b"", b"", T0 + 50), Record(None, None, T0 + 10)], 100, leader_epoch=9),
            build_batch([Record(b"v", b"k", T0 - 999, several)], 102, leader_epoch=9),
            build_batch([Record(b"v", b"k", T0 + 7)] * 3, 103, log_append_time_ms=T0 + 60, leader_epoch=12),
        ],
        106: [
            compacted(110, 5, 2, Producer(7, 0, 100)),
            compacted(120, 9, 0, Producer(8, 1, 40)),
            build_batch([Record(bytes(9000), b"k", T0)], 200, compression=CompressionType.ZSTD),
        ],
        1000: [build_batch([Record(b"z" * 100, b"k", T0 + at)], 1000 + at, leader_epoch=13) for at in range(200)],
    }


def transactions() -> dict[int, list[bytes]]:
    def at(offset: int, producer: Producer) -> bytes:
        return build_batch([Record(b"%d" % offset, None, T0 + offset)], offset, producer=producer)

    def end(offset: int, producer: Producer, *, commit: bool) -> bytes:
        return build_end_marker(offset, producer, commit=commit, timestamp_ms=T0 + offset, coordinator_epoch=9)

    return {
        0: [at(0, ONE), at(1, TWO), end(2, TWO, commit=True)],
        3: [at(3, ONE), at(4, TWO)],
        5: [end(5, ONE, commit=False), at(6, ONE), end(7, TWO, commit=False)],
        8: [end(8, ONE, commit=True), at(9, TWO), end(10, TWO, commit=True), at(11, ONE), end(12, ONE, commit=False)],
    }


ABORTED = {
    5: [AbortedTransaction(4001, 0, 5, 4), AbortedTransaction(4002, 4, 7, 6)],
    8: [AbortedTransaction(4001, 11, 12, 13)],
}
OPENED = {0: {4001: 0}, 3: {4001: 0, 4002: 4}, 5: {4001: 6}}


def write_topic(disk: Path, name: str, segments: dict[int, list[bytes]]) -> None:
    bases = sorted(segments)
    where = TopicIdPartition(Uuid(name.encode().ljust(16, b"-")), name, 0)
    for number, base in enumerate(bases):
        is_txn = name == "aborted"
        states = [ProducerState(one, 5, 0, first, 0, T0, 9, first) for one, first in OPENED.get(base, {}).items()]
        write_segment(
            disk, segments[base], partition=where, base_offset=base,
            end_offset=bases[number + 1] - 1 if number + 1 < len(bases) else None,
            aborted=ABORTED.get(base, []) if is_txn else [], producers=states if is_txn else [],
        )  # fmt: skip


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ts.Bucket]:
    for name, segments in zip(TOPICS, (old_formats(), odd_records(), transactions()), strict=True):
        write_topic(tmp_path / "disk", name, segments)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as opened:
        yield opened


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.parametrize("libs", [KAFKA, KAFKA_39])
def test_odd_logs_are_served_as_the_bucket_has_them(bucket: ts.Bucket, tmp_path: Path, libs: str) -> None:
    options = ["--store", str(tmp_path / "store"), "--plan", str(tmp_path / "restore.json")]
    with start_kafka_cluster(1, libs=libs) as server:
        node = server.brokers[1]
        tieredstore("restore", "prepare", *TOPICS, *options, "--bootstrap-server", server.bootstrap_servers).clean()
        node.stop()
        tieredstore("restore", "logdir", str(node.log_dir), *options).clean()
        node.start()
        ends = {("oldest", 0): 15, ("odd", 0): 1200, ("aborted", 0): 13}
        with LiveCluster({"bootstrap.servers": server.bootstrap_servers}, isolation="read_committed") as cluster:
            assert cluster.end_offsets(ends) == ends
        for topic in TOPICS:
            for isolation in ("read_uncommitted", "read_committed"):
                # A plain client returns 1970 for records without a time, which the old format allows.
                rows = stored(bucket, topic, 0, isolation)
                expected = [(offset, max(time, EPOCH), *others) for offset, time, *others in rows]
                assert expected
                assert records(server, topic, 0, isolation) == expected
        for path in node.log_dir.glob("*-0/*.log"):
            assert path.with_suffix(".index").exists()
