"""Sections of a segment's log: the bytes that hold given offsets or times, found by the segment's indexes.

A decoder gets a section in buffers. :meth:`SectionBytes.check_end` then checks that the decoder has skipped no batch.

No checksum covers a batch's base offset, so a wrong base offset may look like the end of the requested range. To detect
this, a reader that stops early still reads the section's remaining batch headers. It also checks that the next batch
begins after the section.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Span
from tieredstore.errors import BatchCorruptError, IndexesCorruptError
from tieredstore.kafka.indexes import OffsetIndex, TimeIndex, read_offset_index, read_time_index
from tieredstore.model import ByteRange, IndexType, RemoteLogSegmentMetadata
from tieredstore.remote.fetch.log_batches import LogBatches

if TYPE_CHECKING:
    from tieredstore.kafka.records import RecordDecoder
    from tieredstore.remote.manager import NextSegment, RemoteStorageManager


@dataclass(frozen=True, slots=True)
class SectionEnd:
    """A border between two batches of a log, or an end of the log.

    The next batch begins at byte ``position``. Its first offset is at least ``low`` and at most ``high``, because the
    earlier batches include offset ``low - 1``, and end before ``high``.
    """

    position: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LogSection:
    """The part of a segment's log between two borders. The wanted offsets are ``[start_offset, stop_offset)``."""

    segment: RemoteLogSegmentMetadata
    begin: SectionEnd
    end: SectionEnd
    start_offset: int
    stop_offset: int

    @property
    def byte_range(self) -> ByteRange:
        """The section's bytes in the log. The range has only whole batches."""
        return ByteRange(self.begin.position, self.end.position)

    @property
    def is_read_to_its_end(self) -> bool:
        """True if the caller may want records of the section's last batch."""
        return self.stop_offset >= self.end.high

    @contextmanager
    def open(
        self,
        source: RemoteStorageManager,
        buffer_bytes: int,
        next_segment: NextSegment | None = None,
        *,
        decode_ahead: bool = True,
    ) -> Generator[SectionBytes]:
        """Yield the section's bytes, in buffers of at most ``buffer_bytes``, each valid until the next is requested.

        The stream requests the manifest first. It requests each chunk when the caller reaches the chunk, or shortly
        before. After the section, the stream requests only the first eight bytes of the next batch. See
        ``fetch_log_segment`` for ``next_segment``, and the stream's ``chunks`` for ``decode_ahead``.
        """
        if not len(self.byte_range):
            yield SectionBytes(self, iter(()))
            return
        last = min(self.end.position + BASE_OFFSET_SIZE, self.segment.segment_size_in_bytes) - 1
        with source.fetch_log_segment(self.segment, self.begin.position, last, next_segment=next_segment) as stream:
            chunks = stream.chunks(decode_ahead=decode_ahead)
            yield SectionBytes(self, self._buffers(chunks, buffer_bytes))

    def _buffers(self, chunks: Iterator[memoryview], buffer_bytes: int) -> Iterator[memoryview]:
        head = bytearray()
        for chunk in chunks:
            if len(head) < BASE_OFFSET_SIZE:
                head += chunk[: BASE_OFFSET_SIZE - len(head)]
                if len(head) == BASE_OFFSET_SIZE:
                    self.check_first(int.from_bytes(head, "big", signed=True))
            for start in range(0, len(chunk), buffer_bytes):
                yield chunk[start : start + buffer_bytes]

    def check_first(self, base_offset: int) -> None:
        """Raise IndexesCorruptError if the first batch does not fit the section's start.

        A read that begins too late would miss records, and no later check would notice the loss. Raise
        BatchCorruptError if the batch begins before the segment does.
        """
        if base_offset < self.segment.start_offset:
            raise BatchCorruptError(f"the record batch at byte {self.begin.position} begins at offset {base_offset}")
        if self.begin.position and not self.begin.low <= base_offset <= self.begin.high:
            raise IndexesCorruptError(
                f"the offset index of {self.segment} leads to byte {self.begin.position} for offset "
                f"{self.begin.high}, but the record batch there begins at offset {base_offset}"
            )


