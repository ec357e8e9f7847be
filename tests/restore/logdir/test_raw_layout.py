"""Restores from Pinterest's layout: transaction indexes and producers' states are computed from the batches."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.places.test_raw_reading import put_raw, raw_settings
from tests.restore.logdir.log_dirs import make_log_dir, prepared, restore
from tests.restore.logdir.test_unfinished import stop_after
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError
from tieredstore.kafka.checkpoints import ProducerState, parse_producer_snapshot
from tieredstore.kafka.indexes import read_txn_index
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.places.opening import place_store
from tieredstore.remote import RemoteStorageManager
from tieredstore.restore.logdir.prepared import PreparedRestore
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

ORDERS = TopicIdPartition(Uuid(b"orders-on-a-disk"), "orders", 0)
ONE, TWO = (Producer(number, 3, 0, transactional=True) for number in (1, 2))


def raw_store(folder: Path, second: bytes) -> MemoryObjectStore:
    """Return a store of three segments, with two offsets each. The last aborts a transaction of the first."""
    segments = [
        [build_batch([Record(b"a")], 0, producer=ONE), build_batch([Record(b"b")], 1)],
        [second, build_batch([Record(b"d")], 3)],
        [build_end_marker(4, ONE, commit=False), build_batch([Record(b"e")], 5)],
    ]
    for number, batches in enumerate(segments):
        write_segment(folder, batches, partition=ORDERS, base_offset=2 * number)
    stored = MemoryObjectStore()
    put_raw(stored, folder)
    return stored


@contextmanager
def opened(store: MemoryObjectStore) -> Generator[Any]:
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        yield SimpleNamespace(manager=manager)


def plan_of(bucket: Any) -> PreparedRestore:
    return prepared(load_catalog(bucket.manager).lineage("orders", 0).partition)


def test_a_transaction_of_an_earlier_segment_is_open_at_the_end(tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    store = raw_store(tmp_path / "disk", build_batch([Record(b"c")], 2, producer=TWO))
    with opened(store) as bucket, pytest.raises(ConfigError, match="the first since offset 2"):
        restore(bucket, log_dir, plan_of(bucket))


def test_a_run_that_resumes_knows_where_transactions_began(tmp_path: Path) -> None:
    """The resumed run writes a transaction index, which must have the transaction's start in the first segment.
    Otherwise ``read_committed`` consumers would get the aborted record.
    """
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    store = raw_store(tmp_path / "disk", build_batch([Record(b"c")], 2))
    with opened(store) as bucket:
        stop_after(2, bucket, log_dir, plan_of(bucket))
    with opened(store) as bucket:
        restore(bucket, log_dir, plan_of(bucket), RestoreOptions(producer_states="keep"))
    (aborted,) = read_txn_index((log_dir / "orders-0" / f"{4:020d}.txnindex").read_bytes(), 4)
    assert (aborted.first_offset, aborted.last_offset) == (0, 4)
    # The stopped run has computed its snapshots without producer epochs, so the resumed run reads the batches.
    states = parse_producer_snapshot((log_dir / "orders-0" / f"{6:020d}.snapshot").read_bytes())
    assert states == (ProducerState(1, 3, 0, 0, 0, 0, 0, -1),)


def test_markers_have_the_epochs_of_the_batches(tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    store = raw_store(tmp_path / "disk", build_batch([Record(b"c")], 2, producer=TWO))
    with opened(store) as bucket:
        restore(bucket, log_dir, plan_of(bucket), RestoreOptions(stop=4, open_transactions="abort"))
    markers = (log_dir / "orders-0" / f"{4:020d}.log").read_bytes()
    assert markers == b"".join(build_end_marker(4 + at, one, commit=False) for at, one in enumerate((ONE, TWO)))
