"""Tests of ``rm`` and ``gc`` with the brokers' records. ``rm`` keeps recorded segments, and ``gc`` deletes those that
the brokers have forgotten.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.records.metadata_records import delete_record, segment_record, update_record
from tests.support.stores.catalog_stores import OTHER_ID, MadeSegment, partition_of, run_of
from tests.support.stores.stepped_actors import HOUR_MS, AgingStore, WorldClock
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.metadata_topic import PartitionDelete, PartitionDeleteState, SegmentState, SegmentUpdate
from tieredstore.cli.bucket.rm import WORDS
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.model import RemoteLogSegmentId, Uuid
from tieredstore.ops.brokers import BrokersView
from tieredstore.ops.garbage.collection import Garbage, GarbageCollection
from tieredstore.ops.garbage.holds import LegalHold, place_hold
from tieredstore.ops.garbage.removal import Removal
from tieredstore.ops.listing import ListedSegment
from tieredstore.ops.steps import Outcome, Step

MADE = run_of(5, partition_of())
STATES = [
    SegmentState.COPY_SEGMENT_FINISHED,
    SegmentState.DELETE_SEGMENT_FINISHED,
    SegmentState.COPY_SEGMENT_STARTED,
    SegmentState.DELETE_SEGMENT_STARTED,
]
"""The states of the first four segments. The brokers have no record of the last one."""


def record_of(segment: MadeSegment, state: SegmentState) -> bytes:
    if state is SegmentState.COPY_SEGMENT_STARTED:
        return segment_record(segment.metadata)
    return update_record(SegmentUpdate(segment.metadata.remote_log_segment_id, 1, 5, None, state))


def records() -> list[bytes]:
    values = [record_of(segment, SegmentState.COPY_SEGMENT_STARTED) for segment in MADE[:4]]
    return values + [record_of(segment, state) for segment, state in zip(MADE, STATES, strict=False)]


class Topic:
    """A metadata topic. The next reading returns ``values``. Its view reads before ``at_once`` items of a listing."""

    at_once = 500

    def __init__(self, values: Iterable[bytes]) -> None:
        self.values = list(values)

    def read_on(self) -> Iterator[tuple[int, int, bytes]]:
        values, self.values = self.values, []
        return ((0, offset, value) for offset, value in enumerate(values))

    def view(self) -> BrokersView:
        return BrokersView(self.read_on, at_once=self.at_once)


@pytest.fixture
def topic() -> Topic:
    return Topic(records())


def remove(
    store: AgingStore, topic: Topic, stop: int | None = None, *, force: bool = False
) -> list[Step[ListedSegment]]:
    with topic.view() as brokers:
        listed = list_segments(store, "", Scope("events"))
        return list(Removal(store, "", brokers=brokers, force=force, dry_run=False, parallel=2).run(listed, stop))


def outcomes(steps: Iterable[Step[ListedSegment]]) -> list[str]:
    return [step.outcome.value for step in steps]


def test_rm_leaves_what_the_brokers_list(topic: Topic) -> None:
    store = aged()
    steps = remove(store, topic)
    assert outcomes(steps) == ["listed", "deleted", "listed", "listed", "deleted"]
    assert "the brokers list the segment" in str(steps[0].reason)
    assert [objects.start_offset for objects in list_segments(store)] == [0, 20, 30]


def test_rm_of_the_oldest_ends_at_what_is_listed(topic: Topic) -> None:
    store = aged()
    assert outcomes(remove(store, topic, 40)) == ["listed"]
    assert len(list(list_segments(store))) == len(MADE)


def test_rm_takes_by_force_what_is_listed(topic: Topic) -> None:
    store = aged()
    steps = remove(store, topic, force=True)
    assert outcomes(steps) == ["deleted"] * len(MADE)
    assert [step.reason is not None for step in steps] == [True, False, True, True, False]
    assert list(list_segments(store)) == []


def test_of_a_deleted_topic_nothing_is_listed(topic: Topic) -> None:
    mark = PartitionDelete(MADE[0].where, 1, 5, PartitionDeleteState.DELETE_PARTITION_MARKED)
    topic.values.append(delete_record(mark))
    assert outcomes(remove(aged(), topic)) == ["deleted"] * len(MADE)


@pytest.mark.parametrize(
    ("moves", "state"),
    [
        ("CFC", SegmentState.COPY_SEGMENT_FINISHED),
        ("CFDF", SegmentState.DELETE_SEGMENT_STARTED),
        ("CFDXD", SegmentState.DELETE_SEGMENT_FINISHED),
        ("F", None),
    ],
)
def test_records_that_come_twice_or_late_change_nothing(moves: str, state: SegmentState | None) -> None:
    states = dict(zip("CFDX", SegmentState, strict=True))
    topic = Topic(record_of(MADE[0], states[move]) for move in moves)
    with topic.view() as brokers:
        assert list(brokers.read_behind(["seen"])) == ["seen"]
        assert brokers.state_of(MADE[0].metadata.remote_log_segment_id) is state


@pytest.mark.parametrize("tool", ["rm", "gc"])
@pytest.mark.parametrize("copied_before", range(0, 21, 4))
def test_segments_copied_during_the_listing_stay(
    tool: str, copied_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the listing runs, a broker records that it copies a segment, copies it, and records the end. The new
    objects are old enough to be garbage.
    """
    many = run_of(20, partition_of())
    store, topic = aged(segments=many), Topic(record_of(segment, SegmentState.COPY_SEGMENT_STARTED) for segment in many)
    topic.at_once = 2
    new = run_of(1, partition_of("zebras"))[0]

    def list_slowly(*arguments: Any) -> Iterator[SegmentObjects]:
        before = list(list_segments(*arguments))
        for number, objects in enumerate([*before, None]):
            if number == copied_before:
                topic.values += [record_of(new, SegmentState.COPY_SEGMENT_STARTED)]
                store.clock.now_ms -= 25 * HOUR_MS
                new.put(store)
                store.clock.now_ms += 25 * HOUR_MS
                topic.values += [record_of(new, SegmentState.COPY_SEGMENT_FINISHED)]
                before += list(list_segments(store))[-1:]
            if objects is not None:
                yield objects
        yield before[-1]

    if tool == "gc":
        monkeypatch.setattr("tieredstore.ops.garbage.collection.list_segments", list_slowly)
        collect(store, topic, unknown_too=True)
    else:
        with topic.view() as brokers:
            listed = list_slowly(store, "", Scope())
            list(Removal(store, "", brokers=brokers, dry_run=False, parallel=1).run(listed, None))
    assert list(list_segments(store))[-1].segment_id == new.metadata.remote_log_segment_id


