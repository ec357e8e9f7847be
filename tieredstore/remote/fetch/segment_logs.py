"""Opening of segment logs as streams: read the manifest, then load the chunks that overlap the range."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Final

from tieredstore.errors import AlreadyClosedError, InvalidRangeError, SegmentCorruptError, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.model import ByteRange, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.futures import outcome
from tieredstore.remote.fetch.chunk_cache import layout_digest
from tieredstore.remote.fetch.chunk_loads import OpenSegment
from tieredstore.remote.fetch.stream import SegmentStream
from tieredstore.transform.chunks import ChunkDecoder

if TYPE_CHECKING:
    from tieredstore.remote.fetch.chunk_loader import ChunkLoader
    from tieredstore.remote.fetch.manifests import Manifests
    from tieredstore.remote.manager import NextSegment

_MOST_LISTED: Final = 1024
"""Maximum number of chunks whose positions are kept as a tuple. For segments with more chunks, each position is
computed on demand."""

MAX_PREPARED: Final = 4
"""Maximum number of prepared segments that are not yet opened. If there are more, the oldest is dropped."""


class SegmentLogs:
    """Logs of a store's segments, opened as streams. Safe from several threads."""

    def __init__(self, manifests: Manifests, loader: ChunkLoader, pool: Executor) -> None:
        self._manifests = manifests
        self._loader = loader
        self._pool = pool
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child, drop prepared segments. The threads that prepare the segments exist only in the parent."""
        # The lock is reentrant, because the garbage collector may close a stream while this thread holds the lock. The
        # stream then drops its prepared segment, and so takes the lock again.
        self._lock = threading.RLock()
        self._prepared: OrderedDict[RemoteLogSegmentId, PreparedSegment] = OrderedDict()

    def open(
        self,
        metadata: RemoteLogSegmentMetadata,
        byte_range: ByteRange | None = None,
        next_segment: NextSegment | None = None,
    ) -> SegmentStream:
        """Open the bytes of ``byte_range`` (default: all). Read the manifest now, chunks on demand.

        If an earlier stream has prepared this segment, use the prepared stream with its running loads.
        """
        stream = self._take_prepared(metadata, byte_range) or self._open(metadata, byte_range)
        if next_segment is not None:
            stream.continue_in(Continuation(self, next_segment))
        return stream

    def prepare(self, metadata: RemoteLogSegmentMetadata) -> PreparedSegment:
        """Open a segment in the background, for a later ``open``."""
        prepared = PreparedSegment(self._pool.submit(self._open, metadata, None))
        with self._lock:
            self._prepared[metadata.remote_log_segment_id] = prepared
            dropped = [self._prepared.popitem(last=False)[1] for _ in range(len(self._prepared) - MAX_PREPARED)]
        for old in dropped:
            old.drop()
        return prepared

    def drop(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop a prepared segment that will not be opened."""
        with self._lock:
            prepared = self._prepared.pop(segment_id, None)
        if prepared is not None:
            prepared.drop()

    def close(self) -> None:
        """Drop all prepared segments."""
        for segment_id in list(self._prepared):
            self.drop(segment_id)

    def _take_prepared(self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange | None) -> SegmentStream | None:
        with self._lock:
            prepared = self._prepared.pop(metadata.remote_log_segment_id, None)
        if prepared is None:
            return None
        # The prepared stream covers the whole segment, so use it only if the whole segment is requested.
        if byte_range is not None and byte_range != ByteRange(0, metadata.segment_size_in_bytes):
            prepared.drop()
            return None
        return prepared.take()

    def _open(self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange | None) -> SegmentStream:
        opened = self._manifests.get(metadata)
        manifest = opened.manifest
        size = manifest.chunk_index.original_file_size
        log_range = byte_range or ByteRange(0, size)
        if log_range.stop > size:
            raise SegmentCorruptError(
                f"{metadata} has {size} bytes according to its manifest, but {metadata.segment_size_in_bytes} "
                "according to its metadata"
            )
        positions = manifest.chunk_index.positions()
        # A position is needed several times while its chunk is loaded. If there are few chunks, compute all positions
        # once.
        if len(positions) <= _MOST_LISTED:
            positions = tuple(positions)
        segment = OpenSegment(
            metadata=metadata,
            log_key=self._manifests.layout.data_key(metadata, Suffix.LOG),
            index=manifest.chunk_index,
            positions=positions,
            decoder=ChunkDecoder(manifest.compression, opened.cipher),
            layout=layout_digest(manifest),
        )
        return SegmentStream(segment, log_range, self._loader)


