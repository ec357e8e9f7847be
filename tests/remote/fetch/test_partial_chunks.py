"""A read decompresses only the part of a chunk it needs, and a continued read gets the rest of it."""

from __future__ import annotations

import io
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.records.small_segments import ENC, ZSTD, memory_settings
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import SegmentCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch import buffers
from tieredstore.remote.fetch import stream as stream_module
from tieredstore.testing.segments import build_segment
from tieredstore.transform import chunks
from tieredstore.transform.chunks import decompress_into as decompress_plainly

CHUNK = 50_000
MODES = {"zstd": ZSTD, "zstd+enc": ZSTD | ENC, "enc": ENC, "plain": dict[str, str]()}


@dataclass(frozen=True)
class Stored:
    """A segment of seven chunks, and how much of each was decompressed since the test last asked."""

    manager: RemoteStorageManager
    metadata: RemoteLogSegmentMetadata
    log: bytes
    decompressed: list[int]

    def taken(self) -> list[int]:
        sizes = sorted(self.decompressed)
        self.decompressed.clear()
        return sizes


@pytest.fixture(params=MODES)
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    segment = build_segment(tmp_path, 7 * CHUNK - 1_000)
    sizes: list[int] = []

    def decompress_into(frame: memoryview, out: memoryview, wanted: int | None = None) -> None:
        sizes.append(len(out) if wanted is None else wanted)
        decompress_plainly(frame, out, wanted)

    monkeypatch.setattr(chunks, "decompress_into", decompress_into)
    settings = memory_settings(CHUNK, mode=MODES[request.param])
    with RemoteStorageManager(settings, store=MemoryObjectStore()) as manager:
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=0)
        manager.copy_log_segment_data(metadata, segment.files)
        yield Stored(manager, metadata, segment.files.log_segment.read_bytes(), sizes)


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc"], indirect=True)
def test_a_range_is_decompressed_no_further_than_its_end(stored: Stored) -> None:
    start, last = CHUNK + 10_000, 3 * CHUNK + 4_999
    with stored.manager.fetch_log_segment(stored.metadata, start, last) as stream:
        assert stream.read() == stored.log[start : last + 1]
    assert stored.taken() == [5_000, CHUNK, CHUNK]


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc"], indirect=True)
def test_a_read_here_and_there_is_decompressed_no_further_than_its_end(stored: Stored) -> None:
    with stored.manager.open(stored.metadata) as stream:
        for start, size, expected in (
            (2 * CHUNK + 100, 900, [1_000]),
            (5 * CHUNK - 1, 2, [1, CHUNK]),
            (4 * CHUNK, CHUNK, [CHUNK]),
        ):
            stream.seek(start)
            assert stream.read(size) == stored.log[start : start + size]
            assert stored.taken() == expected


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc"], indirect=True)
def test_a_read_that_goes_on_takes_the_rest_from_what_was_fetched(stored: Stored) -> None:
    start = 6 * CHUNK + 1_000
    with stored.manager.open(stored.metadata) as stream:
        stream.seek(start)
        assert stream.read(500) == stored.log[start : start + 500]
        requests = stored.manager.fetch_stats.requests
        assert stream.read(700) == stored.log[start + 500 : start + 1_200]
        assert stream.read() == stored.log[start + 1_200 :]
        assert stored.manager.fetch_stats.requests == requests
    assert stored.taken() == [1_500, len(stored.log) - 6 * CHUNK]


def test_reads_of_any_kind_give_the_log(stored: Stored) -> None:
    source, expected = random.Random(3), io.BytesIO(stored.log)
    with stored.manager.open(stored.metadata) as stream:
        for _ in range(300):
            match source.randrange(4):
                case 0:
                    place = source.randrange(len(stored.log))
                    assert stream.seek(place) == expected.seek(place)
                case 1:
                    near = max(0, expected.tell() + source.randrange(-3_000, 3_000))
                    assert stream.seek(near) == expected.seek(near)
                case _:
                    size = source.choice((1, 100, 5_000, 60_000, 130_000))
                    assert stream.read(size) == expected.read(size)


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc"], indirect=True)
def test_chunks_of_a_range_end_with_it(stored: Stored) -> None:
    with stored.manager.fetch_log_segment(stored.metadata, 0, CHUNK + 99) as stream:
        assert [bytes(chunk) for chunk in stream.chunks()] == [stored.log[:CHUNK], stored.log[CHUNK : CHUNK + 100]]
    assert stored.taken() == [100, CHUNK]


