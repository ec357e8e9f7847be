"""The catalog file: requests it saves, cases where it is not trusted, and sharing between planners."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.catalog_stores import MadeSegment, manager_of, partition_of, run_of
from tests.support.stores.doubles import CountingStore, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import catalog_file
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.catalog_file import CatalogFile, Origin, SegmentRow, Stamp, StoredRows, decode_rows
from tieredstore.catalog.listing import Scope
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import AccessDeniedError
from tieredstore.format.keys import Suffix, parse_key
from tieredstore.remote import RemoteStorageManager
from tieredstore.versions import StateKind

pytestmark = pytest.mark.slow

EVENTS = partition_of()
ORIGIN = Origin("memory://x", "p/")


class Planner:
    """A planner with the store's catalog file, or with another file, that counts requests from zero."""

    def __init__(self, store: CountingStore, manager: RemoteStorageManager) -> None:
        self.store = store
        self.manager = manager
        self.file = CatalogFile.beside(store, "")

    def plan(self, **scope: Any) -> Catalog:
        self.store.reset()
        return load_catalog(self.manager, file=self.file, **scope)

    @property
    def manifests_read(self) -> list[str]:
        return [key for key in self.store.keys_of("get") if key.endswith(Suffix.MANIFEST.value)]

    @property
    def paths(self) -> list[str]:
        """Return the paths of the segments in the file."""
        return list(self.file.load(Origin(self.store.identity, "")).rows.paths())


@pytest.fixture
def planner(store: CountingStore) -> Iterator[Planner]:
    with manager_of(store) as manager:
        yield Planner(store, manager)


def row_of(segment: MadeSegment, etag: str | None = "e1") -> SegmentRow:
    return SegmentRow(segment.path, Stamp(700, etag, 5), segment.metadata, segment.history)


def encoded(*segments: MadeSegment, origin: Origin = ORIGIN) -> bytes:
    return StoredRows().merge([row_of(segment) for segment in segments], set(), origin)


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_a_second_planning_is_one_listing_and_no_manifest(count: int, store: CountingStore, planner: Planner) -> None:
    for segment in run_of(count, EVENTS):
        segment.put(store)
    first = planner.plan()
    assert store.requests["list"] == 1
    assert len(planner.manifests_read) == count
    assert planner.plan() == first
    # The file costs a head and a get, but without segments only the head, because it was never written.
    assert store.requests == ({"head": 1, "list": 1, "get": 1} if count else {"head": 1, "list": 1})
    assert planner.manifests_read == []


def test_a_second_planning_does_not_read_the_rulers_index_again(store: CountingStore, planner: Planner) -> None:
    MadeSegment(EVENTS, 0, 9, ((0, 0),)).put(store)
    MadeSegment(EVENTS, 10, 19, ((1, 10),), history=((0, 0), (1, 8))).put(store)
    first = planner.plan()
    with manager_of(store) as another:
        planner.manager = another
        assert planner.plan() == first
    assert store.requests == {"head": 1, "list": 1, "get": 1}


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


def test_deleted_segments_leave_the_catalog_and_its_file(store: CountingStore, planner: Planner) -> None:
    stored = [segment.put(store) for segment in run_of(4, EVENTS)]
    planner.plan()
    store.delete([stored[0].key(suffix) for suffix in Suffix])
    store.delete([stored[3].key(Suffix.LOG)])
    catalog = planner.plan()
    assert (catalog.lineage("events", 0).earliest_offset, catalog.lineage("events", 0).end_offset) == (10, 30)
    assert planner.paths == [segment.path for segment in stored[1:3]]


def test_a_planning_of_a_part_keeps_the_rows_of_the_rest(store: CountingStore, planner: Planner) -> None:
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
    assert len(planner.paths) == 6


