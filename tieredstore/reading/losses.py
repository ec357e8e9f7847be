"""Data loss: requested offsets that no longer exist, worded in one place and judged by the query's policy.

A loss is never silent: it is an error, or a warning and the read continues after it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import DataLossError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.selections import is_selected
from tieredstore.records.report import LostOffsets, lost_offsets

if TYPE_CHECKING:
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.partitions.position import LogBounds, Standing
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery, QueryWords

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


class Missing(NamedTuple):
    """Offsets that neither the bucket nor the broker has."""

    spans: tuple[LostOffsets, ...]


class Unreadable(NamedTuple):
    """Segments that exist but cannot be read; they are logged as problems of the snapshot."""

    problems: tuple[Problem, ...]


class Deleted(NamedTuple):
    """Offsets that retention deleted from the bucket during the read."""

    lost: LostOffsets
    error: Exception


class DeletedOnBroker(NamedTuple):
    """Offsets that retention deleted from the broker during the read, and that were not copied."""

    lost: LostOffsets
    error: Exception


class CutWhileRead(NamedTuple):
    """Offsets of the broker that an election truncated after they were planned."""

    lost: LostOffsets
    cut_at: int


class StartsBeyond(NamedTuple):
    """A start offset beyond the log's end: if it was valid once, the log has been truncated since."""

    where: TopicPartition
    start: int
    end: int


class NotOnBroker(NamedTuple):
    """A topic of the bucket that the broker does not have."""

    topic: str


class OtherThanNamed(NamedTuple):
    """A topic that the broker has under another id than the query names."""

    topic: str
    live: Uuid | None
    wanted: Uuid | None


class OtherLife(NamedTuple):
    """A topic whose incarnations in the bucket do not include the broker's."""

    topic: str
    live: Uuid | None
    stored: tuple[Uuid, ...]


class EarlierEpoch(NamedTuple):
    """A broker's log of an earlier leader epoch than the bucket's last record."""

    partition: TopicIdPartition
    epoch: int
    stored: int


class Behind(NamedTuple):
    """A broker's log that ends before the bucket's does."""

    partition: TopicIdPartition
    end: int
    seam: int


class Gone(NamedTuple):
    """A partition that was read up to ``position`` and no longer exists."""

    where: TopicPartition
    topic_id: Uuid
    position: int


class CreatedAgain(NamedTuple):
    """A topic whose id has changed since it was read; ``read`` says how far."""

    topic: str
    now: Uuid
    read: str


class Moved(NamedTuple):
    """A position that is not valid in the present log: see ``Standing``; ``stale`` does not count."""

    where: TopicPartition
    position: int
    standing: Standing
    log: LogBounds


class BeginsLate(NamedTuple):
    """A partition that appeared during a stream and does not begin at its first offset."""

    where: TopicPartition
    earliest: int


class EndsBefore(NamedTuple):
    """A log that ends before the offsets of a repeated batch."""

    where: TopicPartition
    topic_id: Uuid
    end: int
    stop: int


class NotReadable(NamedTuple):
    """Offsets of a repeated batch whose partition no longer exists, or is another one ``now``."""

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
"""Data that existed and are gone, or were replaced."""


def sentence(loss: Loss, words: QueryWords) -> str:
    """Describe the loss for errors and warnings."""
    match loss:
        case Missing(spans):
            shown = ", ".join(
                f"{one.start} to {one.stop - 1} of {one.partition.topic}-{one.partition.partition}"
                for one in spans[:_SHOWN]
            )
            more = f" and {len(spans) - _SHOWN} more such ranges" if len(spans) > _SHOWN else ""
            return (
                f"offsets {shown}{more} are not there: retention passed by, a segment is missing, or they are not "
                "written or not decided yet"
            )
        case Unreadable(problems):
            more = f" (and so it is with {len(problems) - 1} more)" if len(problems) > 1 else ""
            return f"{next(iter(problems))}{more}"
        case Deleted(lost, error):
            offsets = f"offsets {lost.start} to {lost.stop - 1} of {lost.partition}"
            return f"{offsets} were deleted while they were read: {error}"
        case DeletedOnBroker(_, error):
            return str(error)
        case CutWhileRead(lost, cut_at):
            return (
                f"offsets {lost.start} to {lost.stop - 1} of {lost.partition} were to be read, and a later leader "
                f"epoch has written another log from offset {cut_at} on"
            )
        case StartsBeyond(where, start, end):
            return f"{words.starts} {name_of(where)} at offset {start}, and its log ends before offset {end}"
        case NotOnBroker() | OtherThanNamed() | OtherLife() | EarlierEpoch() | Behind():
            return _mismatch(loss, words)
        case _:
            return _position_lost(loss)


def _mismatch(loss: Mismatch, words: QueryWords) -> str:
    match loss:
        case NotOnBroker(topic):
            return f"topic {topic} is in the bucket, and the broker has no topic of this name"
        case OtherThanNamed(topic, live, wanted):
            return f"topic {topic} is {live} on the broker, and {words.topic_ids} names {wanted}"
        case OtherLife(topic, live, stored):
            known = ", ".join(map(str, stored))
            return f"topic {topic} was created again: it is {live} on the broker and {known} in the bucket"
        case EarlierEpoch(partition, epoch, stored_epoch):
            return (
                f"the broker's log of {partition} is of leader epoch {epoch}, and the bucket has records of epoch "
                f"{stored_epoch}: it is not the log that was copied, or a deposed leader has answered"
            )
        case Behind(partition, end, seam):
            return (
                f"the broker's log of {partition} ends at offset {end - 1}, and the bucket has records up to offset "
                f"{seam - 1}"
            )


