"""Chunks of one read that the cache has: the reader takes them, and threads of the manager help it with large ones."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import AlreadyClosed, CorruptData
from tieredstore.process.futures import outcome
from tieredstore.process.lifetime import Lifetime
from tieredstore.remote.fetch.buffers import Destination, Original, StreamBuffers
from tieredstore.remote.fetch.chunk_cache import ChunkCache
from tieredstore.remote.fetch.chunk_loads import OpenSegment

WORTH_A_THREAD: Final = 1 << 20
"""Bytes of a chunk from which on another thread is woken for the next one: that takes as long as a quarter of it."""

MAX_HELPERS: Final = (os.cpu_count() or 1) - 1
"""Threads beside the reader's that one read wakes."""


@dataclass(frozen=True, slots=True)
class CachedRead:
    """Which chunks one reader wants of a cache that is said to have them, and where they belong.

    A chunk comes into the ``destination`` if that holds all of it, else into memory of the reader's ``buffers``.
    """

    segment: OpenSegment
    chunks: Sequence[int]
    buffers: StreamBuffers
    destination: Destination | None

    def is_direct(self, chunk: int) -> bool:
        """Whether the chunk comes into the reader's own buffer."""
        return self.destination is not None and self.destination.holds(self.segment.index.original_range(chunk))

    def memory(self, chunk: int) -> AbstractContextManager[memoryview]:
        """Where the chunk is to be written."""
        chunk_range = self.segment.index.original_range(chunk)
        if self.destination is not None and self.is_direct(chunk):
            return self.destination.lent(chunk_range)
        return nullcontext(self.buffers.cached.take(len(chunk_range)))


class CachedChunks:
    """Takes chunks out of a cache. Safe from several threads."""

    def __init__(self, cache: ChunkCache, store: str, helpers: Executor, life: Lifetime) -> None:
        self._cache = cache
        self._store = store
        self._helpers = helpers
        self._life = life

    def read(self, wanted: CachedRead) -> dict[int, Original]:
        """The original bytes of the chunks that are still there, and are what was put.

        After an error others may still be writing to where the chunks were to come.
        """
        waiting, originals = deque(wanted.chunks), dict[int, Original]()

        def take_all() -> None:
            while True:
                self._life.check()
                try:
                    chunk = waiting.popleft()
                except IndexError:
                    return
                original = self._read_one(wanted, chunk)
                if original is not None:
                    originals[chunk] = original

        try:
            helping = self._woken(wanted, take_all)
            take_all()
            for help in helping:
                # One that has not begun finds nothing to do.
                if not help.cancel():
                    outcome(help)
        finally:
            waiting.clear()
        return originals

    def _woken(self, wanted: CachedRead, work: Callable[[], None]) -> list[Future[None]]:
        """Those who help with it."""
        helping: list[Future[None]] = []
        with suppress(AlreadyClosed):  # these threads take no more, as a forked child's: the reader has one
            helping.extend(self._helpers.submit(work) for _ in range(self._helper_count(wanted)))
        return helping

    def _helper_count(self, wanted: CachedRead) -> int:
        """As many as there are processors and chunks for, where several threads are done sooner than one."""
        decoded = self._cache.encrypted and not wanted.segment.decoder.is_identity
        if not (decoded or self._cache.is_worth_threads):
            return 0
        if wanted.segment.index.original_chunk_size < WORTH_A_THREAD:
            return 0
        return min(MAX_HELPERS, len(wanted.chunks) - 1)

    def _read_one(self, wanted: CachedRead, chunk: int) -> Original | None:
        segment, spare = wanted.segment, wanted.buffers.cached
        key = segment.key(self._store, chunk)
        with wanted.memory(chunk) as original:
            if not self._cache.encrypted:
                return original if self._cache.get_into(key, original) else None
            stored = spare.take(segment.positions[chunk + 1] - segment.positions[chunk])
            try:
                if not self._cache.get_into(key, stored):
                    return None
                segment.decoder.decode_into(stored, original)
            except CorruptData:  # what the cache holds is not what was put in: a miss
                return None
            finally:
                spare.give(stored)
        return original