def test_a_file_in_a_folder_serves_a_store_elsewhere(store: CountingStore, planner: Planner, tmp_path: Path) -> None:
    for segment in run_of(3, EVENTS):
        segment.put(store)
    planner.file = CatalogFile(FilesystemObjectStore(tmp_path), "plans/events.arrows")
    first = planner.plan()
    assert planner.plan() == first
    assert store.requests == {"list": 1}
    assert (tmp_path / "plans" / "events.arrows").exists()


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


@given(st.text(alphabet="abcXYZ019._-", min_size=1, max_size=20))
def test_no_topics_listing_has_the_file(topic: str) -> None:
    key = CatalogFile.beside(MemoryObjectStore(), "pre/fix-").key
    assert not key.startswith(Scope(topic).listing_prefix("pre/fix-"))
    assert parse_key("pre/fix-", key) is None


@given(st.integers(0, 30), st.data())
def test_rows_come_back_as_they_were(count: int, data: st.DataObject) -> None:
    maybe = st.one_of(st.none(), st.integers(0, 2**62))
    rows = [
        SegmentRow(
            segment.path,
            Stamp(
                data.draw(st.integers(0, 2**40)), data.draw(st.one_of(st.none(), st.text(max_size=5))), data.draw(maybe)
            ),
            segment.metadata,
            data.draw(st.sampled_from([None, ((0, 0),), ((0, 5), (2**31 - 1, 2**62))])),
        )
        for segment in run_of(count, EVENTS)
    ]
    stored = decode_rows(StoredRows().merge(reversed(rows), set(), ORIGIN), ORIGIN)
    assert stored is not None
    assert len(stored) == count
    wanted = sorted(data.draw(st.sets(st.integers(0, count + 3))))
    cursor = stored.cursor()
    for number in wanted:
        metadata = MadeSegment(EVENTS, number * 10, number * 10 + 9).metadata
        path = MadeSegment(EVENTS, number * 10, number * 10 + 9).path
        row = cursor.find(path, metadata.remote_log_segment_id, metadata.start_offset)
        assert row == (rows[number] if number < count else None)


def test_rows_are_found_across_many_batches() -> None:
    segments = run_of(9_000, EVENTS)
    stored = decode_rows(encoded(*segments), ORIGIN)
    assert stored is not None
    for chosen in (segments, segments[::700], segments[4_095:4_097], segments[-1:]):
        cursor = stored.cursor()
        for segment in chosen:
            row = cursor.find(segment.path, segment.metadata.remote_log_segment_id, segment.start)
            assert row == row_of(segment)


RAW = encoded(*run_of(5, EVENTS))


@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_a_file_with_any_byte_changed_is_not_believed(position: int, change: int) -> None:
    damaged = bytearray(RAW)
    damaged[position] ^= change
    assert decode_rows(bytes(damaged), ORIGIN) is None


@given(st.integers(0, len(RAW) - 1))
def test_a_file_cut_short_is_not_believed(size: int) -> None:
    assert decode_rows(RAW[:size], ORIGIN) is None


@given(st.integers(0, len(RAW) - 33), st.integers(1, 255))
def test_damage_under_a_digest_that_fits_never_gives_more_than_other_rows(position: int, change: int) -> None:
    """A file with a matching digest may have wrong rows, but no bytes crash the reader or bypass its checks."""
    damaged = bytearray(RAW[:-32])
    damaged[position] ^= change
    stored = decode_rows(bytes(damaged) + hashlib.sha256(damaged).digest(), ORIGIN)
    if stored is not None:
        cursor = stored.cursor()
        for segment in run_of(5, EVENTS):
            cursor.find(segment.path, segment.metadata.remote_log_segment_id, segment.start)


@pytest.mark.parametrize("origin", [Origin("memory://y", "p/"), Origin("memory://x", "q/")])
def test_a_file_of_other_objects_is_not_believed(origin: Origin) -> None:
    assert decode_rows(RAW, origin) is None
    assert decode_rows(RAW, ORIGIN) is not None