def sections_for_time(source: RemoteStorageManager, span: Span, timestamp_ms: int) -> Iterator[LogSection]:
    """Yield the section that probably has the span's first record of ``timestamp_ms`` or later, then a section that
    certainly has it, if the span has such a record.

    An entry of the time index proves that no record up to the entry's offset has a later timestamp. A record with the
    entry's timestamp is usually at the entry's offset or before it. But compaction may have removed this record,
    because it keeps the last batch of a producer, with its greatest timestamp, even if the batch has no records left.

    The search takes at most two requests. Raise IndexesCorruptError for a damaged index.
    """
    segment = span.segment
    times = time_index_of(source, segment)
    start, stops = max(span.start, times.offset_for_timestamp(timestamp_ms)), [span.stop]
    later = bisect_left(times, timestamp_ms, key=lambda entry: entry.timestamp)
    if later < len(times) and span.start <= times[later].offset < span.stop - 1:
        stops.insert(0, times[later].offset + 1)
    index, size = offset_index_of(source, segment), segment.segment_size_in_bytes
    # Begin the section at the batch of `start - 1` or before. Reading this batch proves that no batch before the
    # section has `start`.
    begin = SectionEnd(min(index.position_for_offset(start - 1), size), 0, start)
    for stop in stops:
        # The section ends at the second index entry whose offset is `stop` or later. The first such entry would be
        # too early. An entry has the last offset of an append, but the position of the append's first byte, and this
        # append may also have offsets before `stop`.
        following = bisect_left(index, max(start + 1, stop), key=lambda entry: entry.offset) + 1
        end = SectionEnd(index[following].position if following < len(index) else size, 0, segment.end_offset + 1)
        yield LogSection(segment, begin, end, span.start, span.stop)


def offset_since(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, timestamp_ms: int) -> int:
    """Return an offset before which all records are earlier than ``timestamp_ms``, according to the time index.

    The search takes at most two requests. Raise IndexesCorruptError for a damaged index.
    """
    times = time_index_of(source, segment)
    earlier = bisect_left(times, timestamp_ms, key=lambda entry: entry.timestamp)
    # If no entry of the time index is earlier than the requested time, even the first record may match.
    if not earlier:
        return segment.start_offset
    if times[-1].offset > segment.end_offset:
        raise IndexesCorruptError(f"the time index of {segment} has offset {times[-1].offset}, beyond its end")
    return times[earlier - 1].offset + 1


def position_before(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, offset: int) -> int:
    """Return the position of a batch at or before the record at ``offset``."""
    return 0 if offset <= segment.start_offset else offset_index_of(source, segment).position_for_offset(offset)


