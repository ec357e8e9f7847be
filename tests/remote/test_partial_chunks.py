"""Of a compressed chunk no more is decompressed than a read asks for, and a read that goes on gets the rest of it."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.small_segments import ENC, ZSTD, memory_settings
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment
from tieredstore.transform import chunks, zstd

CHUNK = 50_000
MODES = {"zstd": ZSTD, "zstd+enc": ZSTD | ENC, "enc": ENC, "plain": dict[str, str]()}


@dataclass(frozen=True)
class Stored:
    """A segment of seven chunks, and how much of each was decompressed since the last look."""

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

    def decompress_into(frame: memoryview, out: memoryview, content_size: int | None = None) -> None:
        sizes.append(len(out))
        zstd.decompress_into(frame, out, content_size)

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
