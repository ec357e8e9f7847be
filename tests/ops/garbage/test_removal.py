"""Tests of removing segments by topic, partition, offset or time: only whole ones, oldest first, none under a hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ops.tools import assert_no_half, content, die_at
from tests.support.stores.catalog_stores import TOPIC_ID, MadeSegment, partition_of, run_of
from tests.support.stores.doubles import FaultyStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptDataError,
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from tieredstore.format.keys import Suffix
from tieredstore.model import AtTime
from tieredstore.ops.garbage.collection import delete_objects
from tieredstore.ops.garbage.holds import Holds, LegalHold, list_holds, place_hold, release_hold
from tieredstore.ops.garbage.removal import Removal
from tieredstore.ops.listing import ListedSegment
from tieredstore.ops.steps import Outcome, Step

FIRST, SECOND = partition_of(), partition_of(partition=1)


@pytest.fixture
def store() -> MemoryObjectStore:
    return filled(MemoryObjectStore())


def filled(store: MemoryObjectStore) -> MemoryObjectStore:
    """Store segments of ten offsets in two partitions. The time of a segment is its last offset."""
    for segment in [*run_of(4, FIRST), *run_of(2, SECOND)]:
        segment.put(store)
    return store


def run(
    store: ObjectStore, stop: int | AtTime | None = None, scope: Scope | None = None, *, dry_run: bool = False
) -> list[Step[ListedSegment]]:
    listed = list_segments(store, "", scope or Scope("events"))
    return list(Removal(store, "", dry_run=dry_run, parallel=2).run(listed, stop))


def rows_of(steps: Iterable[Step[ListedSegment]]) -> list[tuple[int, int, str]]:
    return [(step.item.partition.partition, step.item.objects.start_offset, step.outcome.value) for step in steps]


def left(store: ObjectStore) -> list[tuple[int, int]]:
    return [
        (objects.segment_id.topic_id_partition.partition, objects.start_offset)
        for objects in list_segments(store)
        if not objects.missing
    ]


def assert_completes(store: ObjectStore) -> None:
    """Assert that a failure never leaves a partial segment visible, and that the next run leaves nothing."""
    assert_no_half(store)
    run(store)
    assert left(store) == []


def test_a_topic_goes_and_a_dry_run_says_exactly_that(store: MemoryObjectStore) -> None:
    MadeSegment(partition_of("events-2"), 0, 9).put(store)
    planned = run(store, dry_run=True)
    assert len(left(store)) == 7
    assert run(store) == planned
    assert {step.outcome for step in planned} == {Outcome.DELETED}
    assert left(store) == [(0, 0)]
    assert len(list(store.list())) == 3


@pytest.mark.parametrize(
    ("before", "starts"),
    [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (39, [0, 10, 20]), (40, [0, 10, 20, 30])],
)
@pytest.mark.parametrize("by", ["offset", "time"])
def test_whole_segments_before_a_place_go(store: MemoryObjectStore, before: int, starts: list[int], by: str) -> None:
    place = before if by == "offset" else AtTime(before)
    steps = run(store, place, Scope("events", TOPIC_ID, 0))
    assert rows_of(steps) == [(0, start, "deleted") for start in starts]
    assert left(store) == [(0, start) for start in (0, 10, 20, 30) if start not in starts] + [(1, 0), (1, 10)]


@pytest.mark.parametrize("offset", [41, 1_795_428_000, 1_795_428_000_000, 2**63 - 1])
def test_an_offset_beyond_the_end_deletes_nothing(store: MemoryObjectStore, offset: int) -> None:
    with pytest.raises(ConfigError, match="is written"):
        run(store, offset, Scope("events", TOPIC_ID, 0))
    assert len(left(store)) == 6
    # If the end of the log is unknown, only the segments before it are removed.
    store.put(MadeSegment(FIRST, 30, 39).key(), b"{")
    if offset < 10**12:
        steps = run(store, offset, Scope("events", TOPIC_ID, 0))
        assert rows_of(steps) == [(0, 0, "deleted"), (0, 10, "deleted"), (0, 20, "deleted"), (0, 30, "unknown")]


def test_each_partition_ends_at_its_first_segment_that_stays(store: MemoryObjectStore) -> None:
    """A later segment with older records stays too, so that the log has no hole. Kafka does the same."""
    run(store, scope=Scope("events", TOPIC_ID, 0))
    young = MadeSegment(FIRST, 10, 19)
    young.put(store)
    store.put(young.key(), young.manifest(max_timestamp_ms=99))
    MadeSegment(FIRST, 0, 9).put(store)
    MadeSegment(FIRST, 20, 29).put(store)
    assert rows_of(run(store, AtTime(40))) == [
        (0, 0, "deleted"),
        (1, 0, "deleted"),
        (1, 10, "deleted"),
    ]


def test_where_an_end_is_not_known_a_bounded_removal_stops_and_another_goes_on(store: MemoryObjectStore) -> None:
    store.put(MadeSegment(FIRST, 10, 19).key(), b"{")
    blank = MadeSegment(SECOND, 0, 9)
    store.put(blank.key(), blank.manifest(max_timestamp_ms=-1))
    steps = run(store, AtTime(1000))
    assert rows_of(steps) == [(0, 0, "deleted"), (0, 10, "unknown"), (1, 0, "unknown")]
    assert "not JSON" in str(steps[1].reason)
    assert steps[2].reason == "the manifest lacks the greatest timestamp"
    assert {step.outcome for step in run(store)} == {Outcome.DELETED}
    assert list(store.list()) == []


def test_an_archived_manifest_stops_a_bounded_removal_and_no_other(store: MemoryObjectStore) -> None:
    archiving = ScriptedStore(store).on("get", MadeSegment(FIRST, 10, 19).key(), ObjectArchivedError("restore it"))
    *_, kept = run(archiving, 30, Scope("events", TOPIC_ID, 0))
    assert (kept.item.objects.start_offset, kept.outcome, kept.reason) == (10, Outcome.UNKNOWN, "restore it")
    assert left(store)[:3] == [(0, 10), (0, 20), (0, 30)]
    assert {step.outcome for step in run(archiving)} == {Outcome.DELETED}
    assert left(store) == []


def test_a_leftover_may_be_a_copy_under_way(store: MemoryObjectStore) -> None:
    store.delete([MadeSegment(FIRST, 10, 19).key()])
    assert (0, 10, "leftover") in rows_of(run(store))
    assert len(list(store.list())) == 2


HOLDS = [
    (LegalHold("h"), {0, 10, 20, 30}),
    (LegalHold("h", "other"), set[int]()),
    (LegalHold("h", "events", 1), set[int]()),
    (LegalHold("h", "events", 0, 19, 20), {10, 20}),
    (LegalHold("h", "events", None, 15), {10, 20, 30}),
    (LegalHold("h", "events", last_offset=9), {0}),
]


@pytest.mark.parametrize(("hold", "held"), HOLDS)
def test_segments_under_a_hold_stay(store: MemoryObjectStore, hold: LegalHold, held: set[int]) -> None:
    place_hold(store, "", hold)
    steps = run(store, scope=Scope("events", TOPIC_ID, 0))
    assert {start for _, start, outcome in rows_of(steps) if outcome == "held"} == held
    assert {start for partition, start in left(store) if partition == 0} == held


@pytest.mark.parametrize("stop", [None, 20])
def test_a_hold_protects_offsets_after_a_wrong_end_in_the_manifest(store: MemoryObjectStore, stop: int | None) -> None:
    """No checksum protects the end in a manifest."""
    segment = MadeSegment(FIRST, 10, 19)
    store.put(segment.key(), segment.manifest(end_offset=12))
    place_hold(store, "", LegalHold("h", "events", 0, 15, 16))
    steps = run(store, stop, Scope("events", TOPIC_ID, 0))
    assert [start for _, start, outcome in rows_of(steps) if outcome == "held"] == [10]


def test_a_hold_protects_offsets_after_a_wrong_end_in_the_last_manifest(store: MemoryObjectStore) -> None:
    segment = MadeSegment(FIRST, 30, 39)
    store.put(segment.key(), segment.manifest(end_offset=32))
    place_hold(store, "", LegalHold("h", "events", 0, 35, 36))
    steps = run(store, scope=Scope("events", TOPIC_ID, 0))
    assert [start for _, start, outcome in rows_of(steps) if outcome == "held"] == [30]


@pytest.mark.parametrize(("hold", "outcome"), [(15, "held"), (20, "deleted")])
def test_a_hold_protects_a_segment_that_is_listed_alone_up_to_the_next(
    store: MemoryObjectStore, hold: int, outcome: str
) -> None:
    segment = MadeSegment(FIRST, 10, 19)
    store.put(segment.key(), segment.manifest(end_offset=12))
    place_hold(store, "", LegalHold("h", "events", 0, hold, hold))
    listed = (one for one in list_segments(store) if one.segment_id == segment.metadata.remote_log_segment_id)
    assert rows_of(Removal(store, "", dry_run=True).run(listed, None, 20)) == [(0, 10, outcome)]


def test_a_hold_protects_each_of_two_copies_with_a_wrong_end(store: MemoryObjectStore) -> None:
    """A leader that failed and its successor have uploaded the same offsets."""
    for segment in (MadeSegment(FIRST, 10, 19), MadeSegment(FIRST, 10, 19, number=1)):
        segment.put(store)
        store.put(segment.key(), segment.manifest(end_offset=12))
    place_hold(store, "", LegalHold("h", "events", 0, 15, 16))
    steps = run(store, scope=Scope("events", TOPIC_ID, 0))
    assert [start for _, start, outcome in rows_of(steps) if outcome == "held"] == [10, 10]


@pytest.mark.parametrize("dry_run", [True, False])
def test_behind_what_is_held_nothing_goes_that_would_leave_a_hole(store: MemoryObjectStore, *, dry_run: bool) -> None:
    """Each partition loses its oldest segments up to the first that stays, as with Kafka's retention."""
    place_hold(store, "", LegalHold("case", "events", 0, 10, 19))
    steps = run(store, AtTime(1000), dry_run=dry_run)
    assert rows_of(steps) == [
        (0, 0, "deleted"), (0, 10, "held"), (1, 0, "deleted"), (1, 10, "deleted"),
    ]  # fmt: skip
    if not dry_run:
        assert left(store) == [(0, 10), (0, 20), (0, 30)]


