"""File over the bytes of a range. A limited number of chunks is loaded ahead of the reader."""

from __future__ import annotations

import contextlib
import io
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from tieredstore.errors import AlreadyClosedError
from tieredstore.model import ByteRange
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.remote.fetch.buffers import Destination, Original, StreamBuffers
from tieredstore.remote.fetch.chunk_loads import MAX_CHUNKS_ON_THEIR_WAY, Job
from tieredstore.transform.chunks import fresh_memory

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from tieredstore.remote.fetch.chunk_loader import ChunkLoader
    from tieredstore.remote.fetch.chunk_loads import Load, OpenSegment, Scheduled
    from tieredstore.remote.fetch.segment_logs import Continuation

_TAKE_BACK_S: Final = 0.5
"""After a failed read, wait this many seconds at a time for loads that still write into the buffer."""

_POOLED: Final = range(1 << 20, (4 << 20) + 1)
"""Sizes of reads that use pooled memory. In fresh memory, page faults took a sixth of the time of a 1 MiB read."""


class ReadAhead:
    """Limit of read-ahead in bytes, for each reader or, if ``is_shared``, for all readers together. Safe from several
    threads.

    A reader gets at most an equal part of a shared limit, and only what the other readers leave unused. The limit does
    not count the bytes of the read itself, so a reader may always load the chunk at its position.
    """

    def __init__(self, limit_bytes: int, *, is_shared: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._is_shared = is_shared
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset the limit in a forked child, where no loads run and readers start again."""
        # The lock is reentrant, because the garbage collector may close a reader while this thread holds the lock.
        self._lock = threading.RLock()
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def grant(self, reader: object) -> int:
        """Return how many bytes beyond its position ``reader`` may load now."""
        if not self._is_shared:
            return self.limit_bytes
        with self._lock:
            own = self._held.setdefault(reader, 0)
            others = sum(self._held.values()) - own
            return max(0, min(self.limit_bytes // len(self._held), self.limit_bytes - others))

    def hold(self, reader: object, byte_count: int) -> None:
        """Record the bytes that ``reader`` is loading, or has loaded and not read."""
        if self._is_shared:
            with self._lock:
                self._held[reader] = byte_count

    def release(self, reader: object) -> None:
        """Record that ``reader`` has finished."""
        if self._is_shared:
            with self._lock:
                self._held.pop(reader, None)


class SegmentStream(io.RawIOBase):
    """A readable, seekable file over a range of a segment's log. Position 0 is the range's first byte.

    Sequential reads load as many bytes ahead as ``read_ahead`` grants, plus at most one request. A seek ends
    read-ahead, and two consecutive reads start it again. The stream takes as much memory as it loads ahead, and twice
    as much for compressed or encrypted chunks.

    A failed read does not move the position, so the read can be repeated. Use a stream from one thread at a time, and
    close it.
    """

    def __init__(self, segment: OpenSegment, byte_range: ByteRange, loader: ChunkLoader) -> None:
        super().__init__()
        self._segment = segment
        self._range = byte_range
        self._position = byte_range.start
        self._loader = loader
        self._continuation: Continuation | None = None
        self._buffers = loader.take_buffers()
        self._scheduled: deque[Scheduled] = deque()
        self._head: Original | None = None
        self._sequential = True
        self._decodes_ahead = True
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child, keep the position and forget running loads. The threads that run the loads exist only in
        the parent.
        """
        self._scheduled = deque()
        self._head = None
        self._buffers = StreamBuffers(reuse=self._loader.cache is None)
        self._continuation = None

    def continue_in(self, continuation: Continuation) -> None:
        """Read ahead into the next segment at the end of this one."""
        self._continuation = continuation

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position within the range."""
        return self._position - self._range.start

    @property
    def remaining(self) -> int:
        """Bytes from the position to the end of the range."""
        return max(0, self._range.stop - self._position)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to another position, without loading. Reads past the end return nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: len(self._range)}.get(whence)
        if base is None:
            raise ValueError(f"whence is {whence}; it must be 0, 1 or 2")
        if base + offset < 0:
            raise ValueError(f"position {base + offset} is before the start")
        if base + offset != self.tell():
            self._position = self._range.start + base + offset
            self._sequential = False
            self._keep_what_follows()
        return self.tell()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to ``size`` bytes (all that remain if negative). Return fewer only at the end."""
        self._check_open()
        size = self.remaining if size is None or size < 0 else min(size, self.remaining)
        # Fresh memory takes no pages until it is written, so a damaged manifest that claims 2 GiB costs no memory.
        buffers, is_pooled = self._buffers.originals, size in _POOLED
        data = buffers.take(size) if is_pooled else fresh_memory(size)
        # After an error, loads may still write into ``data``. These writes do no harm, because nothing reads ``data``
        # any more.
        self._fill(data, Destination(data, ByteRange(self._position, self._position + size)))
        read = bytes(data)
        if is_pooled:
            buffers.give(data)
        return read

    def readall(self) -> bytes:
        """Read all bytes that remain."""
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer``. Return the number of bytes, which is lower only at the end of the range.

        After AlreadyClosedError or an interrupt, a request may still write into the buffer if the store has not
        answered it yet.
        """
        self._check_open()
        target = memoryview(buffer).cast("B")[: self.remaining]
        destination = Destination(target, ByteRange(self._position, self._position + len(target)))
        try:
            return self._fill(target, destination)
        except BaseException as error:
            self._take_back(destination, error)
            raise

    def chunks(self, *, decode_ahead: bool = True) -> Iterator[memoryview]:
        """Yield the remaining bytes chunk by chunk, without a copy.

        A chunk is valid until the next chunk is requested or the stream is closed. Its memory is then reused.

        Without ``decode_ahead``, this thread decodes each chunk on demand. This takes a fraction of the memory, and a
        tenth less processor time, because the decoded bytes are in this core's cache. Decode on demand if there are at
        least as many parallel streams as processors.
        """
        self._check_open()
        self._decodes_ahead = decode_ahead
        while self.remaining:
            chunk_range = self._segment.index.original_range(self._segment.index.chunk_at(self._position))
            size = min(chunk_range.stop, self._range.stop) - self._position
            try:
                self._loader.check_open()
                self._schedule(size)
                self._read_cached(size)
                data = self._current(size)
            except BaseException:
                self._forget()
                raise
            begin = self._position - chunk_range.start
            yield data[begin : begin + size].toreadonly()
            self._advance(size)
            self._after_read(size)

    def prefetch(self, byte_count: int) -> None:
        """Start loading ``byte_count`` bytes from the position, without waiting."""
        most = min(self._loader.coalesce_max_bytes, max(self._loader.read_ahead.limit_bytes, 1))
        self._start_loads(self._position + byte_count, self._range.stop, most)
        self._hold()

    def close(self) -> None:
        """Stop loading. Requests that have not started never start."""
        if not self.closed:
            # If the reader stopped at the end of a chunk, the stream still holds the chunk's memory, so give it back
            # now.
            if self._head is not None and self._scheduled:
                self._drop_first()
            # A load may still write into the stream's memory, so later streams must not reuse it.
            if self._cancel_loads():
                self._buffers = StreamBuffers(reuse=False)
            else:
                self._loader.give_buffers(self._buffers)
            self._loader.read_ahead.release(self)
            if self._continuation is not None and self.remaining:
                self._continuation.drop()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the stream is closed")
        self._loader.check_open()

    def _fill(self, target: memoryview, destination: Destination) -> int:
        start, filled = self._position, 0
        try:
            while filled < len(target):
                self._loader.check_open()
                self._schedule(len(target) - filled, destination)
                self._read_cached(len(target) - filled, destination)
                filled += self._take(target[filled:])
        except BaseException:
            # Go back to the start, so that the caller can repeat the same read.
            self._position = start
            self._forget()
            raise
        self._after_read(filled)
        return filled

    def _take_back(self, destination: Destination, error: BaseException) -> None:
        """After an error, wait until no load writes into the caller's buffer.

        The store's deadlines end the loads, so the wait is limited. After an interrupt, or if the manager is closed,
        wait only a moment.
        """
        is_hurried = not isinstance(error, Exception)
        while not destination.take_back(_TAKE_BACK_S):
            if is_hurried or self._loader.is_closed:
                return

    def _after_read(self, count: int) -> None:
        self._loader.counters.add(bytes_asked=count)
        if self._sequential:
            with contextlib.suppress(AlreadyClosedError):  # the next read raises this error
                self._schedule(0)
        self._sequential = True  # the next read continues here, unless a seek comes first

    def _schedule(self, needed: int, destination: Destination | None = None) -> None:
        """Start the loads for this read and, if reads are sequential, for the next reads."""
        most = self._loader.coalesce_max_bytes
        ahead = self._loader.read_ahead.grant(self) if self._sequential else 0
        horizon = self._position + max(min(needed, most), ahead)
        # After a seek, load only the requested bytes, because the next read may be anywhere.
        if not ahead:
            self._start_loads(horizon, self._position + needed, most, destination)
            self._hold()
            return
        self._start_loads(horizon, self._range.stop, min(most, max(needed, ahead)), destination)
        self._hold()
        past_the_end = self._position + ahead - self._range.stop
        at_segment_end = self._range.stop == self._segment.index.original_file_size
        if past_the_end > 0 and at_segment_end and self._continuation is not None:
            self._continuation.prepare(past_the_end)

    def _start_loads(self, horizon: int, limit: int, most: int, destination: Destination | None = None) -> None:
        """Start requests of at most ``most`` bytes each, for the chunks that begin before ``horizon`` and are not
        scheduled yet.
        """
        index = self._segment.index
        end = min(limit, self._range.stop)
        if end <= self._position:
            return
        stop = index.chunk_at(end - 1) + 1
        following = self._scheduled[-1].chunk + 1 if self._scheduled else index.chunk_at(self._position)
        # Limit the number of chunks as well as their bytes, because a segment may have chunks of one byte.
        while (
            following < stop
            and following * index.original_chunk_size < horizon
            and len(self._scheduled) < MAX_CHUNKS_ON_THEIR_WAY
        ):
            job = Job(self._segment, range(following, stop), self._buffers, destination, end, not self._decodes_ahead)
            is_awaited = not self._scheduled and destination is not None
            scheduled = self._loader.schedule(job, most, is_awaited=is_awaited)
            self._scheduled.extend(scheduled)
            following = scheduled[-1].chunk + 1

    def _hold(self) -> None:
        last = self._scheduled[-1] if self._scheduled else None
        end = self._position if last is None else self._segment.index.original_range(last.chunk).stop
        self._loader.read_ahead.hold(self, max(0, min(end, self._range.stop) - self._position))

    def _read_cached(self, needed: int, destination: Destination | None = None) -> None:
        """Read all cached chunks of the next ``needed`` bytes at once."""
        if self._head is not None or not self._scheduled[0].is_unread:
            return
        chunk_size, end = self._segment.index.original_chunk_size, self._position + needed
        unread = {
            one.chunk: place
            for place, one in enumerate(self._scheduled)
            if one.is_unread and one.chunk * chunk_size < end
        }
        for one in self._loader.read_cached(self._segment, list(unread), self._buffers, destination):
            self._scheduled[unread[one.chunk]] = one

    def _take(self, target: memoryview) -> int:
        """Copy the current chunk's bytes into ``target``. Return the number of copied bytes."""
        first = self._scheduled[0]
        chunk_range = self._segment.index.original_range(first.chunk)
        size = min(chunk_range.stop - self._position, len(target))
        current = self._current(size)
        if not first.direct:
            begin = self._position - chunk_range.start
            target[:size] = current[begin : begin + size]
        self._advance(size)
        return size

    def _current(self, size: int) -> Original:
        """Return the original bytes of the first scheduled chunk, with at least ``size`` bytes after the position."""
        first = self._scheduled[0]
        if self._head is None:
            self._head = self._loader.original(first)
        begin = self._position - self._segment.index.original_range(first.chunk).start
        if begin + size > len(self._head):
            # The chunk was decoded only up to the end of the previous read, so decode all of it now.
            whole = self._loader.whole(self._segment, first, self._buffers)
            self._buffers.originals.give(self._head)
            self._head = whole
        return self._head

    def _advance(self, size: int) -> None:
        self._position += size
        # If the process was forked while a chunk was in use, nothing is scheduled in the child.
        if not self._scheduled:
            return
        chunk = self._scheduled[0].chunk
        # At the end of the range, release the last chunk even if only part of it was needed.
        if self._position >= min(self._segment.index.original_range(chunk).stop, self._range.stop):
            self._drop_first()

    def _drop_first(self) -> None:
        first, head = self._scheduled.popleft(), self._head
        self._head = None
        if head is not None and first.load is not None and first.owned:
            first.load.finish_one(None if first.direct else head, self._buffers)
        elif head is not None and first.cached is not None and not first.direct:
            self._buffers.cached.give(head)

    def _keep_what_follows(self) -> None:
        """After a seek to a scheduled chunk, keep that chunk and the chunks after it. After any other seek, drop all
        scheduled chunks.
        """
        chunk = self._position // self._segment.index.original_chunk_size
        if not self._scheduled or not self._scheduled[0].chunk <= chunk <= self._scheduled[-1].chunk:
            self._forget()
        while self._scheduled and self._scheduled[0].chunk < chunk:
            self._drop_first()

    def _forget(self) -> None:
        if self._cancel_loads():
            self._buffers = self._loader.take_buffers()  # running loads still write into the old memory

    def _cancel_loads(self) -> bool:
        """Forget all loads. Return True if a load may still write into this stream's memory."""
        if not self._scheduled:
            return False
        is_under_way = any(entry.load is not None for entry in self._scheduled)
        loads: set[Load] = {entry.load for entry in self._scheduled if entry.load is not None and entry.owned}
        for load in loads:
            load.cancel()
        self._scheduled.clear()
        self._head = None
        self._hold()
        return is_under_way
