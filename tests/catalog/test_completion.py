"""Manifests without segment metadata: the segment itself provides the missing fields."""

from __future__ import annotations

import dataclasses
import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, CASES, GoldenSegment, case_path, segments
from tests.support.golden.stored import metadata_of, settings_of
from tests.support.records.small_segments import PLAIN, ZSTD, memory_settings
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import ValidSegment, load_catalog
from tieredstore.catalog.problems import ProblemKind
from tieredstore.errors import BatchCorruptError
from tieredstore.format.manifest import SegmentManifest
from tieredstore.kafka.batches import HEADER_SIZE, read_batch_headers
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch.log_batches import LogBatches
from tieredstore.testing.batches import Producer
from tieredstore.testing.segments import Record, build_batch, build_end_marker, write_segment


def strip(store: MemoryObjectStore | CountingStore) -> None:
    """Take the segment metadata out of every manifest, as in manifests of older plugin versions."""
    for info in list(store.list()):
        if info.key.endswith(".rsm-manifest"):
            manifest = SegmentManifest.from_bytes(store.get(info.key))
            store.put(info.key, dataclasses.replace(manifest, metadata=None).to_bytes())


def store_of(case: str) -> CountingStore:
    """Return the objects of a golden case, with stripped manifests."""
    store = MemoryObjectStore()
    root = case_path(case) / "store"
    for path in root.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(root)), path.read_bytes())
    strip(store)
    return CountingStore(store)


def known_of(segment: GoldenSegment) -> RemoteLogSegmentMetadata:
    """Return the segment's metadata without the fields that only the manifest stores."""
    return dataclasses.replace(metadata_of(segment), broker_id=-1, event_timestamp_ms=-1)


@pytest.mark.parametrize("case", CASES)
def test_golden_segments_tell_what_their_manifests_leave_out(case: str) -> None:
    with RemoteStorageManager(settings_of(case), store=store_of(case)) as manager:
        catalog = load_catalog(manager)
        assert catalog.problems == ()
        for segment in segments(case):
            span = catalog.lineage(segment.topic, segment.partition).span_at(segment.base_offset)
            assert span.segment == known_of(segment)
            assert (span.start, span.stop) == (segment.base_offset, segment.end_offset + 1)


def test_what_was_completed_once_is_known_afterwards() -> None:
    store = store_of("04-zstd-enc")
    with RemoteStorageManager(settings_of("04-zstd-enc"), store=store) as manager:
        known: dict[str, ValidSegment] = {}
        first = load_catalog(manager, known=known)
        store.reset()
        assert load_catalog(manager, known=known) == first
        assert store.requests == {"list": 1}


def test_without_keys_a_segment_that_has_to_be_opened_is_a_problem() -> None:
    with RemoteStorageManager(memory_settings(), store=store_of("03-enc")) as manager:
        catalog = load_catalog(manager)
    assert {problem.kind for problem in catalog.problems} == {ProblemKind.UNREADABLE}
    assert catalog.topics() == ()


def copied(store: CountingStore, folder: Path, batches: list[bytes], **options: object) -> RemoteLogSegmentMetadata:
    """Store a segment of these batches from offset 100 on, and strip its manifest."""
    segment = write_segment(folder, batches, base_offset=100, **options)  # type: ignore[arg-type]  # its own names
    metadata = segment.to_metadata(Uuid.random())
    with RemoteStorageManager(memory_settings(4096, mode=PLAIN), store=store) as manager:
        manager.copy_log_segment_data(metadata, segment.files)
    strip(store)
    store.reset()
    return metadata


def many_batches(count: int = 100) -> list[bytes]:
    return [build_batch([Record(b"v" * 2000, timestamp_ms=1000 - i)], 100 + i) for i in range(count)]


def load_one(store: CountingStore) -> RemoteLogSegmentMetadata:
    with RemoteStorageManager(memory_settings(4096, mode=ZSTD), store=store) as manager:
        catalog = load_catalog(manager)
    assert catalog.problems == ()
    (span,) = catalog.lineage("events", 0).spans
    return span.segment


def problem_of(store: CountingStore) -> str:
    with RemoteStorageManager(memory_settings(4096), store=store) as manager:
        (problem,) = load_catalog(manager).problems
    assert problem.kind is ProblemKind.DAMAGED
    return problem.detail


def test_only_the_end_of_the_log_is_read(store: CountingStore, tmp_path: Path) -> None:
    metadata = copied(store, tmp_path, many_batches())
    assert load_one(store) == metadata
    logs = [o for o in store.operations if o.name in ("get", "get_into") and o.keys[0].endswith(".log")]
    assert len(logs) <= 3  # 200 KB in chunks of 4 KiB; the index has an entry about every 4 KiB
    assert store.bytes_down < 20_000


