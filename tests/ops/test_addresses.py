"""Tests of addresses: a topic, a partition and a base offset have one segment, none, or several."""

from __future__ import annotations

import re

import pytest

from tests.support.stores.catalog_stores import OTHER_ID, MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, CorruptDataError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid
from tieredstore.ops.addresses import SegmentAddress, find_objects, find_segment

PREFIX = "a/"
EVENTS = partition_of()


@pytest.fixture
def store() -> ObjectStore:
    """Return a store with three segments of ten offsets."""
    store = MemoryObjectStore()
    for segment in run_of(3, EVENTS):
        segment.put(store, PREFIX)
    return store


def test_an_address_costs_one_listing_and_one_request(store: ObjectStore) -> None:
    counted = CountingStore(store)
    stored = find_segment(counted, PREFIX, SegmentAddress("events", 0, 10))
    assert (stored.metadata.start_offset, stored.metadata.end_offset) == (10, 19)
    assert dict(counted.requests) == {"list": 1, "get": 1}
    counted.reset()
    assert find_objects(counted, PREFIX, SegmentAddress("events", 0, 10)) == stored.objects
    assert dict(counted.requests) == {"list": 1}


def test_the_nearest_segments_are_named_for_an_address_without_one(store: ObjectStore) -> None:
    with pytest.raises(SegmentNotFoundError) as caught:
        find_segment(store, PREFIX, SegmentAddress("events", 0, 15))
    assert str(caught.value) == "no segment of events-0 begins at 15; nearest 0, 10, 20"


def test_near_are_two_below_and_two_above() -> None:
    store = MemoryObjectStore()
    for segment in run_of(9, EVENTS):
        segment.put(store)
    with pytest.raises(SegmentNotFoundError, match=r"; nearest 30, 40, 50, 60$"):
        find_segment(store, "", SegmentAddress("events", 0, 45))


def test_a_partition_that_is_not_there_is_named(store: ObjectStore) -> None:
    with pytest.raises(ResourceNotFoundError, match="topic 'events' has no partition 1 in the bucket, only 0"):
        find_segment(store, PREFIX, SegmentAddress("events", 1, 0))


def test_an_id_alone_names_a_segment(store: ObjectStore) -> None:
    segment_id = run_of(2, EVENTS)[1].metadata.remote_log_segment_id.id
    found = find_segment(store, PREFIX, SegmentAddress("events", 0, segment_id))
    assert found.metadata.start_offset == 10
    with pytest.raises(SegmentNotFoundError, match=r"^no segment of events-0 has the id AAECAwQFBgcICQoLDA0ODw$"):
        find_segment(store, PREFIX, SegmentAddress("events", 0, Uuid(bytes(range(16)))))


def test_leftovers_are_met_by_their_segment_id_alone(store: ObjectStore) -> None:
    segment = run_of(2, EVENTS)[1]
    store.delete([segment.key(prefix=PREFIX)])
    with pytest.raises(SegmentNotFoundError, match="left objects; address them by the id"):
        find_objects(store, PREFIX, SegmentAddress("events", 0, 10))
    named = SegmentAddress("events", 0, segment.metadata.remote_log_segment_id.id)
    assert find_objects(store, PREFIX, named).missing == (Suffix.MANIFEST,)
    with pytest.raises(SegmentNotFoundError):
        find_segment(store, PREFIX, named)


def test_several_are_told_with_what_chooses_among_them(store: ObjectStore) -> None:
    again = MadeSegment(EVENTS, 10, 24, number=1).put(store, PREFIX)
    anew = MadeSegment(partition_of(topic_id=OTHER_ID), 10, 19, number=2).put(store, PREFIX)
    store.put(anew.key(prefix=PREFIX), b"{}")
    address = SegmentAddress("events", 0, 10)
    for find in (find_segment, find_objects):
        with pytest.raises(ConfigError, match="3 segments of events-0 begin at 10: give the id") as caught:
            find(store, PREFIX, address)
        listed = re.findall(r"  (last offset \d+|without a readable manifest),", str(caught.value))
        assert listed == ["last offset 19", "last offset 24", "without a readable manifest"]
    chosen = SegmentAddress("events", 0, again.metadata.remote_log_segment_id.id)
    assert find_segment(store, PREFIX, chosen).metadata.end_offset == 24
    chosen = SegmentAddress("events", 0, 10, topic_id=OTHER_ID)
    assert find_objects(store, PREFIX, chosen).segment_id == anew.metadata.remote_log_segment_id


def test_of_very_many_only_some_are_asked_for() -> None:
    store = CountingStore(MemoryObjectStore())
    for number in range(50):
        MadeSegment(EVENTS, 0, 9, number=number).put(store.inner)
    with pytest.raises(ConfigError, match=r"50 segments of events-0 begin at 0: (.*\n){21}  … and 30 more$"):
        find_segment(store, "", SegmentAddress("events", 0, 0))
    assert store.requests["get"] == 20


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_a_whole_one_goes_before_one_that_lost_an_object(store: ObjectStore, suffix: Suffix) -> None:
    again = MadeSegment(EVENTS, 10, 24, number=1).put(store, PREFIX)
    store.delete([again.key(suffix, PREFIX)])
    assert find_segment(store, PREFIX, SegmentAddress("events", 0, 10)).metadata.end_offset == 19
    store.delete([run_of(2, EVENTS)[1].key(suffix, PREFIX) for suffix in Suffix])
    damaged = find_segment(store, PREFIX, SegmentAddress("events", 0, 10))
    assert damaged.objects.missing == (suffix,)


def test_a_damaged_manifest_is_damage_and_not_absence(store: ObjectStore) -> None:
    store.put(run_of(1, EVENTS)[0].key(prefix=PREFIX), b"{}")
    with pytest.raises(CorruptDataError):
        find_segment(store, PREFIX, SegmentAddress("events", 0, 0))
