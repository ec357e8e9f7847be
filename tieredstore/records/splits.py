"""A partition's records in pieces of about equal bytes: one process plans them, others read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.log_extents import LogExtent
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records import RecordDecoder
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.records.borders import Border
from tieredstore.records.report import SkippedInSegment
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The records of ``segment`` between two borders of its log with offsets in ``[start_offset, stop_offset)``.

    Parts that meet at a border of one log share no record, though their offsets may seem to overlap there by what
    lies between two entries of the offset index: which batch stands at a border is only known once it is read.
    ``aborted`` are the transactions whose records are not to be given.
    """

    segment: RemoteLogSegmentMetadata
    begin: Border
    end: Border
    start_offset: int
    stop_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def extent(self) -> ByteRange:
        """The bytes of the log, both ends borders of batches."""
        return ByteRange(self.begin.position, self.end.position)

    @property
    def is_read_to_its_end(self) -> bool:
        """Whether all batches of the extent may have records to give."""
        return self.stop_offset >= self.end.high


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """What one task reads: parts of a partition's log in the order of offsets, one at least. Small, and picklable."""

    partition: TopicIdPartition
    parts: tuple[SplitPart, ...]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the logs that are read for it."""
        return sum(len(part.extent) for part in self.parts)

    @property
    def start_offset(self) -> int:
        """No record has an offset before it."""
        return self.parts[0].start_offset

    @property
    def stop_offset(self) -> int:
        """All records have offsets before it."""
        return self.parts[-1].stop_offset


def read_split(source: SegmentSource, split: RecordSplit, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The records of a split, in record batches without empty ones.

    For each part a request for the manifest, and those for the chunks that hold its bytes; none for an index, and none
    beyond the split. Of ``settings`` the columns and what concerns decoding count: the isolation is the plan's. Besides
    what a record batch itself tells, IndexesCorrupt where the log does not have at the part's ends what the plan knows
    of them. A damaged batch that is left out is logged.
    """
    # Each part is told the next one, whose segment is read ahead before this one has ended.
    followers = (*split.parts[1:], None)
    for part, following in zip(split.parts, followers, strict=True):
        yield from _read_part(source, part, following, settings)


def _to_read_ahead(part: SplitPart | None) -> RemoteLogSegmentMetadata | None:
    """The segment to go on in before it is asked for: only one that is read from its first byte to its last."""
    if part is None or len(part.extent) < part.segment.segment_size_in_bytes or not part.is_read_to_its_end:
        return None
    return part.segment


def _read_part(
    source: SegmentSource,
    part: SplitPart,
    following: SplitPart | None,
    settings: ReadSettings,
) -> Iterator[pa.RecordBatch]:
    decoder = settings.decoder()
    log = LogExtent(part.segment, part.extent, part.begin.high, part.begin.low)
    with log.opened(source, settings.piece_bytes, lambda: _to_read_ahead(following)) as pieces:
        records = decoder.decode(
            pieces,
            start_offset=part.start_offset,
            # A border's offsets are the index's word, so that nothing is left out for them: they are checked.
            stop_offset=None if part.is_read_to_its_end else part.stop_offset,
            end_offset=part.segment.end_offset + 1,
            aborted=part.aborted,
            position=part.extent.start,
        )
        try:
            yield from records
        except BatchCorrupt as error:
            raise BatchCorrupt(f"{part.segment}: {error}") from error
    for batch in decoder.skipped:
        _logger.warning("%s", SkippedInSegment(part.segment, batch))
    _check_end(decoder, part)


def _check_end(decoder: RecordDecoder, part: SplitPart) -> None:
    """A part that ends at another place than the plan knows lacks records, and nothing that comes later would tell."""
    if part.extent.stop < part.segment.segment_size_in_bytes and decoder.ended_in_zeros:
        raise BatchCorrupt(f"{part.segment}: the log ends in zeros before byte {part.extent.stop}, and goes on there")
    too_early = decoder.next_offset < min(part.end.low, part.stop_offset) and not decoder.skipped
    if too_early or (part.is_read_to_its_end and decoder.next_offset > part.end.high):
        raise IndexesCorrupt(
            f"the offset index of {part.segment} leads to byte {part.extent.stop} for the offsets {part.end.low} to "
            f"{part.end.high}, and the record batches before it end at offset {decoder.next_offset - 1}"
        )