def test_epochs_and_the_greatest_timestamp_are_those_of_the_whole_segment(store: CountingStore, tmp_path: Path) -> None:
    epochs = ((1, 0), (3, 150), (4, 500))
    metadata = copied(store, tmp_path, many_batches(), leader_epochs=epochs)
    loaded = load_one(store)
    assert loaded.segment_leader_epochs == ((1, 100), (3, 150))
    assert loaded.max_timestamp_ms == metadata.max_timestamp_ms == 1000


def test_a_control_batch_at_the_end_counts(store: CountingStore, tmp_path: Path) -> None:
    producer = Producer(7, 0, 0, transactional=True)
    batches = [
        build_batch([Record(b"v", timestamp_ms=5)], 100, producer=producer),
        build_end_marker(101, producer, commit=True, timestamp_ms=9),
    ]
    metadata = copied(store, tmp_path, batches)
    loaded = load_one(store)
    assert (loaded.end_offset, loaded.max_timestamp_ms) == (101, 9) == (metadata.end_offset, metadata.max_timestamp_ms)


def test_a_log_without_any_batch_is_a_problem(store: CountingStore, tmp_path: Path) -> None:
    copied(store, tmp_path, [])
    assert "neither a batch nor the manifest gives the end offset" in problem_of(store)


def indexes_of(store: CountingStore) -> tuple[str, bytearray]:
    (key,) = [info.key for info in store.list() if info.key.endswith(".indexes")]
    return key, bytearray(store.get(key))


def test_an_index_that_points_past_the_log_is_a_problem(store: CountingStore, tmp_path: Path) -> None:
    copied(store, tmp_path, many_batches(10))
    key, raw = indexes_of(store)
    index = (tmp_path / "events-0" / f"{100:020}.index").stat().st_size
    raw[index - 4 : index] = struct.pack(">i", 2**31 - 1)
    store.put(key, bytes(raw))
    assert "points to byte 2147483647" in problem_of(store)


def test_an_index_that_points_inside_a_batch_is_a_problem(store: CountingStore, tmp_path: Path) -> None:
    copied(store, tmp_path, many_batches(10))
    key, raw = indexes_of(store)
    index = (tmp_path / "events-0" / f"{100:020}.index").stat().st_size
    raw[index - 1] ^= 16
    store.put(key, bytes(raw))
    assert "events-0 at offset 100 " in (problem := problem_of(store))
    assert "record batch" in problem


@pytest.mark.parametrize("damage", [b"", b"\0"])
def test_a_short_indexes_object_is_a_problem(damage: bytes, store: CountingStore, tmp_path: Path) -> None:
    copied(store, tmp_path, many_batches(10))
    key, _ = indexes_of(store)
    store.put(key, damage)
    assert "shorter than its manifest says" in problem_of(store)


class Dripping(io.BytesIO):
    """A stream that returns few bytes per read, as any stream may."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most if size is None or size < 0 else min(size, self._most))


LOG = b"".join(build_batch([Record(b"v" * size)], at) for at, size in enumerate([0, 3000, 5, 200_000, 1, 70_000]))


@given(st.integers(1, 100_000))
def test_a_log_is_walked_whatever_pieces_come(most: int) -> None:
    batches = LogBatches(Dripping(LOG, max(most, 500)), 0, len(LOG), metadata_of(ALL_SEGMENTS[0]))
    assert list(batches.headers()) == list(read_batch_headers(LOG))


LAST = list(read_batch_headers(LOG))[-1].position


@given(st.integers(0, LAST + HEADER_SIZE - 1))
def test_a_stream_that_ends_before_the_last_header_does_is_damage(size: int) -> None:
    with pytest.raises(BatchCorruptError):
        list(LogBatches(io.BytesIO(LOG[:size]), 0, len(LOG), metadata_of(ALL_SEGMENTS[0])).headers())


@pytest.mark.parametrize("segment", ALL_SEGMENTS[::7], ids=str)
def test_a_walk_may_begin_at_any_batch(segment: GoldenSegment) -> None:
    log = segment.original("log").read_bytes()
    expected = list(read_batch_headers(log))
    for first in expected[:: max(1, len(expected) // 5)]:
        stream = io.BytesIO(log[first.position :])
        batches = LogBatches(stream, first.position, len(log), metadata_of(segment))
        assert list(batches.headers()) == expected[expected.index(first) :]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_damaged_index_is_told_with_its_segment(kind: str, store: CountingStore, tmp_path: Path) -> None:
    copied(store, tmp_path, many_batches(10))
    key, raw = indexes_of(store)
    sizes = {name: (tmp_path / "events-0" / f"{100:020}.{name}").stat().st_size for name in ("index", "timeindex")}
    start = 0 if kind == "index" else sizes["index"]
    raw[start : start + 4] = b"\xff" * 4
    store.put(key, bytes(raw))
    assert "events-0 at offset 100 " in problem_of(store)