def test_a_hold_that_comes_meanwhile_counts_after_ten_seconds(store: MemoryObjectStore) -> None:
    now_s = 0.0
    holds = Holds(store, "", lambda: now_s)
    assert holds.on(FIRST, 0, 9) is None
    place_hold(store, "", LegalHold("late", "events"))
    now_s = 9.9
    assert holds.on(FIRST, 0, 9) is None
    now_s = 10.0
    hold = holds.on(FIRST, 0, 9)
    assert hold is not None
    assert hold.name == "late"


def test_a_hold_that_comes_while_the_machine_is_suspended_counts(
    store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, suspended_s = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + suspended_s)
    holds = Holds(store, "")
    assert holds.on(FIRST, 0, 9) is None
    place_hold(store, "", LegalHold("late", "events"))
    suspended_s = 3600.0
    assert holds.on(FIRST, 0, 9) is not None


def test_holds_are_kept_in_the_bucket(store: MemoryObjectStore) -> None:
    hold = LegalHold("case-17", "events", 0, 5, None, "case 17")
    place_hold(store, "", hold)
    assert list(list_holds(store, "")) == [hold]
    with pytest.raises(PreconditionFailedError, match="'case-17' already"):
        place_hold(store, "", LegalHold("case-17"))
    release_hold(store, "", "case-17")
    assert list(list_holds(store, "")) == []
    with pytest.raises(ObjectNotFoundError):
        release_hold(store, "", "case-17")


