"""Data loss: requested offsets that no longer exist. This module describes losses in messages, and applies the query's
policy.

A query chooses between two policies: a loss raises an error, or the read logs a warning and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import DataLossError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition, Uuid, name_of
from tieredstore.partitions.selections import is_selected
from tieredstore.process.log_once import LogOnce
from tieredstore.records.report import LostOffsets

if TYPE_CHECKING:
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.partitions.position import Standing
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Loss:
    """Data that existed and is gone or was replaced.

    ``sentence`` describes the loss, for errors and warnings. In errors, ``way_out`` follows, with the query's words for
    accepting losses in place of ``{}``. ``warnings`` replace the sentence if the query accepts losses.
    """

    sentence: str
    way_out: str = "; {} to continue with the current log"
    warnings: tuple[str, ...] | None = None


def loss_of_partition(where: TopicPartition, topic_id: Uuid, position: int) -> Loss:
    """Return the loss of a partition that was read up to ``position`` and no longer exists."""
    return Loss(f"{name_of(where)} ({topic_id}) is gone, but was read up to offset {position}")


def loss_of_topic(topic: str, now_id: Uuid, read: str) -> Loss:
    """Return the loss of a topic that was re-created. The clause ``read`` says up to which offset it was read."""
    return Loss(f"topic {topic} was created again as {now_id}, and {read}")


def loss_of_position(position: int, standing: Standing, log: PartitionLog) -> Loss:
    """Return the loss of a position that is not valid in the current log. ``standing`` says why."""
    at = standing.at
    match standing.kind:
        case "cut":
            reason = (
                f"was read up to offset {position}, but an election truncated the log at offset {at}: offsets {at} to "
                f"{position - 1} are no longer part of it"
            )
        case "before":
            reason = f"begins at offset {log.earliest}, but was read up to {position}"
        case "beyond":
            reason = f"ends at offset {log.end}, but was read up to {position}"
        case _:
            reason = (
                f"was read up to offset {position}, but the bucket's records from there on are of an older leader "
                "epoch: waiting for newer segments"
            )
    return Loss(f"{name_of(log.where)} ({log.topic_id}) {reason}")


def loss_of_end(where: TopicPartition, topic_id: Uuid, end: int, stop: int) -> Loss:
    """Return the loss of requested offsets up to ``stop``, before which the log now ends."""
    return Loss(f"{name_of(where)} ({topic_id}) ends at offset {end}, but offsets up to {stop - 1} were requested")


def loss_of_request(where: TopicPartition, topic_id: Uuid, start: int, stop: int, now_id: Uuid | None) -> Loss:
    """Return the loss of requested offsets whose partition is gone, or whose topic was re-created as ``now_id``."""
    now = "is gone" if now_id is None else f"is {now_id} now"
    return Loss(f"{name_of(where)} ({topic_id}) {now}, but offsets {start} to {stop - 1} were requested")


class Losses:
    """Applies a query's policy to losses: raise DataLossError, or log a warning once."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._log = LogOnce(_logger)

    def accept(self, loss: Loss, cause: Exception | None = None) -> None:
        """Log a warning if the query accepts losses; otherwise raise DataLossError from ``cause`` with advice."""
        if self._query.fails_on_loss:
            raise DataLossError(loss.sentence + loss.way_out.format(self._query.words.accept_loss)) from cause
        for warning in (loss.sentence,) if loss.warnings is None else loss.warnings:
            self._log.warn(warning)

    def accept_missing(self, spans: Iterable[LostOffsets]) -> None:
        """Apply the policy to missing offsets. Do nothing if ``spans`` is empty."""
        missing = tuple(spans)
        if not missing:
            return
        shown = ", ".join(
            f"{one.start} to {one.stop - 1} of {one.partition.topic}-{one.partition.partition}"
            for one in missing[:_SHOWN]
        )
        more = f" and {len(missing) - _SHOWN} more ranges" if len(missing) > _SHOWN else ""
        sentence = (
            f"offsets {shown}{more} are not available: deleted by retention, in a missing segment, not written yet, or "
            "in an open transaction"
        )
        way_out = "; request other offsets, or {} to skip these"
        self.accept(Loss(sentence, way_out, tuple(map(str, missing))))

    def check_readable(
        self,
        snapshot: LogSnapshot,
        windows: Mapping[TopicPartition, OffsetWindow],
        *,
        starts_there: Collection[TopicPartition] = (),
        stops_there: Collection[TopicPartition] = (),
    ) -> None:
        """Apply the policy to unreadable segments that may have records of the windows.

        An unreadable segment is no loss if it belongs to another topic id, or if its offsets are in another segment or
        read from the broker. At the beginning or end of a log, an unreadable segment leaves no gap that a reader could
        notice. So it counts as a loss there.

        For partitions in ``starts_there``, the caller gave the start as an offset. The caller then notices that the
        records begin later, so an unreadable segment there is no loss. The same applies to ``stops_there`` and the end.
        """
        hidden = [*self._without_log(snapshot)]
        for where, (start, stop) in windows.items():
            log = snapshot.logs[where]
            own = (one for one in snapshot.unreadable if one.segment_id.topic_id_partition == log.stored_partition)
            hidden += unreadable_between(
                own, _readable(log), start, stop, starts_there=where in starts_there, stops_there=where in stops_there
            )
        if hidden:
            more = f" (and {len(hidden) - 1} more)" if len(hidden) > 1 else ""
            # The snapshot has logged these segments as problems, so log no further warning.
            self.accept(Loss(f"{hidden[0]}{more}", "; {} to read without it", warnings=()))

    def _without_log(self, snapshot: LogSnapshot) -> Iterator[Problem]:
        """Yield the problems of selected partitions that have no log in the snapshot."""
        for problem in snapshot.unreadable:
            where, topic_id = problem.where, problem.segment_id.topic_id_partition.topic_id
            is_other_life = self._query.topic_ids.get(where[0]) not in (None, topic_id)
            if where not in snapshot.logs and is_selected(self._query.selection, where) and not is_other_life:
                yield problem


def losses_between(log: PartitionLog, start: int, stop: int) -> Iterator[LostOffsets]:
    """Yield the offsets from ``start`` up to ``stop`` (exclusive) that neither the bucket nor the broker has."""
    if log.lineage is not None:
        # Offsets before the log's first offset were deleted by retention, or were never copied. They count as lost,
        # because a Kafka consumer would get "offset out of range" for them.
        first = min(stop, log.seam, log.lineage.earliest_offset)
        if start < first:
            yield LostOffsets(log.lineage.partition, start, first)
        yield from log.lineage.gaps_between(start, min(stop, log.seam))
    # Also yield two more ranges: from the end of the bucket's part to the broker's first offset, and after the end of
    # the log.
    live_start = log.seam if log.live_start is None else log.live_start
    for first, last in (
        (max(start, log.seam if log.lineage is not None else 0), min(stop, live_start)),
        (max(start, log.end), stop),
    ):
        if first < last:
            yield LostOffsets(log.topic_id_partition, first, last)


def _readable(log: PartitionLog) -> list[OffsetWindow]:
    """Return the ranges of readable offsets in the log, ascending."""
    stored = [] if log.lineage is None else [(span.start, span.stop) for span in log.lineage.spans]
    live = [] if log.live_start is None else [(max(log.live_start, log.seam), MAX_OFFSET)]
    return sorted((*stored, *live))
