"""A partition's records in pieces of about equal bytes: one process plans them, others read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import DataLoss
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.records.report import SkippedInSegment
from tieredstore.records.sections import LogSection, lost_behind_end, read_section, unreached
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitSection(LogSection):
    """The records of ``segment`` between two borders of its log with offsets in ``[start_offset, stop_offset)``.

    Parts that meet at a border of one log share no record, though their offsets may seem to overlap there by what
    lies between two entries of the offset index: which batch stands at a border is only known once it is read.
    ``aborted`` are the transactions whose records are not to be given. ``is_followed`` says that another segment begins
    where this one is said to end.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    is_followed: bool = True


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """What one task reads: parts of a partition's log in the order of offsets, one at least. Small, and picklable."""

    partition: TopicIdPartition
    parts: tuple[SplitSection, ...]

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


def _to_read_ahead(part: SplitSection | None) -> RemoteLogSegmentMetadata | None:
    """The segment to go on in before it is asked for: only one that is read from its first byte to its last."""
    if part is None or len(part.extent) < part.segment.segment_size_in_bytes or not part.is_read_to_its_end:
        return None
    return part.segment


def _read_part(
    source: SegmentSource,
    part: SplitSection,
    following: SplitSection | None,
    settings: ReadSettings,
) -> Iterator[pa.RecordBatch]:
    decoder = settings.decoder()
    yield from read_section(
        source,
        part,
        decoder,
        piece_bytes=settings.piece_bytes,
        aborted=part.aborted,
        next_segment=lambda: _to_read_ahead(following),
        decode_ahead=settings.decode_ahead,
    )
    if not part.is_followed and (lost := unreached(part, decoder)) is not None:
        sentence = lost_behind_end(lost, part)
        if settings.on_data_loss == "fail":
            raise DataLoss(f"{sentence}; {settings.accept_loss} to go on")
        _logger.warning("%s", sentence)
    for batch in decoder.skipped:
        _logger.warning("%s", SkippedInSegment(part.segment, batch))