def offset_index_of(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
    """Read a segment's offset index, by at most two requests.

    Raise IndexesCorruptError if the index does not fit the log."""
    try:
        index = read_offset_index(_content(source, segment, IndexType.OFFSET), segment.start_offset)
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error
    if len(index) and index[-1].position >= segment.segment_size_in_bytes:
        size = segment.segment_size_in_bytes
        raise IndexesCorruptError(
            f"the offset index of {segment} points to byte {index[-1].position}, but the log has {size} bytes"
        )
    return index


def time_index_of(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> TimeIndex:
    """Read a segment's time index, by at most two requests.

    Raise IndexesCorruptError if the index is damaged."""
    try:
        return read_time_index(_content(source, segment, IndexType.TIMESTAMP), segment.start_offset)
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error


def _content(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
    with source.fetch_index(segment, kind) as stream:
        return stream.read()


BASE_OFFSET_SIZE: Final = 8
"""Size of the base offset at the start of each batch."""

_LONGEST_CUT_HEAD: Final = 16
"""The number of bytes to keep from a buffer's end, because a batch header may begin in them and continue in the next
buffer.
"""


class SectionBytes:
    """Iterator over the bytes of ``section``, in buffers that are valid until the next is requested. Not thread-safe.

    ``source`` may continue after the section, with the first bytes of the next batch.
    """

    def __init__(self, section: LogSection, source: Iterator[memoryview]) -> None:
        self._section = section
        self._segment = section.segment
        self._stop = section.end.position
        self._source = source
        self._position = section.begin.position
        self._buffer = memoryview(b"")
        self._before = self._behind = self._kept = b""

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        # Copy the end of this buffer now, because the request for the next buffer invalidates this one.
        self._before = (self._before + bytes(self._buffer[-_LONGEST_CUT_HEAD:]))[-_LONGEST_CUT_HEAD:]
        self._position += len(self._buffer)
        self._buffer = memoryview(b"")
        left = self._stop - self._position
        if not left:
            if self._ends_log:
                # Exhaust the source, which fetches nothing more. If a source is closed before its end, it drops what it
                # has prefetched of the next segment.
                next(self._source, None)
            raise StopIteration
        buffer = next(self._source)
        self._behind = bytes(buffer[left:])
        self._buffer = buffer[:left]
        return self._buffer

    @property
    def _ends_log(self) -> bool:
        return self._stop == self._segment.segment_size_in_bytes

    def check_end(self, decoder: RecordDecoder, *, is_whole: bool = True) -> None:
        """Check that the decoder of these buffers has skipped no batch of the section.

        The last batch must end at the section's end. If damaged batches were left out (``is_whole`` is False), the last
        batch may end earlier.

        Raise IndexesCorruptError if the last batch ends elsewhere. Raise BatchCorruptError if batches do not follow
        each other.
        """
        low, high = self._section.end.low, self._section.end.high
        reached = self._walk_rest(decoder)
        behind = self._base_offset_behind()
        if (reached < low and is_whole) or reached > high or (behind is not None and not reached <= behind <= high):
            following = "" if behind is None else f", and the batch at that byte begins at offset {behind}"
            raise IndexesCorruptError(
                f"the offset index of {self._segment} leads to byte {self._stop} for offsets {low} to {high}, "
                f"and the record batches before it end at offset {reached - 1}{following}"
            )

    def _walk_rest(self, decoder: RecordDecoder) -> int:
        """Walk over the batches that the decoder did not read. Return the offset after the last batch."""
        reached, position = decoder.offset_reached, decoder.stopped_at
        is_zeros = decoder.ended_in_zeros
        if position is not None:
            # The next batch header begins in the latest buffer, or in the bytes kept from the buffer before it.
            latest = self._before + bytes(self._buffer)
            self._kept = latest[position - self._position + len(self._before) :]
            for header in LogBatches(self, position, self._stop, self._segment).headers():
                # This checks the first batch; ``headers`` compares each later batch with its predecessor.
                if header.base_offset < reached:
                    raise BatchCorruptError(
                        f"{self._segment}: the record batch at byte {header.position} begins at offset "
                        f"{header.base_offset}, not after offset {reached - 1} of the batch before it"
                    )
                reached, position = header.last_offset + 1, header.position + header.size_in_bytes
            is_zeros = position < self._stop
        if is_zeros:
            self._check_zeros(reached)
        return reached

    def read(self, _: int, /) -> bytes:
        """Return the next bytes of the log; empty at the end."""
        kept, self._kept = self._kept, b""
        return kept or bytes(next(self, b""))

    def _check_zeros(self, reached: int) -> None:
        """Raise BatchCorruptError unless the zeros are the unused end of a preallocated log. All offsets of the segment
        must come before them."""
        if not self._ends_log:
            raise BatchCorruptError(f"{self._segment}: the log has zeros before byte {self._stop}, where it continues")
        # A broker trims a log before closing it. So zeros before the claimed end are probably a lost disk page.
        if reached <= self._segment.end_offset:
            raise BatchCorruptError(
                f"{self._segment}: the log has only zeros from offset {reached} on, but must reach offset "
                f"{self._segment.end_offset}"
            )

    def _base_offset_behind(self) -> int | None:
        """Return the base offset of the batch after the section; None at the log's end."""
        if self._ends_log:
            return None
        # Read the remaining buffers of the last batch, which the walk over the headers leaves unread.
        for _ in self:
            pass
        while len(self._behind) < BASE_OFFSET_SIZE:
            self._behind += bytes(next(self._source))
        return int.from_bytes(self._behind[:BASE_OFFSET_SIZE], "big", signed=True)


@contextmanager
def open_log(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, position: int) -> Generator[LogBatches]:
    """Open the batches of ``segment`` from byte ``position`` on. A batch must begin at this byte.

    Opening requests the manifest. A chunk is requested when the caller reads up to it.
    """
    if not 0 <= position <= segment.segment_size_in_bytes:
        size = segment.segment_size_in_bytes
        raise BatchCorruptError(
            f"the offset index of {segment} points to byte {position}, but the log has {size} bytes"
        )
    if position == segment.segment_size_in_bytes:
        yield LogBatches(io.BytesIO(), position, position, segment)
        return
    with source.fetch_log_segment(segment, position) as stream:
        yield LogBatches(stream, position, segment.segment_size_in_bytes, segment)
