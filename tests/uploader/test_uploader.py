"""Single runs over a changing disk: the segments shipped, their order, and the segments that wait."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.golden.records import rows_of
from tests.support.records.record_reader import read_records
from tests.support.records.topic_reads import read_topic
from tests.support.stores.doubles import FaultyStore
from tests.support.uploader.stoppable_broker import Belief
from tests.support.uploader.uploader_disk import (
    STORE,
    BrokerDisk,
    SaidSettling,
    extents,
    holes_of,
    run_once,
    stored,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import watermark_key
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, write_segment
from tieredstore.uploader import metrics


def test_a_closed_segment_is_shipped_once_and_the_watermark_moves_behind_it(
    disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tieredstore.uploader.shipping"):
        assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29)]
    first, *_ = told = [line for line in caplog.messages if line.startswith("shipped ")]
    assert len(told) == 3
    assert re.fullmatch(rf"shipped {disk.folder.name} 0\.\.9 \(\d+ B, \d+\.\d s\)", first), first
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.leader_epoch, watermark.broker_id) == (30, 0, 1)
    assert watermark.segment is not None
    assert watermark.segment.id == str(stored(store)[-1].objects.segment_id.id)
    assert run_once(disk.log_dir, store) == []
    disk.grow()
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39)]


def test_topics_are_chosen_by_whole_names_and_what_excludes_wins(tmp_path: Path, store: MemoryObjectStore) -> None:
    names = ("orders", "orders-eu", "clicks", "__internal")
    partitions = {name: TopicIdPartition(Uuid.random(), name, 0) for name in names}
    for partition in partitions.values():
        BrokerDisk(tmp_path, partition).grow(2)
    run_once(tmp_path, store, topics_include="orders.*,cl", topics_exclude=".*-eu")
    assert [name for name in names if extents(store, partitions[name])] == ["orders"]
    run_once(tmp_path, store, topics_include=".*", internal_topics="true")
    assert [name for name in names if extents(store, partitions[name])] == list(names)


@pytest.mark.parametrize(
    ("high", "stable", "epoch", "shipped", "reason"),
    [
        (30, 30, 0, 3, ""),
        (29, 29, 0, 2, "the high watermark is 29"),
        (10, 10, 0, 1, "the high watermark is 10"),
        (9, 9, 0, 0, "the high watermark is 9"),
        (40, 20, 0, 2, "a transaction is open"),
        (40, 40, 1, 0, "the leader's epoch is 1, but the local log's is 0"),
    ],
)
def test_only_what_is_settled_is_shipped(
    disk: BrokerDisk, store: MemoryObjectStore, high: int, stable: int, epoch: int, shipped: int, reason: str
) -> None:
    settling = SaidSettling(high=high, stable=stable, epoch=epoch)
    left = run_once(disk.log_dir, store, settling)
    assert len(extents(store)) == shipped
    assert [said[: len(reason)] for said in left] == ([reason] if reason else [])


def test_a_segment_about_to_be_deleted_does_not_wait_for_a_transaction(
    disk: BrokerDisk, store: MemoryObjectStore
) -> None:
    settling = SaidSettling(stable=0)
    disk.mark_deleted(2)
    run_once(disk.log_dir, store, settling)
    assert extents(store) == [(0, 9), (10, 19)]


def test_epochs_that_retention_has_cut_are_those_that_were_there(tmp_path: Path, store: MemoryObjectStore) -> None:
    disk = BrokerDisk(tmp_path, segments=1)
    disk.lead(3)
    disk.grow()
    disk.lead(5)
    disk.grow(2)
    with uploader_of(tmp_path, store) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        disk.delete(3)
        assert uploader.run_once() == []
    assert [segment.metadata.segment_leader_epochs for segment in stored(store)] == [((0, 0),), ((3, 10),), ((5, 20),)]
    other = MemoryObjectStore()
    disk.grow(2)
    disk.mark_deleted(2)
    # The segments were first seen after they were marked deleted, so only their batches show the epochs.
    run_once(tmp_path, other)
    assert [segment.metadata.segment_leader_epochs for segment in stored(other)] == [((5, 30),), ((5, 40),)]


def test_a_held_segment_is_shipped_although_the_broker_has_deleted_it(
    disk: BrokerDisk, store: MemoryObjectStore
) -> None:
    with uploader_of(disk.log_dir, store) as uploader:
        uploader.ask_leadership()
        assert uploader.sweep().files == 12
        disk.delete(3)
        held = uploader.sweep()
        assert held.unlinked_bytes > 0
        assert uploader.run_once() == []
        assert uploader.held.files == 0
    assert extents(store) == [(0, 9), (10, 19), (20, 29)]
    assert watermark_of(store).holes == ()


def test_a_segment_deleted_before_it_was_seen_is_reported_as_a_hole(
    disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(disk.log_dir, store)
    disk.grow(3)
    disk.delete(5)
    with uploader_of(disk.log_dir, store) as uploader:
        assert uploader.run_once() == []
        assert uploader.counts.holes == 1
        uploader.sweep()
        assert "30 to 49" in uploader.health.reasons()["holes"]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset, hole.broker_id) == (30, 49, 1)
    assert extents(store)[-1] == (50, 59)
    assert "offsets 30 to 49 are not shipped" in caplog.text


def test_after_a_restart_stored_segments_are_no_lag(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    run_once(disk.log_dir, store)
    disk.grow()
    with uploader_of(disk.log_dir, store, SaidSettling(high=0)) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        gauges = uploader.gauges()
        assert (gauges["lag_segments"], gauges["lag_bytes"], gauges["oldest_segment_age_seconds"]) == (0, 0, 0)
        assert gauges["unread_partitions"] == 1
        # The watermark is read although the next segment may not be shipped yet.
        (left,) = uploader.run_once()
        gauges = uploader.gauges()
        assert (gauges["lag_segments"], gauges["unread_partitions"]) == (1, 0)
        assert left.base_offset == 30


def test_the_lag_by_partition_says_why_and_is_null_until_the_watermark_is_read(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    for number in (1, 0):
        BrokerDisk(tmp_path, TopicIdPartition(Uuid(bytes(15) + b"1"), "orders", number)).grow(number + 2)
    with uploader_of(tmp_path, store, SaidSettling(high=10)) as uploader:
        assert uploader.lag() == {"leadership_known": False, "partitions": []}
        uploader.ask_leadership()
        uploader.sweep()
        unknown = {"lag_segments": None, "lag_bytes": None, "oldest_segment_age_seconds": None}
        where = {"topic": "orders", "topic_id": str(Uuid(bytes(15) + b"1"))}
        expected = [{**where, "partition": number, "next_offset": None, **unknown, "reason": None} for number in (0, 1)]
        assert uploader.lag() == {"leadership_known": True, "partitions": expected}
        uploader.run_once()
        done, waiting = json.loads(json.dumps(uploader.lag()))["partitions"]
        nothing = {"lag_segments": 0, "lag_bytes": 0, "oldest_segment_age_seconds": 0, "reason": None}
        assert done == {**where, "partition": 0, "next_offset": 10, **nothing}
        assert (waiting["next_offset"], waiting["lag_segments"]) == (10, 1)
        assert waiting["lag_bytes"] == uploader.gauges()["lag_bytes"] > 0
        assert waiting["reason"].startswith("the high watermark is 10")


@pytest.mark.parametrize(
    ("selected", "most", "expected"),
    [
        ("", 100, {}),
        ("orders", 100, {"orders": 2, "(other)": 3}),
        (".*", 100, {"clicks": 2, "orders": 2, "views": 1}),
        (".*", 2, {"clicks": 2, "orders": 2, "(other)": 1}),
        ("none", 100, {"(other)": 5}),
    ],
)
def test_lag_by_topic_is_opt_in_bounded_and_sums_to_the_whole(
    tmp_path: Path,
    store: MemoryObjectStore,
    selected: str,
    most: int,
    expected: dict[str, int],
) -> None:
    for name, number, closed in (("orders", 0, 1), ("orders", 1, 1), ("clicks", 0, 2), ("views", 0, 1)):
        BrokerDisk(tmp_path, TopicIdPartition(Uuid(name.encode().ljust(16)), name, number)).grow(closed + 1)
    with uploader_of(tmp_path, store, SaidSettling(high=0), metrics_topics=selected) as uploader:
        uploader.run_once()
        registry = CollectorRegistry()
        by_topic = uploader.lag_by_topic if most == 100 else partial(metrics.lag_by_topic, uploader, 0.0, most)
        metrics.CountsCollector(uploader.counts, uploader.gauges, by_topic, registry)
        found = {
            sample.labels["topic"]: sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "tieredstore_uploader_topic_lag_segments"
        }
        assert found == expected
        assert uploader.gauges()["lag_segments"] == 5


def test_a_watermark_that_is_lost_or_damaged_is_made_again(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    run_once(disk.log_dir, store)
    before = watermark_of(store)
    for content in (None, b"", b"{}", b"[1", before.to_bytes().replace(b"events", b"others")):
        key = watermark_key("", disk.partition)
        if content is None:
            store.delete([key])
        else:
            store.put(key, content)
        disk.grow()
        assert run_once(disk.log_dir, store) == []
        after = watermark_of(store)
        assert after.next_offset == disk.end - 10
        assert after.holes == ()
    assert [start for start, _ in extents(store)] == list(range(0, disk.end - 10, 10))


def test_the_uploader_begins_with_the_latest_segment_if_the_settings_say_so(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    disk = BrokerDisk(tmp_path, segments=4)
    assert run_once(tmp_path, store, start="latest") == []
    assert (extents(store), watermark_of(store).next_offset) == ([], 30)
    disk.grow(2)
    assert run_once(tmp_path, store, start="latest") == []
    assert extents(store) == [(30, 39), (40, 49)]


def test_a_log_that_does_not_begin_at_0_has_no_hole(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    disk.delete(2)
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(20, 29)]
    assert watermark_of(store).holes == ()


def test_an_unclean_election_moves_the_watermark_back(
    disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(disk.log_dir, store)
    disk.cut(20)
    disk.lead(4)
    disk.grow(3)
    assert run_once(disk.log_dir, store) == []
    assert sorted(extents(store)) == [(0, 9), (10, 19), (20, 29), (20, 29), (30, 39)]
    watermark = watermark_of(store)
    (back,) = watermark.moved_back
    assert (back.from_offset, back.to_offset, back.leader_epoch) == (30, 20, 4)
    assert (watermark.next_offset, watermark.leader_epoch) == (40, 4)
    assert "unclean" in caplog.text
    # The watermark moves back once; the next run does not repeat it.
    assert run_once(disk.log_dir, store) == []
    assert len(watermark_of(store).moved_back) == 1


@pytest.mark.parametrize("kept", [2, 3, 4])
@pytest.mark.parametrize("shipped", [3, 5, 7])
@pytest.mark.parametrize("hole", [None, 10, 20, 30])
def test_an_unclean_election_of_a_broker_with_records_of_an_earlier_leader(
    tmp_path: Path, store: MemoryObjectStore, kept: int, shipped: int, hole: int | None
) -> None:
    """The second broker led in epoch 1, but was away before its last records were replicated. So the first broker led
    in epoch 2, and wrote other records there. When the first broker fails, the second one leads again.

    The first broker may lack a segment. Its hole is filled if the second broker has the same records, and disappears if
    the log now has other records.
    """
    first, second = BrokerDisk(tmp_path / "first", segments=2), BrokerDisk(tmp_path / "second", segments=2)
    first.lead(2)
    first.grow(shipped - 1)
    if hole in first.bases[:-1]:
        (first.folder / f"{hole:020d}.log").unlink()
    run_once(first.log_dir, store)
    second.lead(1)
    second.grow(kept)
    second.lead(3)
    second.grow(5)
    end = second.end - 10
    assert run_once(second.log_dir, store) == []
    assert (watermark_of(store).next_offset, watermark_of(store).holes) == (end, ())
    assert [move.to_offset for move in watermark_of(store).moved_back] == [20]
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        rows = rows_of(read_records(manager, "events", 0, 0, end))
    assert [row["offset"] for row in rows] == list(range(end))
    written_by = [int(row["key"].split()[0]) for row in rows]
    assert written_by == [0] * 20 + [1] * 10 * kept + [3] * (end - 20 - 10 * kept)
    assert run_once(second.log_dir, store) == []
    assert len(watermark_of(store).moved_back) == 1


@pytest.mark.parametrize("kept", [1, 2])
def test_records_of_a_later_leader_that_an_unclean_election_removed_are_not_read(
    tmp_path: Path, store: MemoryObjectStore, kept: int
) -> None:
    """The first broker's records were shipped, then those of the second broker, which was elected uncleanly. Then the
    first broker, which was away, is elected uncleanly too. Its own epoch has no stored records yet, so only the
    watermark shows that its earlier records are valid again.
    """
    first, second = BrokerDisk(tmp_path / "first", segments=4), BrokerDisk(tmp_path / "second", segments=3)
    first.grow(kept)
    run_once(first.log_dir, store)
    second.lead(1)
    second.grow(3)
    run_once(second.log_dir, store)
    first.lead(2)
    first.grow()
    assert run_once(first.log_dir, store) == []
    assert [(move.to_offset, move.leader_epoch) for move in watermark_of(store).moved_back] == [(30, 1), (30, 2)]
    assert watermark_of(store).next_offset == first.bases[-1]
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        rows = [row for batch in read_topic(manager, "events") for row in batch.to_pylist()]
    expected = [value for base in first.bases[:-1] for value in first.values(base, 0)]
    assert [(row["offset"], row["key"]) for row in rows] == list(enumerate(expected))


@pytest.mark.parametrize("is_led_before", [False, True])
def test_an_unclean_leader_ships_its_records_before_they_reach_the_watermark(
    tmp_path: Path, store: MemoryObjectStore, is_led_before: bool
) -> None:
    """The uploader knows the watermark, as a leader's or a follower's uploader. The new leader's log ends below it."""
    former, disk = BrokerDisk(tmp_path / "former", segments=8), BrokerDisk(tmp_path / "logs", segments=2)
    Belief.leads[1], now_s = is_led_before, [0.0]
    belief = f"{Belief.__module__}.{Belief.__name__}"
    if not is_led_before:
        run_once(former.log_dir, store)
    else:
        disk.grow(6)
    with uploader_of(disk.log_dir, store, SaidSettling(), lambda: now_s[0], leadership=belief) as uploader:
        uploader.run_once()
        uploader.follow()
        if is_led_before:
            disk.cut(20)
        disk.lead(1)
        disk.grow(3)
        uploader.disk.touch(disk.folder)
        uploader.sweep()
        now_s[0] += 1000.0
        uploader.follow()
        Belief.leads[1] = True
        uploader.disk.touch(disk.folder)
        assert uploader.run_once() == []
    assert [(move.from_offset, move.to_offset) for move in watermark_of(store).moved_back] == [(70, 20)]
    assert watermark_of(store).next_offset == 40