def test_a_file_of_another_version_or_schema_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_file, "CATALOG", StateKind("catalog file", None, (("0.0", 0),)))
    older = encoded(*run_of(5, EVENTS))
    monkeypatch.undo()
    assert decode_rows(older, ORIGIN) is None
    sink = pa.BufferOutputStream()
    fields: Any = catalog_file._origin_fields(ORIGIN)  # pyright: ignore[reportPrivateUsage]
    with pa.ipc.new_stream(sink, pa.schema([("path", pa.string())], metadata=fields)):
        pass
    content = sink.getvalue().to_pybytes()
    assert decode_rows(content + hashlib.sha256(content).digest(), ORIGIN) is None


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 100, b"\x80\x04cos\nsystem\n(S'false'\ntR."])
def test_whatever_lies_at_the_key_is_replaced_by_a_new_file(
    content: bytes, store: CountingStore, planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    MadeSegment(EVENTS, 0, 9).put(store)
    store.put(planner.file.key, content)
    assert planner.plan().incarnation("events").partitions == (0,)
    assert "is re-created" in caplog.text
    planner.plan()
    assert planner.manifests_read == []


def test_a_row_that_contradicts_itself_is_read_again() -> None:
    bad = MadeSegment(EVENTS, 10, 19, ((1, 10), (2, 99)))
    stored = decode_rows(encoded(bad), ORIGIN)
    assert stored is not None
    assert stored.cursor().find(bad.path, bad.metadata.remote_log_segment_id, 10) is None


def test_an_arrow_reader_reads_the_file_as_a_stream() -> None:
    with pa.ipc.open_stream(RAW) as reader:
        assert reader.read_all().column("end_offset").to_pylist() == [9, 19, 29, 39, 49]


def interrupted(inner: ObjectStore, before: list[Callable[[], object]]) -> ScriptedStore:
    """Return a store that pops and runs a function of ``before`` before each write of the catalog file."""
    return ScriptedStore(inner).on(("put", "replace"), "*!*", lambda _: before and before.pop()())


@pytest.mark.parametrize("there_before", [False, True])
def test_a_planner_that_loses_the_race_merges_with_the_winner(there_before: bool) -> None:
    before: list[Callable[[], object]] = []
    store = interrupted(MemoryObjectStore(), before)
    file = CatalogFile.beside(store, "")
    with manager_of(store) as manager:
        stored = [MadeSegment(partition_of(topic), 0, 9).put(store) for topic in ("a", "b", "c")]
        if there_before:
            load_catalog(manager, topic="c", file=file)
        before.append(lambda: load_catalog(manager, topic="a", file=file))
        load_catalog(manager, topic="b", file=file)
        rows = file.load(Origin(store.identity, "")).rows
        expected = stored if there_before else stored[:2]
        assert list(rows.paths()) == [segment.path for segment in expected]


def test_a_planner_that_always_loses_gives_up_and_has_its_catalog(caplog: pytest.LogCaptureFixture) -> None:
    inner = MemoryObjectStore()
    before: list[Callable[[], object]] = []
    store = interrupted(inner, before)
    file = CatalogFile.beside(store, "")
    before += [lambda: inner.put(file.key, b"another's")] * 100
    MadeSegment(EVENTS, 0, 9).put(store)
    with manager_of(store) as manager:
        assert load_catalog(manager, file=file).incarnation("events").partitions == (0,)
    assert "is not updated" in caplog.text
    assert len(before) > 80


def test_a_store_that_refuses_the_file_does_not_cost_the_catalog(caplog: pytest.LogCaptureFixture) -> None:
    store = ScriptedStore(MemoryObjectStore()).on("put", "*!*", AccessDeniedError("this is read-only"))
    MadeSegment(EVENTS, 0, 9).put(store)
    with manager_of(store) as manager:
        catalog = load_catalog(manager, file=CatalogFile.beside(store, ""))
    assert catalog.incarnation("events").partitions == (0,)
    assert "could not be updated: this is read-only" in caplog.text
