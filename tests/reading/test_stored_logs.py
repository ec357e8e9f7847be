"""Tests of the logs that long-lived readers keep, if other processes write or delete segments."""

from __future__ import annotations

from tests.support.stores.catalog_stores import commit_between_pages, manager_of, partition_of, run_of
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.format.keys import Suffix
from tieredstore.model import TopicPartition
from tieredstore.reading.stored_logs import StoredLogs


def test_a_segment_committed_between_two_pages_of_a_listing_is_whole() -> None:
    """A page ends at a segment's log. Then this segment and the next one are committed, before the next page."""
    first, torn, last = run_of(3, partition_of())
    inner = MemoryObjectStore()
    first.put(inner)
    with manager_of(store := ScriptedStore(inner)) as manager:
        logs, where = StoredLogs(manager, {}), ("events", 0)
        logs.load(["events"], {})
        torn.put(inner)
        inner.delete([torn.key(Suffix.INDEXES), torn.key(Suffix.MANIFEST)])
        commit_between_pages(store, torn, last)
        logs.refresh(where)
        lineage = logs.lineage(where)
    assert lineage is not None
    assert [(span.start, span.stop) for span in lineage.spans] == [(0, 10), (10, 20), (20, 30)]
    assert lineage.problems == ()


def test_segments_that_retention_has_deleted_are_dropped_without_another_read_of_the_others() -> None:
    segments = run_of(4, partition_of())
    store = ScriptedStore(MemoryObjectStore())
    for segment in segments[:3]:
        segment.put(store)
    with manager_of(store) as manager:
        logs, where = StoredLogs(manager, {}), ("events", 0)
        logs.load(["events"], {})
        store.delete([segments[0].key(suffix) for suffix in (Suffix.MANIFEST, Suffix.INDEXES, Suffix.LOG)])
        before = store.requests["get"]
        logs.refresh(where, from_start=True)
        assert extents(logs, where) == [(10, 20), (20, 30)]
        assert store.requests["get"] == before
        segments[3].put(store)
        store.delete([segments[1].key(Suffix.MANIFEST)])
        logs.refresh(where, from_start=True)
        assert extents(logs, where) == [(20, 30), (30, 40)]
        store.delete([info.key for info in store.list()])
        logs.refresh(where, from_start=True)
        assert logs.lineage(where) is None


def test_a_reload_may_drop_a_log_before_or_during_its_refresh() -> None:
    (segment,) = run_of(1, partition_of())
    store = ScriptedStore(MemoryObjectStore())
    with manager_of(store) as manager:
        logs, where = StoredLogs(manager, {}), ("events", 0)
        segment.put(store)
        logs.load(["events"], {})

        def drop(_: object) -> None:
            store.delete([info.key for info in store.inner.list()])
            logs.reload("events", None)

        store.on("list", do=drop, times=1)
        logs.refresh(where, from_start=True)
        assert logs.lineage(where) is None
        logs.refresh(where)
        assert logs.lineage(where) is None


def extents(logs: StoredLogs, where: TopicPartition) -> list[tuple[int, int]]:
    lineage = logs.lineage(where)
    assert lineage is not None
    return [(span.start, span.stop) for span in lineage.spans]
