"""A segment is deleted so that half of it is never visible."""

from __future__ import annotations

import pytest

from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import list_segments
from tieredstore.errors import StoreUnavailable
from tieredstore.format.keys import Suffix
from tieredstore.ops.garbage.collection import delete_objects

SEGMENT = MadeSegment(partition_of(), 0, 9)


@pytest.mark.parametrize("number", [0, 1])
def test_the_manifest_goes_first_wherever_the_store_fails(number: int) -> None:
    inner = MemoryObjectStore()
    SEGMENT.put(inner)
    (objects,) = list_segments(inner)
    with pytest.raises(StoreUnavailable, match="told to fail"):
        delete_objects(FaultyStore(inner, number), objects)
    left = [info.key for info in inner.list()]
    suffixes = list(Suffix) if number == 0 else [Suffix.LOG, Suffix.INDEXES]
    assert sorted(left) == sorted(SEGMENT.key(suffix) for suffix in suffixes)


@pytest.mark.parametrize("absent", list(Suffix))
def test_what_is_left_of_a_segment_goes(absent: Suffix) -> None:
    store = MemoryObjectStore()
    SEGMENT.put(store)
    store.delete([SEGMENT.key(absent)])
    (objects,) = list_segments(store)
    delete_objects(store, objects)
    assert list(store.list()) == []
