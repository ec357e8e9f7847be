"""Abort markers after a log that ends in open transactions: their bytes, and their effect in a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer

import tieredstore as ts
from tests.restore.logdir.log_dirs import fresh_bucket, make_log_dir, prepared, restore, tree
from tests.restore.logdir.test_real_broker import records
from tests.support.cli.cli_process import tieredstore
from tests.support.servers.kafka_cluster import KAFKA, KAFKA_39, start_kafka_cluster
from tests.support.waiting import wait_until
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import ProducerState, format_producer_snapshot
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.kafka.logdir import describe, discover
from tieredstore.live.cluster import LiveCluster
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.testing.batches import ANONYMOUS, Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

ORDERS = TopicIdPartition(Uuid(b"orders-in-bucket"), "orders", 0)
ONE, TWO = Producer(1001, 3, 0, transactional=True), Producer(1002, 0, 0, transactional=True)
T0 = 1_767_225_600_000
ABORT = RestoreOptions(open_transactions="abort", producer_states="keep")


def at(offset: int, value: bytes, producer: Producer = ANONYMOUS) -> bytes:
    return build_batch([Record(value, None, T0 + offset)], offset, producer=producer)


def committed(offset: int, producer: Producer) -> bytes:
    return build_end_marker(offset, producer, commit=True, timestamp_ms=T0 + offset, coordinator_epoch=7)


SEGMENTS = {
    0: [at(0, b"plain"), at(1, b"kept", ONE), committed(2, ONE), at(3, b"open", TWO)],
    4: [at(4, b"open", ONE), at(5, b"plain"), at(6, b"open", TWO)],
}
STATES = {
    0: [ProducerState(1001, 3, 0, 1, 0, T0 + 2, 7, -1), ProducerState(1002, 0, 0, 3, 0, T0 + 3, -1, 3)],
    4: [ProducerState(1001, 3, 0, 4, 0, T0 + 4, 7, 4), ProducerState(1002, 0, 0, 6, 0, T0 + 6, -1, 3)],
}
ENDED = [ProducerState(1001, 3, 0, 4, 0, T0 + 4, 7, -1), ProducerState(1002, 0, 0, 6, 0, T0 + 6, 0, -1)]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield two segments, at whose end two transactions are open, since offsets 3 and 4."""
    for base, batches in SEGMENTS.items():
        write_segment(tmp_path / "disk", batches, partition=ORDERS, base_offset=base, producers=STATES[base])
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as opened:
        yield opened


@pytest.mark.parametrize("is_dropped", [False, True])
def test_markers_end_them_in_a_segment_of_their_own(bucket: ts.Bucket, tmp_path: Path, *, is_dropped: bool) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    options = RestoreOptions(open_transactions="abort") if is_dropped else ABORT
    outcomes = restore(bucket, log_dir, plan, options)
    assert outcomes == [("restored", 0, 3), ("restored", 4, 6), ("aborted", 7, 7), ("aborted", 8, 8)]
    folder = log_dir / "orders-0"
    markers = (folder / f"{7:020d}.log").read_bytes()
    assert markers == b"".join(
        build_end_marker(offset, producer, commit=False, timestamp_ms=T0 + of, coordinator_epoch=epoch)
        for offset, producer, of, epoch in ((7, TWO, 6, 0), (8, ONE, 4, 7))
    )
    assert [header.base_offset for header in read_batch_headers(markers, check_crc=True)] == [7, 8]
    aborted = read_txn_index((folder / f"{7:020d}.txnindex").read_bytes(), 7)
    assert list(aborted) == [AbortedTransaction(1002, 3, 7, 4), AbortedTransaction(1001, 4, 8, 9)]
    ended = format_producer_snapshot(() if is_dropped else ENDED)
    assert (folder / f"{9:020d}.snapshot").read_bytes() == ended
    assert [describe(one).end_offset for one in discover(folder).segments] == [3, 6, 8, -1]
    assert "orders 0 9\n" in (log_dir / "recovery-point-offset-checkpoint").read_text()
    after = tree(log_dir)
    assert {code for code, *_ in restore(bucket, log_dir, plan, options)} == {"there"}
    assert tree(log_dir) == after
    path = folder / f"{7:020d}.log"
    path.write_bytes(markers[:-1] + bytes([markers[-1] ^ 1]))
    with pytest.raises(BatchCorruptError, match=f"^{path}: its abort markers are damaged; restore into a new topic$"):
        restore(bucket, log_dir, plan, options)