@pytest.mark.parametrize("stored", ["zstd"], indirect=True)
def test_a_range_that_ends_before_the_object_is_cut_off_is_given(stored: Stored) -> None:
    store = stored.manager.store
    (log_key,) = (info.key for info in store.list() if info.key.endswith(Suffix.LOG.value))
    whole = store.get(log_key)
    store.delete([log_key])
    store.put(log_key, whole[:-10])
    with stored.manager.fetch_log_segment(stored.metadata, 0, 5 * CHUNK + 9) as stream:
        assert stream.read() == stored.log[: 5 * CHUNK + 10]


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc"], indirect=True)
def test_who_waits_for_one_chunk_decodes_it(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def noting(frame: memoryview, out: memoryview, wanted: int | None = None) -> None:
        threads.add(threading.get_ident())
        decompress_plainly(frame, out, wanted)

    monkeypatch.setattr(chunks, "decompress_into", noting)
    start = 2 * CHUNK + 100
    with stored.manager.fetch_log_segment(stored.metadata, start, start + 899) as stream:
        assert stream.read() == stored.log[start : start + 900]
    assert threads == {threading.get_ident()}
    # Several chunks at once, and chunks read ahead, are all decoded by the pool.
    threads.clear()
    with stored.manager.open(stored.metadata) as stream:
        while stream.read(1_000):
            pass
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("decode_ahead", [True, False])
def test_chunks_are_decoded_ahead_by_other_threads_or_one_by_one_by_their_reader(
    stored: Stored, decode_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    decode_into = chunks.ChunkDecoder.decode_into

    def noting(self: chunks.ChunkDecoder, *arguments: Any) -> None:
        threads.append(threading.get_ident())
        decode_into(self, *arguments)

    monkeypatch.setattr(chunks.ChunkDecoder, "decode_into", noting)
    before = stored.manager.fetch_stats
    with stored.manager.fetch_log_segment(stored.metadata, 10, 6 * CHUNK + 9) as stream:
        log = b""
        for number, chunk in enumerate(stream.chunks(decode_ahead=decode_ahead), 1):
            log += chunk
            assert decode_ahead or len(threads) in (0, number)
    assert log == stored.log[10 : 6 * CHUNK + 10]
    assert set(threads).isdisjoint({threading.get_ident()}) == decode_ahead or not threads
    after = stored.manager.fetch_stats
    assert (after.chunk_loads - before.chunk_loads, after.requests - before.requests) == (7, 1)


@pytest.mark.parametrize("decode_ahead", [True, False])
def test_what_an_object_that_was_cut_off_has_is_given_before_the_error(stored: Stored, decode_ahead: bool) -> None:
    store = stored.manager.store
    (log_key,) = (info.key for info in store.list() if info.key.endswith(Suffix.LOG.value))
    whole = store.get(log_key)
    store.delete([log_key])
    store.put(log_key, whole[:-10])
    with stored.manager.open(stored.metadata) as stream:
        parts = stream.chunks(decode_ahead=decode_ahead)
        assert b"".join(map(bytes, itertools.islice(parts, 6))) == stored.log[: 6 * CHUNK]
        with pytest.raises(SegmentCorruptError):
            next(parts)


@pytest.mark.parametrize("stored", ["zstd", "zstd+enc", "enc"], indirect=True)
def test_of_a_damaged_chunk_its_reader_is_told_and_given_what_lies_before(stored: Stored) -> None:
    store = stored.manager.store
    (log_key,) = (info.key for info in store.list() if info.key.endswith(Suffix.LOG.value))
    whole = bytearray(store.get(log_key))
    positions = stored.manager.fetch_manifest(stored.metadata).chunk_index.positions()
    whole[positions[3] : positions[3] + 8] = bytes(8)
    store.delete([log_key])
    store.put(log_key, bytes(whole))
    with stored.manager.open(stored.metadata) as stream:
        parts = stream.chunks(decode_ahead=False)
        assert b"".join(map(bytes, itertools.islice(parts, 3))) == stored.log[: 3 * CHUNK]
        for _ in range(2):  # a read that failed has consumed nothing
            with pytest.raises(SegmentCorruptError, match="chunk 3 "):
                next(parts)
            assert stream.tell() == 3 * CHUNK
            parts = stream.chunks(decode_ahead=False)


@pytest.mark.parametrize("stored", ["zstd+enc"], indirect=True)
def test_a_reader_that_decodes_uses_the_memory_of_one_chunk_again(stored: Stored) -> None:
    with stored.manager.open(stored.metadata) as stream:
        memory = {id(chunk.obj) for chunk in stream.chunks(decode_ahead=False)}
    assert len(memory) == 1


def test_reads_of_a_mebibyte_take_no_fresh_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib, taken = 1 << 20, list[int]()

    def counted(size: int) -> memoryview:
        taken.append(size)
        return chunks.fresh_memory(size)

    for module in (buffers, stream_module):
        monkeypatch.setattr(module, "fresh_memory", counted)
    segment = build_segment(tmp_path, 5 * mib)
    with RemoteStorageManager(memory_settings(2 * mib, mode=MODES["zstd+enc"]), store=MemoryObjectStore()) as manager:
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=0)
        manager.copy_log_segment_data(metadata, segment.files)
        log = segment.files.log_segment.read_bytes()

        def read_at(start: int) -> None:
            with manager.fetch_log_segment(metadata, start, start + mib - 1) as stream:
                assert stream.read() == log[start : start + mib]

        for start in (mib + 1, 3 * mib + 5):  # of two chunks
            read_at(start)
        taken.clear()
        for start in (0, mib + 2, 2 * mib, 3 * mib + 1):
            read_at(start)
    assert taken == []
