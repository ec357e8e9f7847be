"""From offsets and times to bytes: the extent of a segment's log that holds them, by the segment's indexes.

An extent goes to a decoder in pieces, and at its end there is proof that no batch was passed over. No checksum covers
where a batch begins to count: a wrong digit there may look like the end of what was asked for. So a reader that stops
early walks over what is left, and the batch that stands behind the extent has to begin behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_batches import LogBatches
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.kafka.indexes import OffsetIndex, TimeIndex, read_offset_index, read_time_index
from tieredstore.model import ByteRange, IndexType, RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.source import NextSegment, SegmentSource


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Bytes of a segment's log, both ends batch borders.

    The first batch begins at ``first_offset`` or before, but not before ``least_offset``.
    """

    segment: RemoteLogSegmentMetadata
    byte_range: ByteRange
    first_offset: int
    least_offset: int = 0

    @contextmanager
    def opened(
        self,
        source: SegmentSource,
        piece_bytes: int,
        next_segment: NextSegment | None = None,
        *,
        decode_ahead: bool = True,
    ) -> Generator[SectionBytes]:
        """The bytes in pieces of ``piece_bytes`` at most; each is valid until the next is asked for.

        A request for the manifest, and those for the chunks that are reached or read ahead: none beyond the extent, but
        for the eight bytes with which the batch behind it begins. For ``next_segment`` see ``fetch_log_segment``, for
        ``decode_ahead`` the stream's ``chunks``.
        """
        if not len(self.byte_range):
            yield SectionBytes(self.segment, self.byte_range, iter(()))
            return
        stop = min(self.byte_range.stop + BASE_OFFSET_SIZE, self.segment.segment_size_in_bytes)
        first, last = self.byte_range.start, stop - 1
        with source.fetch_log_segment(self.segment, first, last, next_segment=next_segment) as stream:
            chunks = stream.chunks(decode_ahead=decode_ahead)
            yield SectionBytes(self.segment, self.byte_range, self._pieces(chunks, piece_bytes))

    def _pieces(self, chunks: Iterator[memoryview], piece_bytes: int) -> Iterator[memoryview]:
        head = bytearray()
        for chunk in chunks:
            if len(head) < BASE_OFFSET_SIZE:
                head += chunk[: BASE_OFFSET_SIZE - len(head)]
                if len(head) == BASE_OFFSET_SIZE:
                    self.check_first(int.from_bytes(head, "big", signed=True))
            for start in range(0, len(chunk), piece_bytes):
                yield chunk[start : start + piece_bytes]

    def check_first(self, base_offset: int) -> None:
        """IndexesCorrupt unless the first batch is one that may stand there.

        A log that is read from too far on lacks records, and nothing that comes later would tell.
        """
        if base_offset < self.segment.start_offset:
            raise BatchCorrupt(f"the record batch at byte {self.byte_range.start} begins at offset {base_offset}")
        if self.byte_range.start and not self.least_offset <= base_offset <= self.first_offset:
            raise IndexesCorrupt(
                f"the offset index of {self.segment} leads to byte {self.byte_range.start} for offset "
                f"{self.first_offset}, and the record batch there begins at offset {base_offset}"
            )


def section_for_time(source: SegmentSource, span: Span, timestamp_ms: int) -> LogExtent:
    """The extent that holds the span's first record of ``timestamp_ms`` or later, if there is one.

    A time index entry says that a record of its timestamp lies at its offset or before, and none of a later one. Two
    requests at most; IndexesCorrupt for an index that does not hold together.
    """
    times = time_index_of(source, span.segment)
    start, stop = max(span.start, times.offset_for_timestamp(timestamp_ms)), span.stop
    later = bisect_left(times, timestamp_ms, key=lambda entry: entry.timestamp)
    if later < len(times) and times[later].offset >= span.start:
        stop = min(stop, times[later].offset + 1)
    return _extent(source, span.segment, start, max(start + 1, stop))