def test_an_emptied_log_is_shipped_before_it_reaches_the_watermark(tmp_path: Path, store: MemoryObjectStore) -> None:
    """An unclean leader's log begins after the follower's, so the follower empties its log. Then it leads."""
    former, disk = BrokerDisk(tmp_path / "former", segments=8), BrokerDisk(tmp_path / "logs", segments=2)
    Belief.leads[1] = False
    run_once(former.log_dir, store)
    with uploader_of(disk.log_dir, store, leadership=f"{Belief.__module__}.{Belief.__name__}") as uploader:
        uploader.run_once()
        uploader.follow()
        disk.cut(0)
        (disk.folder / f"{30:020d}.log").touch()
        disk.epochs, disk.end = (), 30
        disk.write_epochs()
        uploader.disk.touch(disk.folder)
        uploader.sweep()
        disk.lead(1)
        disk.grow(3)
        Belief.leads[1] = True
        uploader.disk.touch(disk.folder)
        assert uploader.run_once() == []
    assert [(move.from_offset, move.to_offset) for move in watermark_of(store).moved_back] == [(70, 30)]
    assert watermark_of(store).next_offset == 50


def test_an_unclean_election_in_the_middle_of_a_hole_leaves_the_part_before_it(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    first, second = BrokerDisk(tmp_path / "first", segments=4), BrokerDisk(tmp_path / "second", segments=1)
    (first.folder / f"{10:020d}.log").unlink()
    run_once(first.log_dir, store)
    assert holes_of(store) == [(10, 19)]
    batches = [*second.batches(10, 0)[:2], *second.batches(10, 4)[2:]]
    second.epochs = ((0, 0), (4, 14))
    write_segment(second.log_dir, batches, partition=PARTITION, base_offset=10, leader_epochs=second.epochs)
    second.bases, second.end = [0, 10], 20
    second.grow(3)
    assert run_once(second.log_dir, store) == []
    watermark = watermark_of(store)
    assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(30, 14)]
    assert (watermark.next_offset, watermark.holes) == (40, ())


