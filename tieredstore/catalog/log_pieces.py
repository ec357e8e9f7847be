"""An extent of a log on its way to a decoder, and the proof at its end that no batch was passed over.

No checksum covers where a batch begins to count: a wrong digit there may look like the end of what was asked for. So
whoever stops early walks over what is left, and the batch that stands behind the extent has to begin behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from tieredstore.catalog.log_batches import LogBatches
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata

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


class LogPieces:
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

    def __init__(self, pieces: LogPieces, position: int) -> None:
        self._pieces = pieces
        self._first = pieces.kept_from(position)

    def read(self, size: int, /) -> bytes:
        first, self._first = self._first, b""
        return first or self._pieces.read(size)