def offset_since(source: SegmentSource, segment: RemoteLogSegmentMetadata, timestamp_ms: int) -> int:
    """An offset before which all records of the segment are earlier than ``timestamp_ms``, by its time index.

    Two requests at most; IndexesCorrupt for an index that does not hold together.
    """
    times = time_index_of(source, segment)
    earlier = bisect_left(times, timestamp_ms, key=lambda entry: entry.timestamp)
    # No entry proves any record to be too early.
    if not earlier:
        return segment.start_offset
    if times[-1].offset > segment.end_offset:
        raise IndexesCorrupt(f"the time index of {segment} has offset {times[-1].offset}, beyond its end")
    return times[earlier - 1].offset + 1


def _extent(source: SegmentSource, segment: RemoteLogSegmentMetadata, start: int, stop: int) -> LogExtent:
    index, size = offset_index_of(source, segment), segment.segment_size_in_bytes
    # An entry has the last offset of what was appended together at its position, so that the first entry at `stop` or
    # later may still begin before it; the next one does not.
    following = bisect_left(index, stop, key=lambda entry: entry.offset) + 1
    end = index[following].position if following < len(index) else size
    # Before the batch that may hold `start` there is to be another one, which it has to follow.
    return LogExtent(segment, ByteRange(min(index.position_for_offset(start - 1), size), end), start)


def position_before(source: SegmentSource, segment: RemoteLogSegmentMetadata, offset: int) -> int:
    """A byte of the log where a batch begins, before all records from ``offset`` on."""
    return 0 if offset <= segment.start_offset else offset_index_of(source, segment).position_for_offset(offset)