def test_a_clean_election_between_lost_segments_moves_no_watermark_back(
    disk: BrokerDisk, store: MemoryObjectStore
) -> None:
    for base in (10, 20, 30):
        (disk.folder / f"{base:020d}.log").unlink()
    (disk.folder / f"{30:020d}.log").touch()  # the active segment
    run_once(disk.log_dir, store)
    assert holes_of(store) == [(10, 29)]
    disk.lead(1)
    disk.grow(3)
    for base in (0, 30, 40):
        (disk.folder / f"{base:020d}.log").unlink()
    assert run_once(disk.log_dir, store) == []
    watermark = watermark_of(store)
    assert (watermark.moved_back, watermark.next_offset, holes_of(store)) == ((), 60, [(10, 49)])


@pytest.mark.parametrize("has_hole", [False, True])
def test_a_leader_that_wrote_nothing_moves_no_watermark_back(
    disk: BrokerDisk, store: MemoryObjectStore, has_hole: bool
) -> None:
    """The next leader's log does not have the epoch of the leader that has moved the watermark last."""
    if has_hole:
        (disk.folder / f"{10:020d}.log").unlink()
    run_once(disk.log_dir, store)
    store.put(watermark_key("", disk.partition), watermark_of(store).behind(None, 30, 1, 2, 0).to_bytes())
    disk.lead(2)
    disk.grow(2)
    assert run_once(disk.log_dir, store) == []
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.leader_epoch, watermark.moved_back) == (50, 2, ())
    assert len(watermark.holes) == has_hole