def test_an_object_that_no_command_can_release_is_to_be_deleted(store: MemoryObjectStore) -> None:
    """Someone has copied a hold by hand."""
    place_hold(store, "", LegalHold("case", "other"))
    copy = "!tieredstore/holds/copy of case.json"
    store.put(copy, store.get("!tieredstore/holds/case.json"))
    with pytest.raises(CorruptDataError, match=rf"so nothing is deleted: delete that object \({copy}: "):
        run(store)
    store.delete([copy])
    run(store)
    assert left(store) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'{"version":1,"name": "h"}',
        b'{"version":1,"name":"x","topic":null,"partition":null,"first_offset":null,"last_offset":null,"reason":""}',
        b'{"version":1,"name":"h","topic":7,"partition":null,"first_offset":null,"last_offset":null,"reason":""}',
        b'{"version":1,"name":"h","topic":"t","partition":true,"first_offset":null,"last_offset":null,"reason":""}',
        b'{"version":1,"name":"h","topic":"t","partition":null,"first_offset":9,"last_offset":3,"reason":""}',
        b"[" * 100_000,
        b"x" * 70_000,
    ],
)
def test_a_damaged_hold_stops_everything(store: MemoryObjectStore, raw: bytes) -> None:
    store.put("!tieredstore/holds/h.json", raw)
    with pytest.raises(CorruptDataError, match="legal hold 'h' cannot be read, so nothing is deleted"):
        run(store)
    assert len(left(store)) == 6
    release_hold(store, "", "h")
    run(store)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x" * 101])
