"""Tests of the logs that long-lived readers keep, if other processes write or delete segments."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.stores.catalog_stores import manager_of, partition_of, run_of
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.format.keys import Suffix
from tieredstore.model import TopicPartition
from tieredstore.reading.stored_logs import StoredLogs


def test_a_segment_committed_between_two_pages_of_a_listing_is_whole() -> None:
    """A page ends at a segment's log. Then this segment and the next one are committed, before the next page."""
    first, torn, last = run_of(3, partition_of())

    class Pages(MemoryObjectStore):
        is_torn = False

        def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
            yield from list(super().list(prefix, start_after))
            if self.is_torn:
                for segment in (torn, last):
                    segment.put(store)
                yield from super().list(prefix, torn.key(Suffix.LOG))

    store = Pages()
    first.put(store)
    with manager_of(store) as manager:
        logs, where = StoredLogs(manager, {}), ("events", 0)
        logs.load(["events"], {})
        torn.put(store)
        store.delete([torn.key(Suffix.INDEXES), torn.key(Suffix.MANIFEST)])
        store.is_torn = True
        logs.refresh(where)
        lineage = logs.lineage(where)
    assert lineage is not None
    assert [(span.start, span.stop) for span in lineage.spans] == [(0, 10), (10, 20), (20, 30)]
    assert lineage.problems == ()


def test_segments_that_retention_has_deleted_are_dropped_without_another_read_of_the_others() -> None:
    segments = run_of(4, partition_of())

    class Counted(MemoryObjectStore):
        reads = 0

        def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
            self.reads += 1
            return super().get(key, start, stop)

    store = Counted()
    for segment in segments[:3]:
        segment.put(store)
    with manager_of(store) as manager:
        logs, where = StoredLogs(manager, {}), ("events", 0)
        logs.load(["events"], {})
        store.delete([segments[0].key(suffix) for suffix in (Suffix.MANIFEST, Suffix.INDEXES, Suffix.LOG)])
        before = store.reads
        logs.refresh(where, from_start=True)
        assert extents(logs, where) == [(10, 20), (20, 30)]
        assert store.reads == before
        segments[3].put(store)
        store.delete([segments[1].key(Suffix.MANIFEST)])
        logs.refresh(where, from_start=True)
        assert extents(logs, where) == [(20, 30), (30, 40)]
        store.delete([info.key for info in store.list()])
        logs.refresh(where, from_start=True)
        assert logs.lineage(where) is None


def extents(logs: StoredLogs, where: TopicPartition) -> list[tuple[int, int]]:
    lineage = logs.lineage(where)
    assert lineage is not None
    return [(span.start, span.stop) for span in lineage.spans]