class PreparedSegment:
    """A segment that is being opened in the background, and the number of its bytes to prefetch."""

    def __init__(self, opening: Future[SegmentStream]) -> None:
        self._opening = opening
        self._byte_count = 0
        self._is_over = False
        # The lock is reentrant, because the garbage collector may close a stream while this thread holds the lock. The
        # stream then drops its prepared segment, and so takes the lock again.
        self._lock = threading.RLock()

    def prefetch(self, byte_count: int) -> None:
        """Prefetch at least the first ``byte_count`` bytes, without waiting. Call it from one thread at a time."""
        self._byte_count = max(self._byte_count, byte_count)
        self._opening.add_done_callback(self._prefetch)

    def take(self) -> SegmentStream | None:
        """Return the stream, or None if the segment could not be opened."""
        try:
            stream = outcome(self._opening)
        # Return None, so that the caller opens the segment again and sees the error.
        except TieredStoreError:
            return None
        self._end()
        return stream

    def drop(self) -> None:
        """Close the segment without using it."""
        self._end()
        if not self._opening.cancel():
            self._opening.add_done_callback(_close)

    def _end(self) -> None:
        """Stop prefetching, because a reader takes the stream or the segment is dropped."""
        with self._lock:
            self._is_over = True

    def _prefetch(self, opening: Future[SegmentStream]) -> None:
        # Only one thread at a time may use a stream. The future wakes its waiters before it calls this function, so
        # without the lock a waiter could use the stream at the same time.
        with self._lock:
            if not self._is_over and not opening.cancelled() and opening.exception() is None:
                with contextlib.suppress(AlreadyClosedError):  # no read follows
                    outcome(opening).prefetch(self._byte_count)


def _close(opening: Future[SegmentStream]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        outcome(opening).close()


class Continuation:
    """The log of the segment that ``next_segment`` returns, prepared while the end of the present segment is read."""

    def __init__(self, logs: SegmentLogs, next_segment: NextSegment) -> None:
        self._logs = logs
        self._next_segment = next_segment
        self._asked = False
        self._following: RemoteLogSegmentMetadata | None = None
        self._prepared: PreparedSegment | None = None

    def prepare(self, byte_count: int) -> None:
        """Start loading the next segment's first ``byte_count`` bytes, without waiting."""
        if not self._asked:
            self._asked = True
            self._following = self._next_segment()
            if self._following is not None:
                self._prepared = self._logs.prepare(self._following)
        if self._prepared is not None:
            self._prepared.prefetch(byte_count)

    def drop(self) -> None:
        """Drop the prepared segment, because no read follows."""
        if self._following is not None:
            self._logs.drop(self._following.remote_log_segment_id)


def range_of_request(metadata: RemoteLogSegmentMetadata, start: int, end: int | None) -> ByteRange:
    """Return Kafka's inclusive ``start..end``, clamped to the segment's last byte, as a half-open range."""
    size = metadata.segment_size_in_bytes
    stop = size if end is None else min(end + 1, size)
    if size == 0 and start == 0:
        return ByteRange(0, 0)
    if not 0 <= start < stop:
        raise InvalidRangeError(
            f"bytes {start} to {'the end' if end is None else end} are not in {metadata}: it has {size} bytes"
        )
    return ByteRange(start, stop)