def test_a_hold_s_name_is_plain(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name of a hold"):
        LegalHold(name)
    with pytest.raises(ConfigError, match="name the topic too"):
        LegalHold("h", partition=1)


def test_a_refused_removal_is_a_step_and_the_rest_is_removed(store: MemoryObjectStore) -> None:
    locked = ScriptedStore(store).on("delete", "*/0/*", AccessDeniedError("locked"))
    assert {outcome for partition, _, outcome in rows_of(run(locked)) if partition == 0} == {"refused"}
    assert {partition for partition, _ in left(store)} == {0}


def test_behind_what_is_refused_nothing_goes_that_would_leave_a_hole(store: MemoryObjectStore) -> None:
    locked = ScriptedStore(store).on("delete", "*/0/*0010-*", AccessDeniedError("locked"))
    steps = run(locked, AtTime(30), Scope("events", TOPIC_ID, 0))
    assert rows_of(steps) == [(0, 0, "deleted"), (0, 10, "refused")]
    assert [start for partition, start in left(store) if partition == 0] == [10, 20, 30]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_a_bounded_removal_leaves_no_hole(moment: Moment) -> None:
    for _, store, faulty in OperationSweep(
        lambda: filled(MemoryObjectStore()), lambda inner: run(inner, AtTime(35))
    ).fail(moment):
        with suppress(StoreUnavailableError):
            run(faulty, AtTime(35))
        for number, starts in ((0, [0, 10, 20, 30]), (1, [0, 10])):
            stay = [start for partition, start in left(store) if partition == number]
            assert stay == starts[len(starts) - len(stay) :]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_no_half_is_visible_and_a_second_run_goes_on(moment: Moment) -> None:
    for _, store, faulty in OperationSweep(lambda: filled(MemoryObjectStore()), run).fail(moment):
        with suppress(StoreUnavailableError):
            run(faulty)
        assert_completes(store)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_operation_no_half_is_visible_and_a_second_run_goes_on(moment: Moment, tmp_path: Path) -> None:
    for number in range(8):
        (folder := tmp_path / str(number)).mkdir()
        store = FilesystemObjectStore(folder)
        for segment in run_of(2, FIRST):
            segment.put(store)
        die_at(store, number, moment, run)
        assert_completes(store)


@pytest.mark.parametrize("number", [0, 1])
def test_the_manifest_goes_first_wherever_the_store_fails(number: int) -> None:
    segment, inner = MadeSegment(FIRST, 0, 9), MemoryObjectStore()
    segment.put(inner)
    (objects,) = list_segments(inner)
    with pytest.raises(StoreUnavailableError, match="told to fail"):
        delete_objects(FaultyStore(inner, number), objects)
    suffixes = list(Suffix) if number == 0 else [Suffix.LOG, Suffix.INDEXES]
    assert content(inner).keys() == {segment.key(suffix) for suffix in suffixes}


def test_a_copy_that_commits_while_its_leftover_is_removed_leaves_no_half(store: MemoryObjectStore) -> None:
    segment = MadeSegment(FIRST, 40, 49)
    segment.put(store)
    store.delete([segment.key()])
    committing = ScriptedStore(store).on(
        "list", "events*", lambda _: store.put(segment.key(), segment.manifest()), moment="after", times=1
    )
    listed = [objects for objects in list_segments(committing, "", Scope("events")) if objects.start_offset == 40]
    assert [objects.missing for objects in listed] == [(Suffix.MANIFEST,)]
    (step,) = Removal(committing, "", leftovers_too=True, dry_run=False).run(listed, None)
    assert step.outcome is Outcome.DELETED
    assert_no_half(store)
    assert segment.key() not in content(store)


@pytest.mark.parametrize("absent", list(Suffix))
def test_the_remains_of_a_segment_are_removed(absent: Suffix) -> None:
    segment, store = MadeSegment(FIRST, 0, 9), MemoryObjectStore()
    segment.put(store)
    store.delete([segment.key(absent)])
    (objects,) = list_segments(store)
    delete_objects(store, objects)
    assert content(store) == {}
