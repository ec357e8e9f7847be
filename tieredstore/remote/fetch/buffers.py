"""The memory of streams: used again and again, and where it can be the reader's own."""

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
"""The original bytes of one chunk; read only, for whoever holds it."""


class BufferPool:
    """Memory that one stream uses again and again, since fresh memory costs more to fault in than to decode into.

    With ``reuse`` off every buffer is fresh: what a cache's loads give is shared with other readers. Safe from several
    threads.
    """

    def __init__(self, *, reuse: bool) -> None:
        self._free: list[memoryview] = []
        self._reuse = reuse
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """``size`` bytes, whatever they hold."""
        with self._lock:
            fitting = [memory for memory in self._free if len(memory) >= size]
            if fitting:
                smallest = min(fitting, key=len)
                self._free = [memory for memory in self._free if memory is not smallest]
                return smallest[:size]
            # One that has become too small makes room. Rounded up, the next run of compressed chunks fits too.
            del self._free[:1]
        return fresh_memory(-(-size // _ROUNDED) * _ROUNDED if size > _ROUNDED else size)[:size]

    def give(self, view: memoryview) -> None:
        """Hand memory back that ``take`` gave out and that nobody looks at any more."""
        if self._reuse:
            with self._lock:
                self._free.append(memoryview(view.obj))


class StreamBuffers:
    """A stream's memory: pools of their own for what comes and for what becomes of it, whose sizes differ.

    What is ``cached`` has been read for the stream alone, and its memory is used again whatever becomes of loads.
    """

    def __init__(self, *, reuse: bool) -> None:
        self.stored: BufferPool = BufferPool(reuse=reuse)
        self.originals: BufferPool = BufferPool(reuse=reuse)
        self.cached: BufferPool = BufferPool(reuse=True)


class Destination:
    """A reader's own buffer, and which bytes of the log belong into it: chunks inside are decoded straight there.

    It is lent to whoever writes into it, until the reader takes it back. Safe from several threads.
    """

    def __init__(self, buffer: memoryview, byte_range: ByteRange) -> None:
        self._buffer = buffer
        self._range = byte_range
        self._changed = threading.Condition(threading.Lock())
        self._writers = 0
        self._is_back = False

    def holds(self, log_range: ByteRange) -> bool:
        """Whether all of ``log_range`` belongs into it."""
        return self._range.start <= log_range.start and log_range.stop <= self._range.stop

    @contextmanager
    def lent(self, log_range: ByteRange) -> Generator[memoryview]:
        """The part of the buffer where ``log_range`` belongs, for the block; AlreadyClosedError if it was taken
        back."""
        with self._changed:
            if self._is_back:
                raise AlreadyClosedError("the read that this was fetched for has ended")
            self._writers += 1
        try:
            yield self._buffer[log_range.start - self._range.start : log_range.stop - self._range.start]
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    def take_back(self, timeout_s: float) -> bool:
        """Lend it no more, and wait until nobody writes into it; False if somebody still does after the time-out."""
        with self._changed:
            self._is_back = True
            return self._changed.wait_for(lambda: not self._writers, timeout_s)
