"""Number and size of chunks that a manifest may declare, checked before any chunk is read."""

from __future__ import annotations

import base64
import json
import tracemalloc

import pytest

from tests.support.golden.stored import settings_of
from tests.support.records.small_segments import memory_settings
from tests.support.stores.catalog_stores import partition_of
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.chunk_index import pack_chunk_sizes
from tieredstore.format.manifest import MAX_SMALL_CHUNKS, MIN_CHUNK_SIZE, KnownSegment, ManifestRules, SegmentManifest
from tieredstore.model import RemoteLogSegmentId, Uuid
from tieredstore.remote.manifest_object import rules_of

ENTRY = {"position": 0, "size": 0}


def fixed_manifest(chunk_size: int, file_size: int) -> bytes:
    index: dict[str, object] = {
        "type": "fixed",
        "originalChunkSize": chunk_size,
        "originalFileSize": file_size,
        "transformedChunkSize": chunk_size,
        "finalTransformedChunkSize": file_size % chunk_size or chunk_size,
    }
    return _manifest(index, compression=False)


def _manifest(index: dict[str, object], *, compression: bool) -> bytes:
    entries = dict.fromkeys(("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction"), ENTRY)
    document = {"version": "1", "chunkIndex": index, "segmentIndexes": entries, "compression": compression}
    return json.dumps(document).encode()


def known(log_size: int | None) -> KnownSegment:
    return KnownSegment(RemoteLogSegmentId(partition_of(), Uuid(bytes(16))), 0, log_size)


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "log_size"),
    [
        (1, MAX_SMALL_CHUNKS, None),
        (1, MAX_SMALL_CHUNKS, 0),  # accepted here; a reader or `inspect` finds the log too short
        (MIN_CHUNK_SIZE, 2**31 - 1, None),
        (MIN_CHUNK_SIZE, 2**31 - 1, 2**21),
        (2**31 - 1, 2**31 - 1, 1),
    ],
)
def test_what_anybody_may_have_written_is_read(chunk_size: int, file_size: int, log_size: int | None) -> None:
    read = SegmentManifest.from_bytes(fixed_manifest(chunk_size, file_size), known(log_size))
    assert read.chunk_index.chunk_count == -(-file_size // chunk_size)


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "log_size", "reason"),
    [
        (1, MAX_SMALL_CHUNKS + 1, None, "originalChunkSize is 1 for 65537 chunks"),
        (MIN_CHUNK_SIZE - 1, 2**31 - 1, None, "originalChunkSize is 1023 for"),
        (MIN_CHUNK_SIZE, 2**31 - 1, 2**21 - 1, r"states 2097152 chunks, but the \.log object has only 2097151 bytes"),
        (1, 2**31 - 1, 10, r"states 2147483647 chunks, but the \.log object has only 10 bytes"),
    ],
)
def test_more_chunks_than_anybody_writes_are_refused(
    chunk_size: int, file_size: int, log_size: int | None, reason: str
) -> None:
    with pytest.raises(ManifestCorruptError, match=reason):
        SegmentManifest.from_bytes(fixed_manifest(chunk_size, file_size), known(log_size))


@pytest.mark.slow
def test_a_list_of_ten_million_chunks_is_refused_before_it_is_unpacked() -> None:
    sizes = pack_chunk_sizes([1] * 10_000_000)
    index: dict[str, object] = {
        "type": "variable",
        "originalChunkSize": 1,
        "originalFileSize": 10_000_000,
        "transformedChunks": base64.b64encode(sizes).decode(),
    }
    raw = _manifest(index, compression=True)
    assert len(raw) < 1500
    tracemalloc.start()
    try:
        peaks: list[int] = []
        # Measure ten times, because threads left by other tests may allocate memory in between, but not each time.
        for _ in range(10):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for log_size in (None, 1000):
                with pytest.raises(ManifestCorruptError, match="10000000 chunks"):
                    SegmentManifest.from_bytes(raw, known(log_size))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        assert min(peaks) < 100_000
        # With a lower minimum chunk size, the reader accepts the same list, and allocates memory for it only once.
        tracemalloc.reset_peak()
        read = SegmentManifest.from_bytes(raw, known(10_000_000), ManifestRules(min_chunk_size=1))
        assert read.chunk_index.positions()[1000] == 1000
        assert tracemalloc.get_traced_memory()[1] < 45_000_000
    finally:
        tracemalloc.stop()


def test_the_floor_is_a_setting_and_never_above_what_these_settings_write() -> None:
    assert rules_of(memory_settings(4096)) == ManifestRules(MIN_CHUNK_SIZE)
    assert rules_of(memory_settings(4096, floor={"fetch.chunk.min.size": "65536"})) == ManifestRules(4096)
    assert rules_of(memory_settings(4096, floor={"fetch.chunk.min.size": "10"})) == ManifestRules(10)
    assert rules_of(memory_settings(100)) == ManifestRules(100)
    assert not rules_of(settings_of("03-enc")).encryption_required
    assert rules_of(settings_of("03-enc", {"encryption.required": "true"})).encryption_required
