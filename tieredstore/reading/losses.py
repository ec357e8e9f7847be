"""Offsets that neither bucket nor broker has, and what becomes of a read that meets them: never silence."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tieredstore.errors import DataLoss
from tieredstore.model import TopicPartition
from tieredstore.records.report import LostOffsets, lost_offsets

if TYPE_CHECKING:
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.query import LogQuery

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


def losses_between(log: PartitionLog, start: int, stop: int) -> Iterator[LostOffsets]:
    """What of the offsets ``start`` up to ``stop`` (half-open) neither the bucket nor the broker has."""
    if log.lineage is not None:
        yield from lost_offsets(log.lineage, start, min(stop, log.seam))
    # Holes in the bucket are told of above. Beside them something may be missing at two places: between the seam and
    # the broker's first offset, and behind the log's end.
    live_start = log.seam if log.live_start is None else log.live_start
    for first, last in (
        (max(start, log.seam if log.lineage is not None else 0), min(stop, live_start)),
        (max(start, log.end), stop),
    ):
        if first < last:
            yield LostOffsets(log.topic_id_partition, first, last)


def report_losses(losses: Iterable[LostOffsets], query: LogQuery) -> None:
    """DataLoss that names the offsets; or a warning for each extent if the query puts up with losses."""
    extents = list(losses)
    if extents and query.fails_on_loss:
        named = ", ".join(map(_shown, extents[:_SHOWN]))
        more = f" and {len(extents) - _SHOWN} more such ranges" if len(extents) > _SHOWN else ""
        raise DataLoss(
            f"offsets {named}{more} are not there: retention passed by, a segment is missing, or they are not written "
            f"or not decided yet; ask for what is there, or {query.words.accept_loss} to read on"
        )
    for extent in extents:
        _logger.warning("%s", extent)


class LossRule:
    """The query's policy for losses that only a sentence tells of: raises DataLoss, or warns, each sentence once."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._told: set[str] = set()

    def __call__(self, sentence: str) -> None:
        """Data loss of which ``sentence`` tells."""
        if self._query.fails_on_loss:
            raise DataLoss(f"{sentence}; {self._query.words.accept_loss} to go on with what there is")
        # Who follows a log looks at it again and again, and meets the same loss each time.
        if sentence not in self._told:
            self._told.add(sentence)
            _logger.warning("%s", sentence)


def name_of(where: TopicPartition) -> str:
    """A partition as sentences have it."""
    return f"{where[0]}-{where[1]}"


def _shown(extent: LostOffsets) -> str:
    return f"{extent.start} to {extent.stop - 1} of {extent.partition.topic}-{extent.partition.partition}"
