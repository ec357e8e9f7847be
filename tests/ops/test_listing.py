"""Tests of listings with manifests: order, missing or damaged objects, and sums."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle

import pytest

from tests.support.stores.catalog_stores import OTHER_ID, MadeSegment, partition_of, run_of
from tests.support.stores.doubles import FaultyStore, ScriptedStore
from tieredstore.api.rows import segment_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import ConfigError, ManifestCorruptError, ObjectArchivedError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.model import AtTime
from tieredstore.ops.cost.usage import Usage
from tieredstore.ops.listing import HeldOffsets, ListedSegment, SegmentTotals, load_listing, within

EVENTS = partition_of()


def listing(store: MemoryObjectStore | FaultyStore) -> list[ListedSegment]:
    return list(load_listing(store, list_segments(store)))


def test_segments_are_ordered_by_number_and_not_by_text() -> None:
    store = MemoryObjectStore()
    partitions = [partition_of("a", 10), partition_of("a", 9), partition_of("a-b"), partition_of("a", 9, OTHER_ID)]
    for partition in partitions:
        for segment in run_of(2, partition):
            segment.put(store)
    order = [
        (
            listed.partition.topic,
            str(listed.partition.topic_id),
            listed.partition.partition,
            listed.objects.start_offset,
        )
        for listed in listing(store)
    ]
    assert len(order) == 8
    assert order == sorted(order)


@pytest.mark.parametrize("suffix", list(Suffix))
def test_a_segment_that_lacks_an_object_is_listed_and_not_whole(suffix: Suffix) -> None:
    store = MemoryObjectStore()
    first, second = run_of(2, EVENTS)
    first.put(store)
    second.put(store)
    store.delete([first.key(suffix)])
    lacking, whole = listing(store)
    assert (lacking.whole, lacking.objects.missing) == (None, (suffix,))
    assert (lacking.loaded is None, lacking.max_timestamp_ms) == (
        (True, None) if suffix is Suffix.MANIFEST else (False, 9)
    )
    assert whole.whole is whole.loaded


def test_a_damaged_manifest_stands_in_the_segments_place() -> None:
    store = MemoryObjectStore()
    (segment,) = run_of(1, EVENTS)
    segment.put(store)
    store.put(segment.key(), b"{}")
    (listed,) = listing(store)
    assert isinstance(listed.loaded, ManifestCorruptError)
    assert (listed.whole, listed.max_timestamp_ms) == (None, None)


def test_an_archived_manifest_stands_in_the_segments_place() -> None:
    store = MemoryObjectStore()
    first, second = (segment.put(store) for segment in run_of(2, EVENTS))
    archived, readable = load_listing(
        ScriptedStore(store).on("get", first.key(), ObjectArchivedError("restore it")), list_segments(store)
    )
    assert (str(archived.damage), archived.whole, archived.max_timestamp_ms) == ("restore it", None, None)
    assert (readable.damage, readable.objects.start_offset) == (None, second.start)
    usage = Usage()
    usage.add(archived)
    assert (usage.segments, usage.damaged, usage.leftovers) == (1, 1, 0)
    segment = segment_of(archived, None)
    for each in (segment, pickle.loads(pickle.dumps(segment))):
        with pytest.raises(ObjectArchivedError, match=r"at offset 0 cannot be read: restore it$"):
            each.open()


def test_a_segment_that_is_deleted_meanwhile_is_left_out() -> None:
    store = MemoryObjectStore()
    first, second = run_of(2, EVENTS)
    first.put(store)
    second.put(store)
    objects = list(list_segments(store))
    store.delete([first.key()])
    assert [listed.objects.start_offset for listed in load_listing(store, objects)] == [10]


def test_a_store_that_fails_ends_the_listing() -> None:
    store = FaultyStore(MemoryObjectStore(), lambda operation: operation.name == "get")
    for segment in run_of(3, EVENTS):
        segment.put(store)
    with pytest.raises(StoreUnavailableError):
        listing(store)


def test_sums_over_segments() -> None:
    store = MemoryObjectStore()
    segments = [segment.put(store) for segment in run_of(3, EVENTS)]
    unknown = MadeSegment(EVENTS, 30, 39).put(store)
    store.put(unknown.key(), unknown.manifest(max_timestamp_ms=-1, end_offset=-1))
    assert SegmentTotals().oldest_ms is None
    totals = SegmentTotals()
    for listed in listing(store):
        assert listed.whole is not None
        totals.add(listed.whole)
    assert (totals.segments, totals.size, totals.oldest_ms, totals.newest_ms) == (4, 4000, 9, 29)
    assert totals.stored_size == sum(info.size for info in store.list())
    assert len(segments) == 3


@pytest.mark.parametrize(
    ("segments", "spans", "holes"),
    [
        ([], [], []),
        ([(0, 9), (10, 19)], [(0, 19)], [None, None]),
        ([(5, 9), (15, 19)], [(5, 9), (15, 19)], [None, (10, 14)]),
        ([(0, 30), (10, 19), (40, 49)], [(0, 30), (40, 49)], [None, None, (31, 39)]),
        ([(0, 9), (0, 19), (20, 20)], [(0, 20)], [None, None, None]),
        ([(0, -1), (10, 19), (30, 39)], [(0, 19), (30, 39)], [None, None, (20, 29)]),
        ([(0, 9), (10, -1), (20, -1), (30, 39)], [(0, 39)], [None, None, None, None]),
        ([(0, 30), (10, -1), (50, 59)], [(0, 59)], [None, None, None]),
        ([(0, -1)], [(0, 0)], [None]),
    ],
)
def test_holes_are_between_the_ends_that_are_known(
    segments: list[tuple[int, int]], spans: list[tuple[int, int]], holes: list[tuple[int, int] | None]
) -> None:
    store = MemoryObjectStore()
    for number, (start, end) in enumerate(segments):
        segment = MadeSegment(EVENTS, start, max(start, end), number=number).put(store)
        store.put(segment.key(), segment.manifest(end_offset=end))
    held = HeldOffsets()
    loaded = [load_segment(store, objects) for objects in list_segments(store)]
    assert [held.add(segment.metadata) for segment in loaded] == holes
    assert held.spans == spans


@pytest.mark.parametrize(
    ("start", "stop", "bases"),
    [
        (None, None, [0, 10, 20, 30, 0, 10]),
        (15, None, [10, 20, 30, 10]),
        (19, 20, [10, 10]),
        (20, 21, [20]),
        (None, 10, [0, 0]),
        (39, None, [30]),
        # The time of a made segment's newest record is its last offset.
        (AtTime(15), None, [10, 20, 30, 10]),
        (AtTime(19), AtTime(20), [10, 20, 10]),
        (None, AtTime(5), [0, 0]),
        (AtTime(99), None, []),
    ],
)
def test_a_window_is_of_the_segments_that_may_hold_its_records(
    start: int | AtTime | None, stop: int | AtTime | None, bases: list[int]
) -> None:
    store = MemoryObjectStore()
    for segment in [*run_of(4, partition_of()), *run_of(2, partition_of(partition=1))]:
        segment.put(store)
    listed = within(load_listing(store, list_segments(store)), start, stop)
    assert [one.objects.start_offset for one in listed] == bases


def test_an_offset_beyond_all_ends_is_refused_once_all_was_seen() -> None:
    store = MemoryObjectStore()
    for segment in run_of(2, partition_of()):
        segment.put(store)
    with pytest.raises(ConfigError, match=r"offset 99 is beyond the end of events-0 \(20\)"):
        list(within(load_listing(store, list_segments(store)), 99, None))


@pytest.mark.parametrize(("damaged", "is_refused"), [(0, True), (1, False)])
def test_an_offset_may_be_in_a_last_segment_without_a_known_end(damaged: int, *, is_refused: bool) -> None:
    store = MemoryObjectStore()
    segments = [segment.put(store) for segment in run_of(2, partition_of())]
    run_of(1, partition_of(partition=1))[0].put(store)
    store.put(segments[damaged].key(), b"{}")
    listed = within(load_listing(store, list_segments(store)), 25, None)
    with pytest.raises(ConfigError, match="beyond the end") if is_refused else contextlib.nullcontext():
        assert [one.objects.start_offset for one in listed] == [10]


def test_a_segment_without_a_known_end_may_be_in_the_window() -> None:
    store = MemoryObjectStore()
    for segment in run_of(3, partition_of()):
        segment.put(store)
    store.put(run_of(1, partition_of())[0].key(), b"{}")
    for start in (15, AtTime(15)):
        listed = within(load_listing(store, list_segments(store)), start, None)
        assert [one.objects.start_offset for one in listed] == [0, 10, 20]


def test_a_segment_without_known_times_may_have_the_first_record_of_a_window() -> None:
    """The window then has all later segments too. Without them, it would seem to have a gap."""
    store = MemoryObjectStore()
    unknown, *_ = [segment.put(store) for segment in run_of(3, partition_of())]
    store.put(unknown.key(), unknown.manifest(max_timestamp_ms=-1))
    listed = list(load_listing(store, list_segments(store)))
    assert [one.objects.start_offset for one in within(listed, AtTime(25), None)] == [0, 10, 20]
    # An upload that failed shows nothing.
    store.delete([unknown.key()])
    listed = list(load_listing(store, list_segments(store)))
    assert [one.objects.start_offset for one in within(listed, AtTime(25), None)] == [0, 20]


def test_an_older_time_in_a_later_segment_does_not_end_a_window() -> None:
    """As in Kafka, a time is found at the first record with that time or a later one, whatever follows."""
    store = MemoryObjectStore()
    late = dataclasses.replace(MadeSegment(partition_of(), 0, 9), newest_ms=50)
    for segment in (late, *run_of(3, partition_of())[1:]):
        segment.put(store)
    listed = list(load_listing(store, list_segments(store)))
    assert [one.objects.start_offset for one in within(listed, AtTime(40), None)] == [0, 10, 20]
    assert [one.objects.start_offset for one in within(listed, None, AtTime(40))] == [0]
