"""Bytes that readers request before they need them, per reader and in total."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.small_segments import memory_settings, new_metadata, write_segment
from tests.support.simulated_time import SimulatedClock, simulated_pools
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch.segment_logs import PreparedSegment
from tieredstore.remote.fetch.stream import ReadAhead, SegmentStream

KIB: Final = 1 << 10
CHUNK: Final = 4 * KIB
AHEAD: Final = 32 * KIB
LOG: Final = random.Random(5).randbytes(256 * KIB)
READERS: Final = 4


class Readers:
    """Segments of 64 chunks with a reader each, on one manager; read-ahead is fetched at once."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        fetch = {"fetch.coalesce.max.bytes": "1", "fetch.chunk.cache.prefetch.max.size": str(AHEAD)}
        settings, store = memory_settings(CHUNK, fetch=fetch), MemoryObjectStore()
        segments = [new_metadata(len(LOG), start=1000 * number) for number in range(READERS)]
        with RemoteStorageManager(settings, store=store) as manager:
            for metadata in segments:
                manager.copy_log_segment_data(metadata, write_segment(folder, LOG))
        self.manager = RemoteStorageManager(
            settings, store=store, pools=simulated_pools(SimulatedClock()), shares_read_ahead=shared
        )
        self.segments: list[RemoteLogSegmentMetadata] = segments
        self.streams = [self.manager.fetch_log_segment(metadata, 0) for metadata in segments]

    @property
    def ahead(self) -> int:
        """Return the number of bytes that were fetched but not read."""
        stats = self.manager.fetch_stats
        return stats.bytes_fetched - stats.bytes_asked


@pytest.mark.parametrize(("shared", "limits"), [(False, READERS), (True, 1)])
def test_what_is_ahead_of_all_readers(tmp_path: Path, shared: bool, limits: int) -> None:
    readers = Readers(tmp_path, shared=shared)
    with readers.manager:
        most, read = 0, [b""] * READERS
        while any(len(each) < len(LOG) for each in read):
            for number, stream in enumerate(readers.streams):
                read[number] += stream.read(3000)
                most = max(most, readers.ahead)
        assert read == [LOG] * READERS
        assert (limits - 1) * AHEAD + READERS * CHUNK < most <= limits * AHEAD + READERS * CHUNK


def test_a_reader_that_is_left_alone_has_all_of_it(tmp_path: Path) -> None:
    readers = Readers(tmp_path, shared=True)
    with readers.manager:
        for stream in readers.streams:
            stream.read(1)
        # The first reader took the whole limit while it was alone, so nothing is left for the last one.
        before = readers.manager.fetch_stats.bytes_fetched
        readers.streams[-1].read(1)
        assert readers.manager.fetch_stats.bytes_fetched == before
        for stream in readers.streams[:-1]:
            stream.close()
        readers.streams[-1].read(1)
        assert readers.manager.fetch_stats.bytes_fetched - before == AHEAD


class _Reader:
    """Any object that supports weak references."""


@given(
    limit=st.integers(0, 100),
    steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["hold", "less", "release"]))),
)
def test_what_is_granted_together_is_never_more_than_the_limit(limit: int, steps: list[tuple[int, str]]) -> None:
    read_ahead, readers = ReadAhead(limit, is_shared=True), [_Reader() for _ in range(5)]
    held = dict.fromkeys(range(5), 0)
    for number, step in steps:
        if step == "release":
            read_ahead.release(readers[number])
            held[number] = 0
        else:
            granted = read_ahead.grant(readers[number])
            # A later grant may be less than the reader holds. The reader then keeps all that it holds, or shrinks to
            # the grant.
            held[number] = max(held[number], granted) if step == "hold" else min(held[number], granted)
            read_ahead.hold(readers[number], held[number])
        assert sum(held.values()) <= limit


def test_readers_that_are_gone_count_no_longer() -> None:
    read_ahead, reader = ReadAhead(100, is_shared=True), _Reader()
    read_ahead.hold(_Reader(), 100)
    assert read_ahead.grant(reader) == 100


class _OpenedStream:
    """Records read-ahead requests."""

    def __init__(self) -> None:
        self.prefetched: list[int] = []

    def prefetch(self, byte_count: int) -> None:
        self.prefetched.append(byte_count)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_stream_that_was_taken_over_is_left_to_its_reader(is_taken: bool) -> None:
    opening: Future[SegmentStream] = Future()
    prepared, stream = PreparedSegment(opening), _OpenedStream()
    if is_taken:
        # Add this callback before that of ``prefetch``, because a waiting reader wakes before any callback runs.
        opening.add_done_callback(lambda _: prepared.take())
    prepared.prefetch(100)
    opening.set_result(cast("SegmentStream", stream))
    assert stream.prefetched == ([] if is_taken else [100])
