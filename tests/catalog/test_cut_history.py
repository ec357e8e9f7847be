"""Copies of a log whose epoch checkpoint is truncated by retention. Later copies then lack earlier leaders, whose
records still count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.doubles import CountingStore
from tests.support.uploader.uploader_disk import STORE, BrokerDisk, run_once
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import load_catalog
from tieredstore.config import settings_from
from tieredstore.format.keys import parse_key
from tieredstore.kafka.logdir import discover
from tieredstore.ops.copies.shipping import Shipper
from tieredstore.ops.steps import Outcome
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    return BrokerDisk(tmp_path / "logs")


def copy(disk: BrokerDisk, store: CountingStore) -> None:
    """Copy like `tieredstore upload`, with the disk's current state."""
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        for step in Shipper(CommittedSegments(store), manager).ship_all(discover(disk.log_dir).segments):
            assert step.outcome in {Outcome.COPIED, Outcome.THERE, Outcome.ACTIVE, Outcome.GONE}


def lineage_of(store: CountingStore) -> Lineage:
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        return load_catalog(manager).lineage(PARTITION.topic, PARTITION.partition)


def extents(lineage: Lineage) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in lineage.spans]


def test_records_of_earlier_leaders_are_read_though_the_last_copy_does_not_name_them(
    disk: BrokerDisk, store: CountingStore
) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    copy(disk, store)
    disk.delete(3)
    disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 70, 10)]
    assert lineage.epochs == ((0, 0), (7, 20))
    assert not lineage.superseded


def test_the_history_is_followed_back_over_several_cuts(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(2)
    for epoch in range(1, 6):
        copy(disk, store)
        disk.delete(len(disk.bases) - 1)
        disk.lead(epoch)
        disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 120, 10)]
    assert lineage.epochs == ((0, 0), (1, 20), (2, 40), (3, 60), (4, 80), (5, 100))


def test_records_that_a_later_leader_replaced_stay_cut(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(4)
    copy(disk, store)
    disk.cut(20)
    disk.lead(3)
    disk.grow(3)
    copy(disk, store)
    disk.delete(3)
    disk.grow(2)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 70, 10)]
    assert [(cut.start, cut.stop) for cut in lineage.superseded] == [(20, 30), (30, 40)]


def test_a_leader_that_began_just_where_a_segment_does_hides_nothing_that_was_stored_before(
    disk: BrokerDisk, store: CountingStore
) -> None:
    """The leader of epoch 7 begins where retention has truncated the checkpoint. So no copy names both this leader and
    the one before.
    """
    disk.grow(2)
    disk.lead(3)
    disk.grow(1)
    copy(disk, store)
    disk.lead(7)
    disk.grow(1)
    disk.delete(3)
    disk.grow(1)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 50, 10)]
    assert (lineage.epochs, lineage.superseded) == (((0, 0), (3, 20), (7, 30)), ())


def test_before_a_loss_over_which_leaders_changed_all_is_read(disk: BrokerDisk, store: CountingStore) -> None:
    """If all records of a leader are lost, the leader is unknown, but every stored record is still served."""
    disk.grow(3)
    copy(disk, store)
    disk.lead(5)
    disk.grow(2)
    disk.lead(7)
    disk.grow(2)
    disk.delete(6)
    disk.grow(1)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(0, 10), (10, 20), (20, 30), (60, 70), (70, 80)]
    assert [(gap.start, gap.stop) for gap in lineage.gaps] == [(30, 60)]


def test_records_that_a_later_leader_replaced_stay_cut_though_a_third_began_at_a_cut(
    disk: BrokerDisk, store: CountingStore
) -> None:
    disk.grow(4)
    copy(disk, store)
    disk.cut(20)
    disk.lead(3)
    disk.grow(1)
    copy(disk, store)
    disk.lead(9)
    disk.grow(1)
    disk.delete(3)
    disk.grow(1)
    copy(disk, store)
    lineage = lineage_of(store)
    assert extents(lineage) == [(start, start + 10) for start in range(0, 50, 10)]
    assert [(cut.start, cut.stop) for cut in lineage.superseded] == [(20, 30), (30, 40)]


def test_copies_that_each_begin_with_a_cut_are_all_of_their_leader(disk: BrokerDisk, store: CountingStore) -> None:
    """All copies from offset 40 on are of one leader. None of their offsets count as superseded, even if the index with
    the leader's start is unreadable.
    """
    disk.grow(3)
    copy(disk, store)
    disk.lead(7)
    disk.grow(2)
    for _ in range(3):
        disk.delete(len(disk.bases) - 1)
        disk.grow(1)
        copy(disk, store)
    keys = [info.key for info in store.list() if info.key.endswith(".indexes")]
    starts = {parsed.start_offset: key for key in keys if (parsed := parse_key("", key)) is not None}
    assert sorted(starts) == [0, 10, 20, 40, 50, 60, 70]
    for start in (0, 10, 20, 40, 50, 60):
        store.put(starts[start], b"\xff" * len(store.get(starts[start])))
    lineage = lineage_of(store)
    assert extents(lineage) == [(0, 10), (10, 20), (20, 30), (40, 50), (50, 60), (60, 70), (70, 80)]
    assert lineage.superseded == ()


def test_where_none_reaches_over_the_cut_only_the_earliest_are_asked(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(3)
    copy(disk, store)
    disk.lead(7)
    disk.grow(1)
    disk.delete(3)
    disk.grow(12)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    asked = {parse_key("", key) for operation in store.operations for key in operation.keys if key.endswith(".indexes")}
    # The lineage needs five indexes: that of the ruler (150), those of the earliest three segments of the ruler's
    # leader (30, 40, 50), and that of the last segment before these (20).
    assert sorted(key.start_offset for key in asked if key is not None) == [20, 30, 40, 50, 150]


def test_where_an_index_is_damaged_another_one_tells(
    disk: BrokerDisk, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(2)
    copy(disk, store)
    disk.delete(3)
    disk.grow(2)
    copy(disk, store)
    keys = [info.key for info in store.list() if info.key.endswith(".indexes")]
    bridging = next(key for key in keys if (parsed := parse_key("", key)) is not None and parsed.start_offset == 20)
    store.put(bridging, b"\xff" * len(store.get(bridging)))
    assert extents(lineage_of(store))[0] == (0, 10)
    assert "the leader epochs before" in caplog.text


def test_a_cut_costs_two_requests(disk: BrokerDisk, store: CountingStore) -> None:
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    before = store.requests.total()
    disk.delete(3)
    disk.grow(1)
    copy(disk, store)
    store.reset()
    lineage_of(store)
    # The new segment's manifest is one request; the index and manifest of the segment that spans the cut are two.
    assert store.requests.total() == before + 1 + 2


def test_an_uploader_that_was_started_again_leaves_no_loss(tmp_path: Path, store: CountingStore) -> None:
    disk = BrokerDisk(tmp_path / "broker")
    disk.grow(2)
    disk.lead(7)
    disk.grow(3)
    assert run_once(disk.log_dir, store) == []
    disk.delete(3)
    disk.grow(2)
    assert run_once(disk.log_dir, store) == []
    assert extents(lineage_of(store)) == [(start, start + 10) for start in range(0, 60, 10)]