def offset_index_of(source: SegmentSource, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
    """A segment's offset index, by two requests at most; IndexesCorrupt if it does not fit the log."""
    try:
        index = read_offset_index(_content(source, segment, IndexType.OFFSET), segment.start_offset)
    except BatchCorrupt as error:
        raise IndexesCorrupt(f"{segment}: {error}") from error
    if len(index) and index[-1].position >= segment.segment_size_in_bytes:
        size = segment.segment_size_in_bytes
        raise IndexesCorrupt(f"the offset index of {segment} points to byte {index[-1].position} of {size}")
    return index


def time_index_of(source: SegmentSource, segment: RemoteLogSegmentMetadata) -> TimeIndex:
    """A segment's time index, by two requests at most; IndexesCorrupt if it does not hold together."""
    try:
        return read_time_index(_content(source, segment, IndexType.TIMESTAMP), segment.start_offset)
    except BatchCorrupt as error:
        raise IndexesCorrupt(f"{segment}: {error}") from error


def _content(source: SegmentSource, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
    with source.fetch_index(segment, kind) as stream:
        return stream.read()


BASE_OFFSET_SIZE: Final = 8
"""Bytes at the start of each batch that say where it begins to count."""

_LONGEST_CUT_HEAD: Final = 16
"""Bytes of a batch that a decoder may have seen at the end of a piece without knowing where it begins to count."""


class DecodedLog(Protocol):
    """What a decoder says of the log that it has decoded."""

    @property
    def offset_reached(self) -> int:
        """One more than the last offset of the batches that were walked over."""
        ...

    @property
    def stopped_at(self) -> int | None:
        """The byte at which it stopped early."""
        ...

    @property
    def ended_in_zeros(self) -> bool:
        """Whether zeros ended the log."""
        ...


class SectionBytes:
    """The bytes of ``extent`` in pieces, each valid until the next is asked for. For one thread.

    ``source`` may go on behind the extent, with what the batch there begins with.
    """

    def __init__(self, segment: RemoteLogSegmentMetadata, extent: ByteRange, source: Iterator[memoryview]) -> None:
        self._segment = segment
        self._extent = extent
        self._source = source
        self._position = extent.start
        self._piece = memoryview(b"")
        self._before = b""
        self._behind = b""

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        # Before the next one is asked for: this one is gone then.
        self._before = (self._before + bytes(self._piece[-_LONGEST_CUT_HEAD:]))[-_LONGEST_CUT_HEAD:]
        self._position += len(self._piece)
        self._piece = memoryview(b"")
        left = self._extent.stop - self._position
        if not left:
            if self._extent.stop == self._segment.segment_size_in_bytes:
                # The source learns only so that its last piece was read, and not left in the middle: what it has read
                # ahead of the next segment would be given up. Nothing is fetched for it.
                next(self._source, None)
            raise StopIteration
        piece = next(self._source)
        self._behind = bytes(piece[left:])
        self._piece = piece[:left]
        return self._piece

    def check_end(self, decoded: DecodedLog, low: int, high: int, *, is_whole: bool = True) -> None:
        """See that a decoder which has taken these pieces has passed over no batch up to the extent's end.

        The batches before that end in front of offset ``high``, and unless damaged ones were left out (``is_whole``)
        they reach to ``low``. IndexesCorrupt if they do not; BatchCorrupt if batches do not follow each other.
        """
        reached = self._walk_rest(decoded)
        behind = self._base_offset_behind()
        if (reached < low and is_whole) or reached > high or (behind is not None and not reached <= behind <= high):
            following = "" if behind is None else f", and the one behind it begins at offset {behind}"
            raise IndexesCorrupt(
                f"the offset index of {self._segment} leads to byte {self._extent.stop} for offsets {low} to {high}, "
                f"and the record batches before it end at offset {reached - 1}{following}"
            )

    def read(self, _: int, /) -> bytes:
        """Some bytes of what follows the latest piece, as many as there are together; none at the end."""
        return bytes(next(self, b""))

    def _walk_rest(self, decoded: DecodedLog) -> int:
        """Walk over what the decoder has left of the extent; one more than the last offset of all of it."""
        reached, position = decoded.offset_reached, decoded.stopped_at
        is_zeros = decoded.ended_in_zeros
        if position is not None:
            rest = LogBatches(_Rest(self, position), position, self._extent.stop, self._segment)
            for header in rest.headers():
                # Of the first one: the others are held against the one before them.
                if header.base_offset < reached:
                    raise BatchCorrupt(
                        f"{self._segment}: the record batch at byte {header.position} begins at offset "
                        f"{header.base_offset}, not after offset {reached - 1} of the batch before it"
                    )
                reached, position = header.last_offset + 1, header.position + header.size_in_bytes
            is_zeros = position < self._extent.stop
        if is_zeros:
            self._check_zeros(reached)
        return reached

    def _check_zeros(self, reached: int) -> None:
        """BatchCorrupt unless the zeros are those of a preallocated log: at its end, behind all that it claims."""
        if self._extent.stop < self._segment.segment_size_in_bytes:
            raise BatchCorrupt(
                f"{self._segment}: the log ends in zeros before byte {self._extent.stop}, and goes on there"
            )
        # A broker trims a log before it closes it. Zeros in place of batches are what a lost disk page looks like.
        if reached <= self._segment.end_offset:
            raise BatchCorrupt(
                f"{self._segment}: the log ends in zeros behind offset {reached - 1}, and it has to reach offset "
                f"{self._segment.end_offset}"
            )

    def _base_offset_behind(self) -> int | None:
        """What the batch behind the extent says, None where the log ends there."""
        if self._extent.stop == self._segment.segment_size_in_bytes:
            return None
        # Whoever walked over the last batch may have left the pieces that it lies in.
        for _ in self:
            pass
        while len(self._behind) < BASE_OFFSET_SIZE:
            self._behind += bytes(next(self._source))
        return int.from_bytes(self._behind[:BASE_OFFSET_SIZE], "big", signed=True)

    def kept_from(self, position: int) -> bytes:
        """The bytes from ``position`` of the log, in the latest piece or right before it, to that piece's end."""
        return (self._before + bytes(self._piece))[position - self._position + len(self._before) :]


class _Rest:
    """What comes from a position on, as a stream."""

    def __init__(self, pieces: SectionBytes, position: int) -> None:
        self._pieces = pieces
        self._first = pieces.kept_from(position)

    def read(self, size: int, /) -> bytes:
        first, self._first = self._first, b""
        return first or self._pieces.read(size)