def test_the_transaction_index_of_a_later_segment_is_not_restored(tmp_path: Path) -> None:
    """With it, a broker would return the aborted records of the earlier segment."""
    for base in (0, 2):
        marker = build_end_marker(base + 1, ONE, commit=False, timestamp_ms=T0, coordinator_epoch=7)
        of_segment = [AbortedTransaction(1001, base, base + 1, base + 2)]
        write_segment(
            tmp_path / "disk", [at(base, b"sent", ONE), marker], partition=ORDERS, base_offset=base, aborted=of_segment
        )
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as bucket:
        first, later = sorted((tmp_path / "store").rglob("*.indexes"))
        first.write_bytes(later.read_bytes())
        log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
        restore(bucket, log_dir, prepared(ORDERS), ABORT)
    for base in (0, 2):
        (entry,) = read_txn_index((log_dir / "orders-0" / f"{base:020d}.txnindex").read_bytes(), base)
        assert entry == AbortedTransaction(1001, base, base + 1, base + 2)


def test_a_transaction_that_the_last_broker_does_not_know_is_open(tmp_path: Path) -> None:
    """Its log begins in the middle of the transaction, so its snapshots lack it."""
    state = ProducerState(1001, 3, 0, 1, 0, T0 + 1, -1, 1)
    write_segment(tmp_path / "one", [at(0, b"plain"), at(1, b"open", ONE)], partition=ORDERS, producers=[state])
    later = [at(offset, b"plain") for offset in (2, 3)]
    for offset, batch in enumerate(later, 2):
        write_segment(tmp_path / "two", [batch], partition=ORDERS, base_offset=offset, leader_epochs=((1, 2),))
    with fresh_bucket(tmp_path / "store", [tmp_path / "one", tmp_path / "two"]) as bucket:
        log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
        with pytest.raises(ConfigError, match=r"open at the end \(4\), the first since offset 1\."):
            restore(bucket, log_dir, prepared(ORDERS))
        assert restore(bucket, log_dir, prepared(ORDERS), RestoreOptions(open_transactions="abort"))[-1] == (
            "aborted", 4, 4
        )  # fmt: skip
    aborted = read_txn_index((log_dir / "orders-0" / f"{4:020d}.txnindex").read_bytes(), 4)
    assert aborted == (AbortedTransaction(1001, 1, 4, 5),)


def test_a_cut_by_hand_is_aborted_too(bucket: ts.Bucket, tmp_path: Path) -> None:
    """No stored snapshot has the producers' states at offset 5, so the batches give them."""
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    options = RestoreOptions(stop=5, open_transactions="abort", producer_states="keep")
    assert restore(bucket, log_dir, prepared(ORDERS), options)[-2:] == [("aborted", 5, 5), ("aborted", 6, 6)]
    states = [ENDED[0], ProducerState(1002, 0, 0, 3, 0, T0 + 3, 0, -1)]
    assert (log_dir / "orders-0" / f"{7:020d}.snapshot").read_bytes() == format_producer_snapshot(states)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("libs", "knows"),
    [
        (KAFKA, "snapshots"),
        pytest.param(KAFKA, "batches", marks=pytest.mark.soak),
        pytest.param(KAFKA_39, "batches", marks=pytest.mark.soak),
    ],
)
def test_a_broker_skips_the_aborted_records(bucket: ts.Bucket, tmp_path: Path, libs: str, knows: str) -> None:
    """The broker starts with the snapshots, or from the batches alone, like after a crash."""
    options = ["--store", str(tmp_path / "store"), "--plan", str(tmp_path / "restore.json")]
    with start_kafka_cluster(1, libs=libs) as server:
        servers, node = {"bootstrap.servers": server.bootstrap_servers}, server.brokers[1]
        tieredstore("restore", "prepare", "orders", *options, "--bootstrap-server", server.bootstrap_servers).clean()
        node.stop()
        words = ["--open-transactions", "abort", "--producer-state", "keep", "--json"]
        rows, summary = tieredstore("restore", "logdir", str(node.log_dir), *options, *words).clean().rows
        assert [row["reason"] for row in rows if row["code"] == "aborted"] == [
            "abort marker of producer 1002, in a transaction since offset 3",
            "abort marker of producer 1001, in a transaction since offset 4",
        ]
        assert summary["codes"] == {"aborted": 2, "restored": 2}
        if knows == "batches":
            (node.log_dir / ".kafka_cleanshutdown").unlink()
            (node.log_dir / "recovery-point-offset-checkpoint").unlink()
            for path in (node.log_dir / "orders-0").glob("*.snapshot"):
                path.unlink()
        node.start()
        with LiveCluster(servers, isolation="read_committed") as cluster:
            assert cluster.end_offsets([("orders", 0)]) == {("orders", 0): 9}
        assert [offset for offset, *_ in records(server, "orders", 0, "read_uncommitted")] == [0, 1, 3, 4, 5, 6]
        found = [(offset, value) for offset, _, _, value, _ in records(server, "orders", 0, "read_committed")]
        assert found == [(0, b"plain"), (1, b"kept"), (5, b"plain")]
        writer = KafkaProducer({**servers, "transactional.id": "after"})
        writer.init_transactions(60)
        writer.begin_transaction()
        writer.produce("orders", b"new", partition=0)
        writer.commit_transaction(60)
        # The broker answers before it has written the marker.
        wait_until(lambda: records(server, "orders", 0, "read_committed")[-1][0] == 9)