def _position_lost(loss: PositionLost) -> str:
    match loss:
        case Gone(where, topic_id, position):
            return f"{name_of(where)} ({topic_id}) is gone, and it was read up to offset {position}"
        case CreatedAgain(topic, other_id, read):
            return f"topic {topic} was created again as {other_id}, and {read}"
        case BeginsLate(where, earliest):
            return f"{name_of(where)} is new, and it begins at offset {earliest} instead of 0"
        case EndsBefore(where, topic_id, end, stop):
            return f"{name_of(where)} ({topic_id}) ends at offset {end}, and offsets up to {stop - 1} are to be read"
        case NotReadable(where, topic_id, start, stop, now_id):
            now = "is gone" if now_id is None else f"is {now_id} now"
            return f"{name_of(where)} ({topic_id}) {now}, and offsets {start} to {stop - 1} are to be read"
        case Moved(where, position, standing, log):
            return f"{name_of(where)} ({log.topic_id}) {_moved(position, standing, log)}"


def _moved(position: int, standing: Standing, log: LogBounds) -> str:
    at = standing.at
    match standing.kind:
        case "cut":
            return (
                f"was read up to offset {position}, and from offset {at} on a later leader epoch has written another "
                f"log: offsets {at} to {position - 1} were of one that was left behind"
            )
        case "before":
            return f"begins at offset {log.earliest}, and it was read up to {position}"
        case "beyond":
            return f"ends at offset {log.end}, and it was read up to {position}"
        case _:
            return (
                f"was read up to offset {position}, and what the bucket has behind that is of an older leader epoch: "
                "later segments have to come"
            )


def _way_out(loss: Loss, accept_loss: str) -> str:
    """Return the advice for the reader of an error."""
    match loss:
        case Missing():
            return f"; ask for what is there, or {accept_loss} to read on"
        case Unreadable():
            return f"; {accept_loss} to read without it"
        case Deleted():
            return ""
        case DeletedOnBroker():
            return f"; {accept_loss} to go on"
        case CutWhileRead():
            return f"; {accept_loss} to read what there is now"
        case StartsBeyond():
            return f"; start there, or {accept_loss} to start at the end"
        case Gone() | CreatedAgain() | Moved() | BeginsLate() | EndsBefore() | NotReadable():
            return f"; {accept_loss} to go on with what there is"
        case _:
            return f"; check the settings, or {accept_loss} to read what there is"


def _warnings(loss: Loss, words: QueryWords) -> Iterable[str]:
    """Return the warnings to log where the query accepts losses."""
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
    """A query's policy: a loss raises DataLossError, or logs one warning however often it is met."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._warned: set[str] = set()

    def accept(self, loss: Loss, cause: Exception | None = None) -> None:
        """Raise DataLossError with its way out and ``cause``, or log a warning, by the query's policy."""
        words = self._query.words
        if self._query.fails_on_loss:
            raise DataLossError(sentence(loss, words) + _way_out(loss, words.accept_loss)) from cause
        for warning in _warnings(loss, words):
            if warning not in self._warned:
                self._warned.add(warning)
                _logger.warning("%s", warning)

    def accept_missing(self, spans: Iterable[LostOffsets]) -> None:
        """Apply the policy to offsets that do not exist, if there are any."""
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

        At the beginning or end of a log nothing else reveals such a segment. It counts there unless the caller named
        the offset at which the window begins (partitions ``starts_there``) or ends (``stops_there``). A segment whose
        offsets are also in another segment or on the broker is no loss; neither is one of another incarnation of the
        topic.
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
            partition = problem.segment_id.topic_id_partition
            where = partition.topic, partition.partition
            is_other_life = self._query.topic_ids.get(partition.topic) not in (None, partition.topic_id)
            if where not in snapshot.logs and is_selected(self._query.selection, where) and not is_other_life:
                yield problem


def losses_between(log: PartitionLog, start: int, stop: int) -> Iterator[LostOffsets]:
    """Yield the offsets from ``start`` up to ``stop`` (half-open) that neither the bucket nor the broker has."""
    if log.lineage is not None:
        yield from lost_offsets(log.lineage, start, min(stop, log.seam))
    # Gaps in the bucket were yielded above. Offsets can also be missing between the seam and the broker's first offset,
    # and after the log's end.
    live_start = log.seam if log.live_start is None else log.live_start
    for first, last in (
        (max(start, log.seam if log.lineage is not None else 0), min(stop, live_start)),
        (max(start, log.end), stop),
    ):
        if first < last:
            yield LostOffsets(log.topic_id_partition, first, last)


def name_of(where: TopicPartition) -> str:
    """Name a partition in sentences."""
    return f"{where[0]}-{where[1]}"


def _readable(log: PartitionLog) -> list[OffsetWindow]:
    """Return the readable offsets of the log, ascending."""
    stored = [] if log.lineage is None else [(span.start, span.stop) for span in log.lineage.spans]
    live = [] if log.live_start is None else [(log.live_start, MAX_OFFSET)]
    return sorted((*stored, *live))
