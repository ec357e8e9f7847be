"""The ordered pipeline: several threads transform chunks, the caller gets the chunks in order, and memory is
bounded."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple, TypeAlias

from tieredstore.format.sizes import IV_SIZE
from tieredstore.transform.chunks import ChunkEncoder, GrowingBuffer
from tieredstore.transform.encryption import RandomBytes

ReadInto: TypeAlias = Callable[[int, memoryview], None]
"""A function that fills a whole buffer with the source's bytes from a position on, or raises an error. It must be
thread-safe.
"""


class _Slot(NamedTuple):
    """The memory of one chunk in flight."""

    original: GrowingBuffer
    stored: GrowingBuffer


class TransformedChunks:
    """The stored chunks of one segment, in order. They can be iterated only once.

    For a segment of any size, memory is at most ``chunks_in_flight`` times the size of an original and a stored chunk.
    A yielded chunk is valid until the next chunk is requested. Initialization vectors are made in the order of the
    chunks, on the caller's thread. ``stored_sizes`` grows with each yielded chunk and is complete at the end.
    """

    def __init__(
        self,
        read_into: ReadInto,
        size: int,
        chunk_size: int,
        encoder: ChunkEncoder,
        *,
        pool: Executor,
        chunks_in_flight: int,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._read_into = read_into
        self._size = size
        self._chunk_size = chunk_size
        self._encoder = encoder
        self._pool = pool
        self._chunks_in_flight = chunks_in_flight
        self._random_bytes = random_bytes
        self.stored_sizes: array[int] = array("q")

    def __iter__(self) -> Generator[bytes | memoryview, None, None]:
        free = [_Slot(GrowingBuffer(), GrowingBuffer()) for _ in range(self._chunks_in_flight)]
        running: deque[tuple[_Slot, Future[bytes | memoryview]]] = deque()
        positions = self._positions()
        try:
            while True:
                # Fill every free slot before waiting for the oldest chunk, so that the pool does not idle while the
                # consumer works.
                while free and (position := next(positions, None)) is not None:
                    slot = free.pop()
                    running.append((slot, self._submit(position, slot)))
                if not running:
                    return
                slot, future = running.popleft()
                stored = future.result()
                self.stored_sizes.append(len(stored))
                yield stored
                # Free the slot only now, because the consumer may read its memory until it requests the next chunk.
                free.append(slot)
        finally:
            # Wait for running tasks, because none may write into this segment's memory or read its file after the
            # iteration. Do not wait for cancelled tasks, because they stay pending until a thread takes them from the
            # queue, perhaps forever.
            wait([future for _, future in running if not future.cancel()])

    def _positions(self) -> Iterator[int]:
        return iter(range(0, self._size, self._chunk_size))

    def _submit(self, position: int, slot: _Slot) -> Future[bytes | memoryview]:
        # Make the IV here, in the order of the chunks, and not on threads of the pool. So a test that injects the
        # plugin's random bytes gets the same object as the plugin.
        iv = self._random_bytes(IV_SIZE) if self._encoder.cipher is not None else b""
        return self._pool.submit(self._transform, position, iv, slot)

    def _transform(self, position: int, iv: bytes, slot: _Slot) -> bytes | memoryview:
        original = slot.original.first(min(self._chunk_size, self._size - position))
        self._read_into(position, original)
        return self._encoder.encode(original, iv, slot.stored)
