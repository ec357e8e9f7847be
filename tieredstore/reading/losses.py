"""Data loss: requested offsets that no longer exist. This module describes losses in messages, and applies the query's
policy.

A query chooses between two policies: a loss raises an error, or the read logs a warning and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import DataLossError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid, name_of
from tieredstore.partitions.selections import is_selected
from tieredstore.process.log_once import LogOnce
from tieredstore.records.report import LostOffsets, lost_offsets

if TYPE_CHECKING:
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.partitions.position import Standing
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery, QueryWords

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


class Missing(NamedTuple):
    """Offsets that neither the bucket nor the broker has."""

    spans: tuple[LostOffsets, ...]


class Unreadable(NamedTuple):
    """Segments that exist but cannot be read. The snapshot also logs them as problems."""

    problems: tuple[Problem, ...]


class Deleted(NamedTuple):
    """Offsets that retention deleted from the bucket during the read."""

    lost: LostOffsets
    error: Exception


class DeletedOnBroker(NamedTuple):
    """Offsets that retention deleted from the broker during the read and that are not in the bucket."""

    lost: LostOffsets
    error: Exception


class CutWhileRead(NamedTuple):
    """Offsets at the broker that a leader election has truncated since the read was planned."""

    lost: LostOffsets
    cut_at: int


class StartsBeyond(NamedTuple):
    """A start offset beyond the end of the log. If it was valid once, the log has been truncated since."""

    where: TopicPartition
    start: int
    end: int


class NotOnBroker(NamedTuple):
    """A topic in the bucket that the broker does not have."""

    topic: str


class OtherThanNamed(NamedTuple):
    """A topic whose id on the broker differs from the id that the query requests."""

    topic: str
    live: Uuid | None
    wanted: Uuid | None


class OtherLife(NamedTuple):
    """A topic that was re-created: the bucket has only segments of other topic ids than the broker's."""

    topic: str
    live: Uuid | None
    stored: tuple[Uuid, ...]


class EarlierEpoch(NamedTuple):
    """A log at the broker whose leader epoch is earlier than the epoch of the bucket's last record."""

    partition: TopicIdPartition
    epoch: int
    stored: int


class Behind(NamedTuple):
    """A log at the broker that ends before the bucket's log."""

    partition: TopicIdPartition
    end: int
    seam: int


class Gone(NamedTuple):
    """A partition that was read up to ``position`` and no longer exists."""

    where: TopicPartition
    topic_id: Uuid
    position: int


class CreatedAgain(NamedTuple):
    """A topic that was re-created after it was read. ``read`` is the clause of the message that says up to which offset
    the topic was read."""

    topic: str
    now: Uuid
    read: str


class Moved(NamedTuple):
    """A position that is not valid in the current log. ``standing`` says why."""

    where: TopicPartition
    position: int
    standing: Standing
    log: PartitionLog


class BeginsLate(NamedTuple):
    """A partition that was added during a stream and does not begin at offset 0."""

    where: TopicPartition
    earliest: int


class EndsBefore(NamedTuple):
    """A log that has become too short. A stream must read a batch again, but the log now ends before the batch does."""

    where: TopicPartition
    topic_id: Uuid
    end: int
    stop: int


class NotReadable(NamedTuple):
    """Offsets of a stream's batch that cannot be read again: their partition is gone, or its topic was re-created.

    ``now`` is the id of the re-created topic, and None if the partition is gone.
    """

    where: TopicPartition
    topic_id: Uuid
    start: int
    stop: int
    now: Uuid | None


Mismatch: TypeAlias = NotOnBroker | OtherThanNamed | OtherLife | EarlierEpoch | Behind
"""Contradictions between bucket and broker."""

PositionLost: TypeAlias = Gone | CreatedAgain | Moved | BeginsLate | EndsBefore | NotReadable
"""Positions at which a reader cannot continue."""

Loss: TypeAlias = (
    Missing | Unreadable | Deleted | DeletedOnBroker | CutWhileRead | StartsBeyond | Mismatch | PositionLost
)  # fmt: skip
"""Data that existed and is gone or was replaced."""


def sentence(loss: Loss, words: QueryWords) -> str:
    """Describe the loss, for errors and warnings."""
    match loss:
        case Missing(spans):
            shown = ", ".join(
                f"{one.start} to {one.stop - 1} of {one.partition.topic}-{one.partition.partition}"
                for one in spans[:_SHOWN]
            )
            more = f" and {len(spans) - _SHOWN} more ranges" if len(spans) > _SHOWN else ""
            return (
                f"offsets {shown}{more} are not available: deleted by retention, in a missing segment, not written "
                "yet, or in an open transaction"
            )
        case Unreadable(problems):
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            return f"{next(iter(problems))}{more}"
        case Deleted(lost, error):
            offsets = f"offsets {lost.start} to {lost.stop - 1} of {lost.partition}"
            return f"{offsets} were deleted while they were read: {error}"
        case DeletedOnBroker(_, error):
            return str(error)
        case CutWhileRead(lost, cut_at):
            return (
                f"offsets {lost.start} to {lost.stop - 1} of {lost.partition} were requested, but an election "
                f"truncated the log at offset {cut_at}"
            )
        case StartsBeyond(where, start, end):
            return f"{words.starts} {name_of(where)} at offset {start}, but its log ends before offset {end}"
        case NotOnBroker() | OtherThanNamed() | OtherLife() | EarlierEpoch() | Behind():
            return _mismatch(loss, words)
        case _:
            return _position_lost(loss)