@pytest.mark.parametrize("gone", [(0,), (1,), (3,), (0, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_deleted_stored_segments_contradict_no_log(
    disk: BrokerDisk, store: MemoryObjectStore, gone: tuple[int, ...]
) -> None:
    """Retention or a user has deleted segments from the store, after a hole. Then a leader is elected whose log does
    not have the epoch of the leader that has moved the watermark last.
    """
    disk.grow(2)
    (disk.folder / f"{10:020d}.log").unlink()
    run_once(disk.log_dir, store)
    before = watermark_of(store).behind(None, 50, 1, 2, 0)
    store.put(watermark_key("", disk.partition), before.to_bytes())
    segments = stored(store)
    prefixes = [segments[number].objects.main_path for number in gone]
    store.delete([info.key for info in store.list() if info.key.startswith(tuple(prefixes))])
    left = extents(store)
    disk.delete(4)
    disk.lead(2)
    disk.grow(2)
    assert run_once(disk.log_dir, store) == []
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.leader_epoch, watermark.moved_back) == (70, 2, ())
    assert watermark.holes == before.holes
    assert extents(store) == [*left, (50, 59), (60, 69)]


def test_a_broker_that_was_away_while_another_led_does_not_take_its_records_for_an_earlier_leaders(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """The first broker's old log ends before the second broker's epoch. The first broker's new checkpoint begins in the
    middle of this epoch. So neither shows where the epoch began.
    """
    first, second = BrokerDisk(tmp_path / "first"), BrokerDisk(tmp_path / "second")
    first.grow(3)
    with uploader_of(first.log_dir, store) as uploader:
        assert uploader.run_once() == []
        second.grow(3)
        second.lead(1)
        second.grow(5)
        assert run_once(second.log_dir, store) == []
        # The first broker leads again. By then, the leader's log begins after the end of the first broker's old log.
        shutil.rmtree(first.folder)
        first.bases, first.end, first.epochs = [], 60, ((1, 60),)
        first.grow(2)
        first.lead(2)
        first.grow(3)
        uploader.disk.touch(first.folder)
        uploader.sweep()
        for partition in uploader.disk.partitions:
            partition.progress.must_reload = True
        assert uploader.run_once() == []
        first.mark_deleted(3)
        first.grow(2)
        uploader.disk.touch(first.folder)
        assert uploader.run_once() == []
    assert watermark_of(store).holes == ()
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        rows = rows_of(read_records(manager, "events", 0, 0, 100))
    assert [row["offset"] for row in rows] == list(range(100))
    written_by = [int(row["key"].split()[0]) for row in rows]
    assert written_by == [0] * 30 + [1] * 50 + [2] * 20


def test_an_unclean_election_whose_beginning_retention_has_taken_is_found_in_the_batches(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """In the checkpoint, the new leader's epoch begins at the log's present start, long after the leader took over."""
    old, new = BrokerDisk(tmp_path / "old"), BrokerDisk(tmp_path / "new")
    old.grow(5)
    run_once(old.log_dir, store)
    new.grow()
    new.lead(7)
    new.grow(5)
    new.mark_deleted(4)
    assert new.epochs == ((7, 40),)
    run_once(new.log_dir, store)
    watermark = watermark_of(store)
    assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(40, 10)]
    assert (watermark.next_offset, watermark.holes) == (50, ())
    written = [segment.metadata for segment in stored(store) if segment.metadata.segment_leader_epochs[-1][0] == 7]
    extents_written = [(segment.start_offset, segment.end_offset) for segment in written]
    assert extents_written == [(10, 19), (20, 29), (30, 39), (40, 49)]


def test_a_deposed_leader_ships_nothing_more(disk: BrokerDisk, tmp_path: Path, store: MemoryObjectStore) -> None:
    run_once(disk.log_dir, store)
    ahead = watermark_of(store)
    store.put(watermark_key("", disk.partition), ahead.behind(None, 30, 7, 2, 0).to_bytes())
    disk.grow()
    (reason,) = run_once(disk.log_dir, store)
    assert "a leader of epoch 7 has moved the upload watermark" in reason
    assert len(extents(store)) == 3


def test_another_replica_goes_on_from_its_own_borders(tmp_path: Path, store: MemoryObjectStore) -> None:
    first = BrokerDisk(tmp_path / "1", segments=3)
    run_once(first.log_dir, store)
    second = BrokerDisk(tmp_path / "2", end=5, segments=4)
    run_once(second.log_dir, store)
    assert extents(store) == [(0, 9), (10, 19), (15, 24), (25, 34)]
    assert watermark_of(store).next_offset == 35


def test_a_topic_made_again_is_another_one(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store) as uploader:
        assert uploader.run_once() == []
        for path in disk.folder.iterdir():
            path.unlink()
        again = BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), "events", 0), segments=2)
        uploader.disk.touch(again.folder)
        assert uploader.run_once() == []
    assert extents(store, again.partition) == [(0, 9)]
    assert watermark_of(store, again.partition).next_offset == 10