@pytest.mark.parametrize("hours", [0, 23, 25])
def test_segments_that_no_record_names_are_deleted_once_they_are_old(hours: int) -> None:
    """The topic that was read may be behind, or be another cluster's. So a young segment without a record stays."""
    store, silent = aged(hours), Topic([])
    assert set(outcomes(remove(store, silent))) == {"young" if hours < 24 else "deleted"}
    assert len(list(list_segments(store))) == (len(MADE) if hours < 24 else 0)
    young = aged(0)
    assert outcomes(remove(young, silent, 10)) == ["young"]
    assert set(outcomes(remove(young, silent, force=True))) == {"deleted"}


def test_a_store_that_does_not_tell_its_time_is_refused(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    store = aged()
    monkeypatch.setattr(store, "now_ms", lambda: None)
    with pytest.raises(ConfigError, match="has no clock"):
        remove(store, topic)


def test_where_a_record_cannot_be_read_nothing_is_deleted(topic: Topic) -> None:
    topic.values.append(b"\1\x09\0")
    store = aged()
    with pytest.raises(CorruptDataError, match="offset 8 of __remote_log_metadata-0"):
        remove(store, topic)
    assert len(list(list_segments(store))) == len(MADE)
    topic.values = [b"\1\x09\0"]
    with pytest.raises(CorruptDataError):
        collect(aged(), topic)


def aged(hours: int = 25, segments: Sequence[MadeSegment] = MADE) -> AgingStore:
    world = AgingStore(WorldClock())
    for segment in segments:
        segment.put(world)
    world.clock.now_ms += hours * HOUR_MS
    return world


def collect(
    store: AgingStore, topic: Topic, *, unknown_too: bool = False, dry_run: bool = False
) -> list[Step[Garbage]]:
    with topic.view() as brokers:
        collection = GarbageCollection(
            store, "", min_age_ms=24 * HOUR_MS, upload_max_age_ms=12 * HOUR_MS,
            brokers=brokers, unknown_too=unknown_too, dry_run=dry_run, parallel=2,
        )  # fmt: skip
        return list(collection.run(Scope()))


def test_gc_takes_what_the_brokers_have_forgotten(topic: Topic) -> None:
    store = aged()
    steps = collect(store, topic)
    assert [(step.item.first_offset, step.outcome) for step in steps] == [
        (10, Outcome.DELETED),
        (20, Outcome.DELETED),
        (40, Outcome.UNKNOWN),
    ]
    assert [step.reason for step in steps] == [
        "the brokers have deleted the segment",
        "the brokers never finished the segment's copy",
        "the brokers' records do not name the segment",
    ]
    assert [objects.start_offset for objects in list_segments(store)] == [0, 30, 40]


def test_gc_takes_what_brokers_never_named_only_if_asked(topic: Topic) -> None:
    store = aged()
    collect(store, topic, unknown_too=True)
    assert [objects.start_offset for objects in list_segments(store)] == [0, 30]


@pytest.mark.parametrize("values", [[], [segment_record(MadeSegment(partition_of(topic_id=OTHER_ID), 0, 9).metadata)]])
def test_gc_never_takes_the_segments_of_another_cluster(values: list[bytes]) -> None:
    """Someone has named the wrong brokers, which may have a topic of the same name."""
    store = aged()
    steps = collect(store, Topic(values), unknown_too=True)
    assert {step.outcome for step in steps} == {Outcome.UNKNOWN}
    assert {step.reason for step in steps} == {
        "the brokers' records name no segment of its topic, so it may be of another cluster"
    }
    assert len(list(list_segments(store))) == len(MADE)


def test_gc_leaves_forgotten_segments_that_are_young_or_held_and_in_a_dry_run(topic: Topic) -> None:
    assert {step.outcome for step in collect(aged(23), topic)} == {Outcome.YOUNG}
    store = aged()
    topic.values = records()
    assert Outcome.DELETED in {step.outcome for step in collect(store, topic, dry_run=True)}
    assert len(list(list_segments(store))) == len(MADE)
    place_hold(store, "", LegalHold("case", topic="events"))
    topic.values = records()
    assert {step.outcome for step in collect(store, topic)} == {Outcome.HELD, Outcome.UNKNOWN}
    assert len(list(list_segments(store))) == len(MADE)


def test_records_of_another_clusters_brokers_delete_nothing() -> None:
    """With a wrong address, no record is about a segment of this bucket."""
    store = aged()
    other = run_of(1, partition_of("other"))[0]
    values = [record_of(other, SegmentState.COPY_SEGMENT_STARTED)]
    assert {step.outcome for step in collect(store, Topic(values))} == {Outcome.UNKNOWN}
    assert len(list(list_segments(store))) == len(MADE)


def test_a_full_disk_for_the_brokers_records_deletes_nothing(topic: Topic) -> None:
    """There are more records than memory takes."""
    where = replace(MADE[0].where, topic="x" * 249)
    for _ in range(8000):
        metadata = replace(MADE[0].metadata, remote_log_segment_id=RemoteLogSegmentId(where, Uuid.random()))
        topic.values.append(segment_record(metadata))
    store, before = aged(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"the brokers' records do not fit .*: free space, or set TMPDIR"):
            remove(store, topic)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(list(list_segments(store))) == len(MADE)


def test_the_outcomes_of_rm_are_those_that_its_page_lists() -> None:
    assert {Outcome.DELETED, *WORDS.left} == {
        "deleted", "leftover", "unknown", "held", "listed", "newer", "young", "refused",
    }  # fmt: skip
