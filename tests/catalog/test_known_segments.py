"""Segments that earlier calls of `load_catalog` left: requests they save, and cases where they are read again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.catalog_stores import MadeSegment, manager_of, partition_of, run_of
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import Stamp, ValidSegment, load_catalog
from tieredstore.catalog.watermark import watermark_key
from tieredstore.format.keys import Suffix
from tieredstore.remote import RemoteStorageManager

pytestmark = pytest.mark.slow

EVENTS = partition_of()


class Planner:
    """A planner that keeps the known segments, and counts requests from zero."""

    def __init__(self, store: CountingStore, manager: RemoteStorageManager) -> None:
        self.store = store
        self.manager = manager
        self.known: dict[str, ValidSegment] = {}

    def plan(self, **scope: Any) -> Catalog:
        self.store.reset()
        return load_catalog(self.manager, known=self.known, **scope)

    @property
    def manifests_read(self) -> list[str]:
        return [key for key in self.store.keys_of("get") if key.endswith(Suffix.MANIFEST.value)]


@pytest.fixture
def planner(store: CountingStore) -> Iterator[Planner]:
    with manager_of(store) as manager:
        yield Planner(store, manager)


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_a_second_planning_is_one_listing_and_no_manifest(count: int, store: CountingStore, planner: Planner) -> None:
    for segment in run_of(count, EVENTS):
        segment.put(store)
    first = planner.plan()
    assert store.requests["list"] == 1
    assert len(planner.manifests_read) == count
    assert planner.plan() == first
    assert store.requests == {"list": 1}


@pytest.mark.parametrize("begins", [8, 10])
def test_a_second_planning_does_not_read_the_rulers_index_again(
    begins: int, store: CountingStore, planner: Planner
) -> None:
    """If leaders contradict each other, only the watermark is read again, because the uploader may have moved it."""
    MadeSegment(EVENTS, 0, 9, ((0, 0),)).put(store)
    MadeSegment(EVENTS, 10, 19, ((1, 10),), history=((0, 0), (1, begins))).put(store)
    first = planner.plan()
    with manager_of(store) as another:
        planner.manager = another
        assert planner.plan() == first
    assert store.requests["list"] == 1
    assert store.keys_of("get") == ([watermark_key("", EVENTS)] if begins == 8 else [])


def test_only_what_is_new_or_rewritten_is_read(store: CountingStore, planner: Planner) -> None:
    stored = [segment.put(store) for segment in run_of(5, EVENTS)]
    planner.plan()
    new = MadeSegment(EVENTS, 50, 59).put(store)
    store.put(stored[2].key(), stored[2].manifest(max_timestamp_ms=77))
    catalog = planner.plan()
    assert sorted(planner.manifests_read) == [stored[2].key(), new.key()]
    assert catalog.lineage("events", 0).spans[2].segment.max_timestamp_ms == 77
    planner.plan()
    assert planner.manifests_read == []


def test_deleted_segments_leave_the_catalog_and_are_forgotten(store: CountingStore, planner: Planner) -> None:
    stored = [segment.put(store) for segment in run_of(4, EVENTS)]
    planner.plan()
    store.delete([stored[0].key(suffix) for suffix in Suffix])
    store.delete([stored[3].key(Suffix.LOG)])
    catalog = planner.plan()
    assert (catalog.lineage("events", 0).earliest_offset, catalog.lineage("events", 0).end_offset) == (10, 30)
    assert [*planner.known] == [segment.path for segment in stored[1:3]]


def test_a_planning_of_a_part_keeps_what_is_known_of_the_rest(store: CountingStore, planner: Planner) -> None:
    for topic in ("a", "a-b", "b"):
        for partition in (0, 1):
            MadeSegment(partition_of(topic, partition), 0, 9).put(store)
    planner.plan()
    gone = MadeSegment(partition_of("a", 1), 0, 9)
    store.delete([gone.key(suffix) for suffix in Suffix])
    new = MadeSegment(partition_of("a", 0), 10, 19).put(store)
    for scope in ({"topic": "a"}, {"topic": "b", "partition": 1}, {}):
        planner.plan(**scope)
        assert planner.manifests_read == ([new.key()] if scope == {"topic": "a"} else [])
    assert len(planner.known) == 6


def test_on_a_file_system_size_and_time_tell_a_rewritten_manifest(tmp_path: Path) -> None:
    store = CountingStore(FilesystemObjectStore(tmp_path))
    stored = [segment.put(store) for segment in run_of(3, EVENTS)]
    with manager_of(store) as manager:
        planner = Planner(store, manager)
        planner.plan()
        planner.plan()
        assert planner.manifests_read == []
        path = tmp_path / stored[1].key()
        written = path.stat().st_mtime_ns
        path.write_bytes(stored[1].manifest(broker_id=2))  # the same size
        os.utime(path, ns=(written, written + 1_000_000))
        assert planner.plan().lineage("events", 0).spans[1].segment.broker_id == 2
        assert planner.manifests_read == [stored[1].key()]


@pytest.mark.parametrize(
    ("known", "listed", "same"),
    [
        (Stamp(7, "a", 1), Stamp(7, "a", 2), True),
        (Stamp(7, "a", 1), Stamp(7, "b", 1), False),
        (Stamp(7, "a", 1), Stamp(8, "a", 1), False),
        (Stamp(7, None, 1), Stamp(7, "b", 1), True),
        (Stamp(7, None, 1), Stamp(7, None, 1), True),
        (Stamp(7, None, 1), Stamp(7, None, 2), False),
        (Stamp(7, None, 1), Stamp(8, None, 1), False),
        (Stamp(7, None, None), Stamp(7, None, None), False),
    ],
)
def test_a_version_is_known_by_its_etag_or_by_size_and_time(known: Stamp, listed: Stamp, same: bool) -> None:
    assert known.matches(listed) == same