def test_a_second_uploader_of_the_same_disk_is_refused(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store), pytest.raises(ConfigError, match="another uploader ships from"):
        uploader_of(disk.log_dir, store)
    uploader_of(disk.log_dir, store).close()


def test_a_plan_says_what_would_be_shipped_and_writes_nothing(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store) as uploader:
        planned = uploader.plan()
        assert [one.base_offset for one in planned] == [0, 10, 20]
        assert {(one.topic, one.partition, one.status) for one in planned} == {("events", 0, "planned")}
    assert list(store.list()) == []
    run_once(disk.log_dir, store)
    disk.grow()
    with uploader_of(disk.log_dir, store) as uploader:
        assert [(one.base_offset, one.last_offset) for one in uploader.plan()] == [(30, 39)]


def test_a_run_that_takes_long_asks_for_the_leaders_again(tmp_path: Path) -> None:
    """A leader's answer is valid for half a minute. Each operation of this store takes three seconds."""
    disk, inner = BrokerDisk(tmp_path / "logs", segments=20), MemoryObjectStore()
    store = FaultyStore(inner)
    with uploader_of(disk.log_dir, store, None, lambda: 3.0 * len(store.operations)) as uploader:
        assert uploader.run_once() == []
    assert len(extents(inner)) == 19
    assert len(store.operations) > 20
