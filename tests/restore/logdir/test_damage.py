"""Damaged segments and indexes in the bucket: a broker would serve wrong records from them, so they are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import fresh_bucket, make_log_dir, prepared, restore
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.checkpoints import ProducerState, format_producer_snapshot
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.testing.batches import ANONYMOUS, Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

ORDERS = TopicIdPartition(Uuid(b"orders-in-bucket"), "orders", 0)
ONE = Producer(1001, 0, 0, transactional=True)


def at(offset: int, size: int = 1, producer: Producer = ANONYMOUS) -> bytes:
    return build_batch([Record(bytes(size), None, 1000 + offset)], offset, producer=producer)


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield two segments of ten records. Their indexes have the same number of entries, at other bytes."""
    for base, size in ((0, 5000), (10, 6000)):
        batches = [at(offset, size) for offset in range(base, base + 10)]
        write_segment(tmp_path / "disk", batches, partition=ORDERS, base_offset=base)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as bucket:
        yield bucket


def test_a_wrong_offset_index_is_not_restored(twins: ts.Bucket, tmp_path: Path) -> None:
    """With it, a broker would skip the records between an entry's offset and the batch at the entry's position."""
    first, later = sorted((tmp_path / "store").rglob("*.indexes"))
    first.write_bytes(later.read_bytes())
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    restore(twins, log_dir, prepared(ORDERS))
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        assert (log_dir / "orders-0" / name).read_bytes() == (tmp_path / "disk" / "orders-0" / name).read_bytes()


@pytest.mark.parametrize("stop", [5, 10, 15])
def test_a_restore_ends_before_damage(twins: ts.Bucket, tmp_path: Path, stop: int) -> None:
    """The error names the segment and the offset; a restore up to this offset does not read the damaged batch."""
    damage(tmp_path / "store", stop)
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    with pytest.raises(
        BatchCorruptError, match=rf"^orders-0 at offset {stop // 10 * 10} .*\(offset {stop}\) is damaged"
    ):
        restore(twins, log_dir, prepared(ORDERS))
    outcomes = restore(twins, log_dir, prepared(ORDERS), RestoreOptions(stop=stop))
    assert outcomes[0] == ("left_out", stop, 19)
    assert outcomes[-1] == ("restored", (stop - 1) // 10 * 10, stop - 1)
    assert f"orders 0 {stop}\n" in (log_dir / "replication-offset-checkpoint").read_text()


def test_a_restore_begins_after_damage(twins: ts.Bucket, tmp_path: Path) -> None:
    damage(tmp_path / "store", 5)
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    outcomes = restore(twins, log_dir, prepared(ORDERS), RestoreOptions(start=10))
    assert outcomes == [("left_out", 0, 9), ("restored", 10, 19)]


def damage(store: Path, offset: int) -> None:
    """Flip a bit in the record at this offset."""
    log = sorted(store.rglob("*.log"))[offset // 10]
    content = bytearray(log.read_bytes())
    content[len(content) * (offset % 10) // 10 + 1000] ^= 1
    log.write_bytes(content)


BEGUN = [at(10, producer=ONE), build_end_marker(11, ONE, commit=True), at(12, producer=ONE), at(13)]
ABORTED = [*BEGUN, build_end_marker(14, ONE, commit=False)]
RIGHT = AbortedTransaction(1001, 12, 14, 15)


@pytest.mark.parametrize("stored", [[], [replace(RIGHT, first_offset=13)], [AbortedTransaction(1001, 10, 11, 12)]])
def test_a_wrong_transaction_index_is_not_restored(tmp_path: Path, stored: Sequence[AbortedTransaction]) -> None:
    """With it, a broker would return aborted records to ``read_committed`` consumers, or hide committed ones."""
    write_segment(tmp_path / "disk", ABORTED, partition=ORDERS, base_offset=10, aborted=stored)
    assert restored_index(tmp_path, 10) == (RIGHT,)


def test_a_transaction_that_began_in_an_earlier_segment_is_indexed(tmp_path: Path) -> None:
    """The index lacks it if the leader that stored the segment had a log that begins in the middle of it.

    Brokers do not index the second marker, because no records precede it.
    """
    write_segment(tmp_path / "disk", [at(0, producer=ONE)], partition=ORDERS, end_offset=9)
    last = [at(10), *(build_end_marker(offset, ONE, commit=False) for offset in (11, 12))]
    write_segment(tmp_path / "disk", last, partition=ORDERS, base_offset=10)
    assert restored_index(tmp_path, 10) == (AbortedTransaction(1001, 0, 11, 12),)


@pytest.mark.parametrize("stop", [None, 12])
def test_the_last_stable_offset_is_that_of_the_log(tmp_path: Path, stop: int | None) -> None:
    """A follower that appends all these batches at once writes the first offset of the other producer's transaction."""
    other = Producer(1002, 0, 0, transactional=True)
    batches = [at(10, producer=ONE), build_end_marker(11, ONE, commit=False), at(12, producer=ONE)]
    write_segment(
        tmp_path / "disk", [*batches, at(13, producer=other)], partition=ORDERS, base_offset=10,
        aborted=[AbortedTransaction(1001, 10, 11, 13)],
    )  # fmt: skip
    assert restored_index(tmp_path, 10, stop) == (AbortedTransaction(1001, 10, 11, 12),)


def restored_index(folder: Path, base_offset: int, stop: int | None = None) -> Sequence[AbortedTransaction]:
    """Restore the segments of a disk, and return the only transaction index."""
    with fresh_bucket(folder / "store", [folder / "disk"]) as bucket:
        log_dir = make_log_dir(folder / "logs", {"orders": 1})
        restore(bucket, log_dir, prepared(ORDERS), RestoreOptions(stop=stop))
    (path,) = log_dir.rglob("*.txnindex")
    return read_txn_index(path.read_bytes(), base_offset)


@pytest.mark.parametrize(
    ("is_swapped", "words"),
    [
        (False, r"^orders-0 at offset 0 .*: the producer snapshot is damaged: its CRC does not match.* instead$"),
        (True, "the snapshot of producers of orders-0 at offset 0 .* names offset 19, beyond its end; .* instead$"),
    ],
)
def test_a_wrong_snapshot_of_producers_is_replaced_by_the_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_swapped: bool, words: str
) -> None:
    """The snapshot of the later segment would hide the transaction that is open at the end of the first."""
    snapshots: list[bytes] = []
    for base, opened in ((0, 9), (10, -1)):
        batches = [at(offset, producer=ONE) for offset in range(base, base + 10)]
        states = [ProducerState(1001, 0, 0, base + 9, 0, 0, -1, opened)]
        write_segment(tmp_path / "disk", batches, partition=ORDERS, base_offset=base, producers=states)
        snapshots.append(format_producer_snapshot(states))
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as bucket:
        first, _ = sorted((tmp_path / "store").rglob("*.indexes"))
        wrong = snapshots[1] if is_swapped else snapshots[0][:-1] + b"\0"
        first.write_bytes(first.read_bytes().replace(snapshots[0], wrong))
        log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
        with pytest.raises(ConfigError, match=r"transactions are open at the end \(10\), the first since offset 0\."):
            restore(bucket, log_dir, prepared(ORDERS), RestoreOptions(stop=10))
        assert re.search(words, caplog.messages[0])
        options = RestoreOptions(stop=10, open_transactions="abort", producer_states="keep")
        assert restore(bucket, log_dir, prepared(ORDERS), options)[-2:] == [("restored", 0, 9), ("aborted", 10, 10)]
