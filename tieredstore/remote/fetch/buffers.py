"""Memory for the chunks of a stream: buffers that the stream reuses if possible, or the reader's own buffer."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TypeAlias

from tieredstore.errors import AlreadyClosedError
from tieredstore.model import ByteRange
from tieredstore.transform.chunks import fresh_memory

_ROUNDED: Final = 1 << 20

Original: TypeAlias = memoryview
"""Original bytes of one chunk. The holder must not change them."""


class BufferPool:
    """Memory that one stream reuses, because page faults in fresh memory cost more than decoding.

    Without ``reuse``, every buffer is fresh memory. This is necessary if a cache keeps the buffers and shares them with
    other readers. Safe from several threads.
    """

    def __init__(self, *, reuse: bool) -> None:
        self._free: list[memoryview] = []
        self._reuse = reuse
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes with undefined content."""
        with self._lock:
            fitting = [memory for memory in self._free if len(memory) >= size]
            if fitting:
                smallest = min(fitting, key=len)
                self._free = [memory for memory in self._free if memory is not smallest]
                return smallest[:size]
            # No free buffer is large enough, so drop one of them. Round the new size up, because the sizes of
            # compressed chunks differ a little. The buffer then fits the next request too.
            del self._free[:1]
        return fresh_memory(-(-size // _ROUNDED) * _ROUNDED if size > _ROUNDED else size)[:size]

    def give(self, view: memoryview) -> None:
        """Accept memory from ``take`` for reuse. Nothing may refer to the memory any more."""
        if self._reuse:
            with self._lock:
                self._free.append(memoryview(view.obj))


class StreamBuffers:
    """Memory of a stream, in separate pools for stored and for decoded bytes, because their sizes differ.

    The buffers of ``cached`` are always reused, because no other stream uses the chunks in them.
    """

    def __init__(self, *, reuse: bool) -> None:
        self.stored: BufferPool = BufferPool(reuse=reuse)
        self.originals: BufferPool = BufferPool(reuse=reuse)
        self.cached: BufferPool = BufferPool(reuse=True)


class Destination:
    """A reader's own buffer and its range of the log. Chunks inside the range are decoded straight into the buffer.

    Loads may write into the buffer until the reader takes it back. Safe from several threads.
    """

    def __init__(self, buffer: memoryview, byte_range: ByteRange) -> None:
        self._buffer = buffer
        self._range = byte_range
        self._changed = threading.Condition(threading.Lock())
        self._writers = 0
        self._is_back = False

    def holds(self, log_range: ByteRange) -> bool:
        """Return True if all of ``log_range`` lies in the buffer's range."""
        return self._range.start <= log_range.start and log_range.stop <= self._range.stop

    @contextmanager
    def lend(self, log_range: ByteRange) -> Generator[memoryview]:
        """Yield the part of the buffer for ``log_range``, which the caller fills in the ``with`` block. Raise
        AlreadyClosedError if the reader has taken the buffer back.
        """
        with self._changed:
            if self._is_back:
                raise AlreadyClosedError("the read that these bytes were fetched for has ended")
            self._writers += 1
        try:
            yield self._buffer[log_range.start - self._range.start : log_range.stop - self._range.start]
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    def take_back(self, timeout_s: float) -> bool:
        """Refuse new writers to the buffer, and wait for running writers. Return False if a writer is still running
        after the timeout.
        """
        with self._changed:
            self._is_back = True
            return self._changed.wait_for(lambda: not self._writers, timeout_s)