def _mismatch(loss: Mismatch, words: QueryWords) -> str:
    match loss:
        case NotOnBroker(topic):
            return f"topic {topic} is in the bucket, but the broker has no such topic"
        case OtherThanNamed(topic, live, wanted):
            return f"topic {topic} has id {live} on the broker, but {words.topic_ids} names {wanted}"
        case OtherLife(topic, live, stored):
            known = ", ".join(map(str, stored))
            return f"topic {topic} was created again: its id is {live} on the broker and {known} in the bucket"
        case EarlierEpoch(partition, epoch, stored_epoch):
            return (
                f"the broker's log of {partition} has leader epoch {epoch}, but the bucket has records of epoch "
                f"{stored_epoch}: the broker has another log, or a deposed leader has answered"
            )
        case Behind(partition, end, seam):
            return (
                f"the broker's log of {partition} ends at offset {end - 1}, but the bucket has records up to offset "
                f"{seam - 1}"
            )


def _position_lost(loss: PositionLost) -> str:
    match loss:
        case Gone(where, topic_id, position):
            return f"{name_of(where)} ({topic_id}) is gone, but was read up to offset {position}"
        case CreatedAgain(topic, other_id, read):
            return f"topic {topic} was created again as {other_id}, and {read}"
        case BeginsLate(where, earliest):
            return f"{name_of(where)} is new, but begins at offset {earliest} instead of 0"
        case EndsBefore(where, topic_id, end, stop):
            return f"{name_of(where)} ({topic_id}) ends at offset {end}, but offsets up to {stop - 1} were requested"
        case NotReadable(where, topic_id, start, stop, now_id):
            now = "is gone" if now_id is None else f"is {now_id} now"
            return f"{name_of(where)} ({topic_id}) {now}, but offsets {start} to {stop - 1} were requested"
        case Moved(where, position, standing, log):
            return f"{name_of(where)} ({log.topic_id}) {_describe_move(position, standing, log)}"


def _describe_move(position: int, standing: Standing, log: PartitionLog) -> str:
    at = standing.at
    match standing.kind:
        case "cut":
            return (
                f"was read up to offset {position}, but an election truncated the log at offset {at}: offsets {at} to "
                f"{position - 1} are no longer part of it"
            )
        case "before":
            return f"begins at offset {log.earliest}, but was read up to {position}"
        case "beyond":
            return f"ends at offset {log.end}, but was read up to {position}"
        case _:
            return (
                f"was read up to offset {position}, but the bucket's records from there on are of an older leader "
                "epoch: waiting for newer segments"
            )


def _way_out(loss: Loss, accept_loss: str) -> str:
    """Return the last clause of an error, which tells the user what to do."""
    match loss:
        case Missing():
            return f"; request other offsets, or {accept_loss} to skip these"
        case Unreadable():
            return f"; {accept_loss} to read without it"
        case Deleted():
            return ""
        case DeletedOnBroker():
            return f"; {accept_loss} to continue"
        case CutWhileRead():
            return f"; {accept_loss} to read the present log"
        case StartsBeyond():
            return f"; start earlier, or {accept_loss} to start at the end"
        case Gone() | CreatedAgain() | Moved() | BeginsLate() | EndsBefore() | NotReadable():
            return f"; {accept_loss} to continue with the present log"
        case _:
            return f"; check the settings, or {accept_loss} to read anyway"


def _warnings(loss: Loss, words: QueryWords) -> Iterable[str]:
    """Return the warnings to log if the query accepts losses."""
    match loss:
        case Missing(spans):
            return map(str, spans)
        case Unreadable():
            return ()
        case DeletedOnBroker(lost, error):
            where = name_of((lost.partition.topic, lost.partition.partition))
            return (f"offsets {lost.start} to {lost.stop - 1} of {where} are lost: {error}",)
        case _:
            return (sentence(loss, words),)


class Losses:
    """Applies a query's policy to losses: raise DataLossError, or log a warning once."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._log = LogOnce(_logger)

    def accept(self, loss: Loss, cause: Exception | None = None) -> None:
        """Log a warning if the query accepts losses; otherwise raise DataLossError from ``cause`` with advice."""
        words = self._query.words
        if self._query.fails_on_loss:
            raise DataLossError(sentence(loss, words) + _way_out(loss, words.accept_loss)) from cause
        for warning in _warnings(loss, words):
            self._log.warn(warning)

    def accept_missing(self, spans: Iterable[LostOffsets]) -> None:
        """Apply the policy to missing offsets. Do nothing if ``spans`` is empty."""
        if missing := tuple(spans):
            self.accept(Missing(missing))

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
        at the broker. At the beginning or end of a log, an unreadable segment leaves no gap that a reader could
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
            self.accept(Unreadable(tuple(hidden)))

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
        yield from lost_offsets(log.lineage, start, min(stop, log.seam))
    # The gaps between the bucket's segments were yielded above. Now yield two ranges: from the end of the bucket's part
    # to the broker's first offset, and after the end of the log.
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
    live = [] if log.live_start is None else [(log.live_start, MAX_OFFSET)]
    return sorted((*stored, *live))
