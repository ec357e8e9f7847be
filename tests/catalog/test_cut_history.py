"""Copies of a log whose checkpoint retention cuts: later ones name no earlier leaders, and those count all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.uploader_disk import STORE, BrokerDisk, run_once
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import Lineage, load_catalog
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.config import settings_from
from tieredstore.format.keys import parse_key
from tieredstore.kafka.logdir import discover
from tieredstore.ops.shipping import SegmentStatus, ship_segment
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.doubles import CountingStore
from tieredstore.testing.segments import PARTITION


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    return BrokerDisk(tmp_path / "logs")


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryObjectStore())


def copy(disk: BrokerDisk, store: CountingStore) -> None:
    """As `tieredstore copy` does it, each time with what the disk has now."""
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        committed = CommittedSegments(store)
        for segment in discover(disk.log_dir).segments:
            assert ship_segment(manager, committed, segment).status in {
                SegmentStatus.COPIED, SegmentStatus.SKIPPED, SegmentStatus.ACTIVE, SegmentStatus.DELETED,
            }  # fmt: skip


def retention(disk: BrokerDisk, segments: int) -> None:
    disk.mark_deleted(segments)
    disk.delete()


def lineage_of(store: CountingStore) -> Lineage:
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        return load_catalog(manager).lineage(PARTITION.topic, PARTITION.partition)


def extents(lineage: Lineage) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in lineage.spans]


def test_what_earlier_leaders_wrote_is_read_though_the_last_copy_does_not_name_them(
    disk: BrokerDisk, store: CountingStore
) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    copy(disk, store)
    retention(disk, 3)
    disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 70, 10)]
    assert lineage.epochs == ((0, 0), (7, 20))
    assert not lineage.cuts


def test_the_history_is_followed_back_over_several_cuts(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(2)
    for epoch in range(1, 6):
        copy(disk, store)
        retention(disk, len(disk.bases) - 1)
        disk.lead(epoch)
        disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 120, 10)]
    assert lineage.epochs == ((0, 10), (1, 20), (2, 40), (3, 60), (4, 80), (5, 100))


def test_what_a_later_leader_wrote_over_stays_cut(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(4)
    copy(disk, store)
    disk.cut(20)
    disk.lead(3)
    disk.grow(3)
    copy(disk, store)
    retention(disk, 3)
    disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 70, 10)]
    assert [(cut.start, cut.stop) for cut in lineage.cuts] == [(20, 30), (30, 40)]


def test_without_a_segment_that_reaches_over_the_cut_nothing_older_is_called_part_of_the_log(
    disk: BrokerDisk, store: CountingStore
) -> None:
    disk.grow(3)
    copy(disk, store)
    disk.lead(7)
    disk.grow(1)
    retention(disk, 3)
    disk.grow(1)
    copy(disk, store)
    assert extents(lineage_of(store)) == [(30, 40), (40, 50)]


def test_where_none_reaches_over_the_cut_only_the_earliest_are_asked(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(3)
    copy(disk, store)
    disk.lead(7)
    disk.grow(1)
    retention(disk, 3)
    disk.grow(12)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    asked = {parse_key("", key) for operation in store.operations for key in operation.keys if key.endswith(".indexes")}
    # The ruler's and three more; those of the old epoch are held against what they hold, as all that is cut.
    assert len([key for key in asked if key is not None and key.start_offset >= 30]) == 1 + 3


def test_where_an_index_is_damaged_another_one_tells(
    disk: BrokerDisk, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(2)
    copy(disk, store)
    retention(disk, 3)
    disk.grow(2)
    copy(disk, store)
    keys = [info.key for info in store.list() if info.key.endswith(".indexes")]
    bridging = next(key for key in keys if (parsed := parse_key("", key)) is not None and parsed.start_offset == 20)
    store.put(bridging, b"\xff" * len(store.get(bridging)))
    assert extents(lineage_of(store))[0] == (0, 10)
    assert "which leaders came before" in caplog.text


def test_a_cut_costs_two_requests(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    before = store.requests.total()
    retention(disk, 3)
    disk.grow(1)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    # A manifest more, and the index of the segment that reaches over the cut, with its manifest.
    assert store.requests.total() == before + 1 + 2


def test_an_uploader_that_was_started_again_leaves_no_loss(tmp_path: Path, store: CountingStore) -> None:
    disk = BrokerDisk(tmp_path / "broker")
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    assert run_once(disk.log_dir, store) == []
    retention(disk, 3)
    disk.grow(2)
    assert run_once(disk.log_dir, store) == []
    assert extents(lineage_of(store)) == [(start, start + 10) for start in range(0, 60, 10)]
