"""The memory of streams: used again and again, and where it can be the reader's own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, TypeAlias

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
    """A stream's memory: pools of their own for what comes and for what becomes of it, whose sizes differ."""

    def __init__(self, *, reuse: bool) -> None:
        self.stored = BufferPool(reuse=reuse)
        self.originals = BufferPool(reuse=reuse)


@dataclass(frozen=True, slots=True)
class Destination:
    """A reader's own buffer, and which bytes of the log belong into it: chunks inside are decoded straight there."""

    buffer: memoryview
    byte_range: ByteRange

    def region(self, log_range: ByteRange) -> memoryview | None:
        """The part of the buffer where ``log_range`` belongs; None if not all of it does."""
        if log_range.start < self.byte_range.start or log_range.stop > self.byte_range.stop:
            return None
        return self.buffer[log_range.start - self.byte_range.start : log_range.stop - self.byte_range.start]
