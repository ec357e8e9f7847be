"""Follows logs without end: first in the bucket, then at the broker, and in the bucket again if needed."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, get_args

import pyarrow as pa

from tieredstore.errors import AlreadyClosedError, BrokerUnavailableError, CorruptDataError
from tieredstore.model import TopicPartition, Uuid, name_of
from tieredstore.partitions.life import contradict
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.position import Position, Standing, stand
from tieredstore.partitions.selections import Assign
from tieredstore.process.closing import Closing
from tieredstore.process.log_once import LogOnce
from tieredstore.reading.losses import Losses, loss_of_partition, loss_of_position, loss_of_topic, losses_between
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.split_reads import QuerySources, StoredRead
from tieredstore.records.report import LostOffsets
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.live import EpochEnd, LiveFollower, LiveTopic
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0
"""If a partition cannot continue, the next look-up of the logs is at most this many seconds away. Each look-up lists
the bucket.
"""

_PAUSE_S: Final = 0.1
"""The least time between two look-ups of the logs during a wait, even if ``look_s`` is shorter."""

_SLEEP_S: Final = 0.5
"""Seconds of the longest uninterrupted wait. After it, the tail notices if the bucket is closed or a simulated clock
advances.
"""

_IDENTITY_S: Final = 30.0
"""Seconds between two checks of topic ids while the broker sends nothing. While records come from the bucket, a check
also stays valid for this many seconds.
"""

_FRESH_IDENTITY_S: Final = 1.0
"""Return records from the broker only if topic ids were checked at most this many seconds ago. Otherwise the records
might belong to a re-created topic.
"""


@dataclass(frozen=True, slots=True)
class TailRecords:
    """Records of one partition, in offset order. All records before ``next_offset`` were returned or left out.

    ``lost`` has the accepted losses before these records.
    """

    where: TopicPartition
    topic_id: Uuid
    records: pa.RecordBatch
    next_offset: int
    lost: tuple[LostOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class _ToLook:
    """The partition waits for the next look-up of the logs. The look-up chooses the bucket or the broker."""


@dataclass(frozen=True, slots=True)
class _Queued:
    """The next offset is in the bucket's part of ``log``, below the seam. The partition waits to be read."""

    log: PartitionLog


@dataclass(frozen=True, slots=True)
class _Reading:
    """The partition is being read from the bucket, up to the seam of ``log``, where the broker's part begins. Only one
    partition at a time is in this phase.
    """

    log: PartitionLog
    window: StoredRead
    batches: Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class _Live:
    """The follower reads the partition from the broker. ``leader`` is the leader's epoch when this phase began."""

    leader: int | None


_Phase: TypeAlias = _ToLook | _Queued | _Reading | _Live


@dataclass(slots=True)
class _Followed:
    """The progress of one partition. ``at`` is the next position. ``topic_id`` is None until a look-up has found the
    partition.

    The seam is the offset where the bucket's part ends and the broker's begins. The partition's phase changes as
    follows.

    | from | event | next |
    |---|---|---|
    | `ToLook` | look-up: position below the seam | `Queued` |
    | `ToLook` | look-up: the broker has the position | `Live` |
    | `ToLook` | look-up: absent, undecided, or only older epochs exist; or an error | `ToLook` |
    | `Queued` | no other partition is read | `Reading` |
    | `Reading` | at the seam, which the broker has, and the topic was looked at within 30 s | `Live` |
    | `Reading` | damaged records, which the broker has | `Live` |
    | `Reading` | at the seam otherwise, or another error | `ToLook` |
    | `Live` | the broker lacks the next offset, the log was cut, or the topic was deleted or re-created | `ToLook` |
    """

    at: Position
    phase: _Phase = field(default_factory=_ToLook)
    topic_id: Uuid | None = None
    identified_at: float = -math.inf
    refused: int | None = None
    """The epoch of the leader that refused this position, None if no leader did."""
    refusals: tuple[int, int] = (-1, 0)
    """An offset that the broker refused, and the number of further refusals after look-ups that found the offset."""
    damaged_at: int | None = None
    """The offset of damaged records in the bucket, from which the broker was read instead."""
    lost: list[LostOffsets] = field(default_factory=list[LostOffsets])
    """Lost offsets, ascending. They are reported with the records that come after them."""

    @property
    def offset(self) -> int:
        """The next offset."""
        return self.at.offset


class _Partitions(dict[TopicPartition, _Followed]):
    """The followed partitions. ``within`` groups the partitions by phase, in the order in which they entered the
    phase."""

    def __init__(self) -> None:
        super().__init__()
        self.within: dict[type[_Phase], dict[TopicPartition, None]] = {kind: {} for kind in get_args(_Phase)}
        self.aborted = 0
        """The number of aborted transactions found in the bucket by reads that have ended."""

    def enter(self, where: TopicPartition, phase: _Phase) -> None:
        """Change the phase of a partition."""
        self.leave(where)
        self[where].phase = phase
        self.within[type(phase)][where] = None

    def leave(self, where: TopicPartition) -> None:
        """Take a partition out of its phase. End its running read of the bucket, if any."""
        phase = self[where].phase
        if self.within[type(phase)].pop(where, where) is None and isinstance(phase, _Reading):
            phase.batches.close()
            self.aborted += len(phase.window.aborted)

    def remove(self, where: TopicPartition) -> None:
        """Stop following a partition."""
        self.leave(where)
        del self[where]


class LogTail(Closing):
    """Follows partitions from given offsets, first in the bucket, then at the broker. Not thread-safe.

    The tail reads partitions from the bucket, one after the other, each up to the broker's part. A single consumer then
    follows all of them at the broker. If the broker deletes records before they were read, the tail reads them from the
    bucket. If records of the bucket are damaged, and the broker has them, the tail reads them from the broker. Without
    a broker, it lists the bucket every ``look_s`` seconds.

    The query decides the isolation. It also decides if lost offsets and a re-created topic raise DataLossError or only
    log a warning. After a warning, the tail continues after the loss, or at the start of the new topic. A tail takes
    the memory of one read of the bucket and one consumer.
    """

    def __init__(
        self,
        source: RemoteStorageManager,
        query: LogQuery,
        positions: Mapping[TopicPartition, int | Position],
        *,
        settings: ReadSettings | None = None,
        look_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow ``positions``, which may be empty. The query's selection is ignored.

        Positions from ``places`` and ``PartitionLog.position`` have a leader epoch. By this epoch, the tail notices if
        a later election truncates the log below the position. This also works if another process continues from the
        position. ``settings`` choose columns and decoding. Raise ConfigError for invalid settings. The constructor
        sends no request yet.
        """
        self._source = source
        self._sources = QuerySources(lambda: source, query, settings or ReadSettings())
        self._clock = clock
        self._followed = _Partitions()
        self._is_closed = False
        # Create the follower that reads from the broker. It does not connect yet.
        self._follower = None if query.client is None else _follower_of(query, self._sources.settings)
        self._losses = Losses(query)
        self._log = LogOnce(_logger)
        self._snapshots = LogSnapshots(lambda: source, query, fresh_s=0, clock=clock)
        self._look_s = look_s
        self._next_look_at = -math.inf
        self._identified_at = clock()
        self._live_first = False
        self.follow(positions)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, after the records returned by :meth:`poll`."""
        return {where: followed.offset for where, followed in self._followed.items()}

    @property
    def aborted(self) -> int:
        """The number of aborted transactions in the bucket whose records were left out."""
        return self._followed.aborted

    @property
    def places(self) -> dict[TopicPartition, Position]:
        """The next offset of each partition, with the leader epoch of the record before it."""
        return {where: followed.at for where, followed in self._followed.items()}

    def follow(self, positions: Mapping[TopicPartition, int | Position]) -> None:
        """Follow these partitions from these offsets, in addition to those already followed. A partition that is
        already followed continues at its new offset.
        """
        # End running reads of these partitions, because they would return records from the earlier positions.
        self.forget(positions)
        for where, place in positions.items():
            self._followed[where] = _Followed(Position(place) if isinstance(place, int) else place)
            self._followed.enter(where, _ToLook())
        self._next_look_at = -math.inf

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop following these partitions."""
        for where in partitions:
            if where not in self._followed:
                continue
            self._followed.remove(where)
            if self._follower is not None:
                self._follower.remove([where])

    def poll(self, timeout_s: float) -> TailRecords | None:
        """Return the next records of any partition; None if there are none within about ``timeout_s``.

        Look-ups of the logs, and reads of the bucket, may take longer than ``timeout_s``. Only the timeouts of store
        and broker limit them.

        Raise DataLossError if the query does not accept a loss. Raise the errors of store and broker. An error leaves
        the tail unchanged, so the caller may poll it again. Raise AlreadyClosedError after the tail or its bucket was
        closed.
        """
        end = self._clock() + timeout_s
        while True:
            if self._is_closed:
                raise AlreadyClosedError("the tail was closed; open another one to continue")
            # Without this check, a tail whose bucket was closed could still return records of the broker.
            self._source.check_open()
            records = self._next_records()
            left = end - self._clock()
            if records is not None or left <= 0:
                return records
            self._wait(left)

    def close(self) -> None:
        """End running reads and close all connections, even if closing a connection fails. Further calls have no
        effect."""
        with contextlib.ExitStack() as ending:
            self._is_closed = True
            ending.callback(self._snapshots.close)
            if self._follower is not None:
                ending.callback(self._follower.close)
            for where in [*self._followed.within[_Reading]]:
                ending.callback(self._followed.leave, where)
            self._follower = None

    def _next_records(self) -> TailRecords | None:
        """Return records that are available without waiting. The read alternates between bucket and broker, so that
        neither delays the other.
        """
        if self._followed.within[_ToLook] and self._clock() >= self._next_look_at:
            self._look()
        self._check_identity(_IDENTITY_S)
        self._live_first = not self._live_first
        if self._live_first:
            return self._next_live() or self._next_stored()
        return self._next_stored() or self._next_live()

    def _wait(self, left: float) -> None:
        """Wait at most ``left`` seconds, until records may be available or a look-up of the logs is due."""
        if self._followed.within[_ToLook]:
            left = min(left, max(_PAUSE_S, self._next_look_at - self._clock()))
        if self._follower is not None and self._follower.positions:
            self._follower.wait(min(left, _SLEEP_S))
        else:
            time.sleep(min(left, _SLEEP_S))

    def _look(self) -> None:
        """Look at the logs of waiting partitions, and decide how each continues."""
        begun = self._clock()
        self._next_look_at = begun + self._look_s
        to_look = self._with_leader(sorted(self._followed.within[_ToLook]))
        if not to_look:
            return
        # Look up only the waiting partitions. Each topic costs a listing, and losses of other partitions do not matter
        # here.
        snapshot = self._snapshots.current(Assign(tuple(to_look)))
        positions = {where: self._followed[where].at for where in to_look}
        ends, stale = self._snapshots.epoch_ends(positions), self._snapshots.stale(positions)
        for where in to_look:
            log, followed = snapshot.logs.get(where), self._followed[where]
            if log is None:
                # Leave the partition in the phase `_ToLook`. A later look-up may find that it was created, or that it
                # is back.
                if followed.topic_id is not None:
                    self._losses.accept(loss_of_partition(where, followed.topic_id, followed.offset))
                continue
            self._identify(followed, log, begun)
            self._go_back_to_cut(followed, log, ends.get(where))
            if where not in stale:
                self._place(followed, log)

    def _with_leader(self, wheres: list[TopicPartition]) -> list[TopicPartition]:
        """Leave out partitions without a leader, because a look-up that includes one has no answer. If no followed
        partition has a leader, return all, so that the look-up reports the outage.
        """
        cluster = self._snapshots.cluster()
        if cluster is None or len(self._followed) == 1:
            return wheres
        topics = cluster.describe({topic for topic, _ in wheres})
        silent = {where for where in wheres if where[0] in topics and where[1] in topics[where[0]].leaderless}
        if len(silent) == len(self._followed):
            return wheres
        for where in silent:
            self._log.warn(f"{name_of(where)} has no leader now, and is read once it has one")
        return [where for where in wheres if where not in silent]

    def _identify(self, followed: _Followed, log: PartitionLog, looked_at: float) -> None:
        """If the topic was re-created, apply the loss policy and start at the new topic's first offset."""
        if followed.topic_id is not None and not log.is_of(followed.topic_id):
            read = f"{name_of(log.where)} of {followed.topic_id} was read up to offset {followed.offset}"
            self._losses.accept(loss_of_topic(log.topic, log.topic_id, read))
            followed.at = log.position(log.earliest)
        followed.topic_id, followed.identified_at = log.topic_id, looked_at

    def _go_back_to_cut(self, followed: _Followed, log: PartitionLog, answer: EpochEnd | None) -> None:
        """If an election truncated the log below the position, apply the loss policy and go back to the offset of the
        cut.
        """
        standing = stand(followed.at, log, answer)
        if standing.kind == "cut":
            self._losses.accept(loss_of_position(followed.offset, standing, log))
            followed.at = log.position(standing.at)

    def _place(self, followed: _Followed, log: PartitionLog) -> None:
        """Queue the partition to be read from the bucket, follow it at the broker, or leave it for the next look-up."""
        if log.lineage is not None and followed.offset < log.seam:
            self._lose(losses_between(log, followed.offset, log.seam), followed)
            self._followed.enter(log.where, _Queued(log))
        elif log.live_start is not None and log.end_from(followed.offset) >= log.live_start:
            # If there is a broker, and neither this condition nor the one above holds, the bucket's last records
            # belong to a transaction without an outcome. The partition then waits until a look-up finds the segment
            # that has the outcome.
            self._follow_live(followed, log, log.live_start)

    def _follow_live(self, followed: _Followed, log: PartitionLog, live_start: int) -> None:
        if followed.offset < live_start:
            self._lose([LostOffsets(log.topic_id_partition, followed.offset, live_start)], followed)
            followed.at = log.position(live_start)
        elif followed.offset > log.end:
            self._losses.accept(loss_of_position(followed.offset, Standing("beyond", log.end), log))
            followed.at = log.position(log.end)
        assert self._follower is not None
        leader, refused = log.live_epoch, followed.refused
        followed.refused = None
        # If this leader has already refused the position, a look-up since then has confirmed the position. So do not
        # let the leader check it again.
        epochs = {} if leader is None or leader == refused or not followed.offset else {log.where: leader}
        self._follower.add({log.where: followed.offset}, epochs)
        self._followed.enter(log.where, _Live(leader))

    def _lose(self, losses: Iterable[LostOffsets], followed: _Followed) -> None:
        """Apply the loss policy to losses at and after the partition's position.

        Accept each loss only once, because after an error, the next look-up of the logs may report the same losses.
        """
        spans = list(losses)
        self._losses.accept_missing(span for span in spans if span not in followed.lost)
        followed.lost = [span for span in followed.lost if span.stop <= followed.offset] + spans

    def _next_stored(self) -> TailRecords | None:
        """Return the next records from the bucket, of the current partition or the next one in the queue."""
        while (
            where := next(iter(self._followed.within[_Reading] or self._followed.within[_Queued]), None)
        ) is not None:
            followed, phase = self._followed[where], self._followed[where].phase
            if isinstance(phase, _Queued):
                phase = self._begin_stored(followed, phase.log)
            assert isinstance(phase, _Reading)
            try:
                records = next(phase.batches, None)
            except BaseException as error:
                # The error has ended the generator. The next poll would take the exhausted generator for the end of the
                # window, so look the partition up again.
                self._look_at_soon(where)
                if isinstance(error, CorruptDataError) and self._avoid_damage(followed, phase.log, error):
                    continue
                raise
            followed.at = phase.log.position(phase.window.position)
            followed.lost = sorted([*followed.lost, *phase.window.take_lost()], key=lambda span: span.start)
            if records is not None:
                return self._give(where, records)
            self._go_on_behind(followed, phase.log)
        return None

    def _begin_stored(self, followed: _Followed, log: PartitionLog) -> _Reading:
        assert log.lineage is not None
        window = StoredRead(self._sources, log.lineage, (followed.offset, log.seam))
        reading = _Reading(log, window, window.batches())
        self._followed.enter(log.where, reading)
        return reading

    def _go_on_behind(self, followed: _Followed, log: PartitionLog) -> None:
        """Continue after the bucket's part of a partition.

        Follow the partition at the broker if a recent look-up of the logs found it there. Otherwise, look the logs up
        again.
        """
        self._followed.enter(log.where, _ToLook())
        is_known = self._clock() < followed.identified_at + _IDENTITY_S
        if is_known and log.live_start is not None and log.live_start <= log.seam:
            self._follow_live(followed, log, log.live_start)
        else:
            self._look_at_soon(log.where)

    def _avoid_damage(self, followed: _Followed, log: PartitionLog, error: CorruptDataError) -> bool:
        """Follow a partition at the broker, because its next records in the bucket are damaged. Return False, and do
        nothing, if the broker does not have these records, or if the topic was deleted or re-created.
        """
        offset, cluster = followed.offset, self._snapshots.cluster()
        if cluster is None or log.live_start is None or not log.live_start <= offset < log.end:
            return False
        if followed.damaged_at == offset:
            return False  # the broker has refused this offset
        if self._is_other(followed, log.topic, cluster.describe({log.topic})):
            return False
        _logger.warning("%s; %s is read from the broker from offset %d on", error, name_of(log.where), offset)
        # The broker also has the later offsets that the bucket lacks.
        followed.lost, followed.damaged_at = [span for span in followed.lost if span.start < offset], offset
        self._follow_live(followed, log, log.live_start)
        return True

    def _next_live(self) -> TailRecords | None:
        if self._follower is None or not self._follower.positions:
            return None
        self._follower.wait(0)
        if self._follower.is_ready:
            # Check topic ids only after records have arrived. The records then certainly belong to the topics that the
            # check finds.
            self._check_identity(_FRESH_IDENTITY_S)
        event = self._follower.poll(0) if self._follower.is_ready else None
        if event is None:
            return None
        if event.records is not None:
            self._followed[event.where].at = Position(event.next_offset, event.leader_epoch)
            return self._give(event.where, event.records)
        # The broker does not have the next offset. Either it has copied the records to the bucket and deleted them, or
        # the log was truncated. So look the partition up again.
        followed = self._followed[event.where]
        followed.refused = followed.phase.leader if isinstance(followed.phase, _Live) else None
        self._look_at_soon(event.where)
        self._count_refusal(event.where, followed)
        return None

    def _count_refusal(self, where: TopicPartition, followed: _Followed) -> None:
        """Raise BrokerUnavailableError if the broker refuses an offset for the query's timeout, although each look-up
        finds the offset in the broker's log.
        """
        offset, count = followed.refusals
        count = count + 1 if offset == followed.offset else 0
        followed.refusals = followed.offset, count
        # Count look-ups instead of time, because the broker may be unavailable between two refusals.
        timeout_s = self._sources.query.timeout_s
        if count * max(_PAUSE_S, min(_LOOK_AGAIN_S, self._look_s)) >= timeout_s:
            followed.refusals = followed.offset, 0
            raise BrokerUnavailableError(
                f"{name_of(where)} cannot be read from offset {followed.offset}: the broker has refused this offset "
                f"for {timeout_s:g} s, although its log should have it"
            )

    def _give(self, where: TopicPartition, records: pa.RecordBatch) -> TailRecords:
        followed = self._followed[where]
        lost = tuple(span for span in followed.lost if span.start < followed.offset)
        # Keep the losses that come after these records.
        followed.lost = followed.lost[len(lost) :]
        assert followed.topic_id is not None
        return TailRecords(where, followed.topic_id, records, followed.offset, lost)

    def _look_at_soon(self, where: TopicPartition) -> None:
        """Put the partition into the phase ``_ToLook``, and ask for a look-up of the logs soon."""
        self._followed.enter(where, _ToLook())
        self._next_look_at = min(self._next_look_at, self._clock() + min(_LOOK_AGAIN_S, self._look_s))

    def _check_identity(self, fresh_s: float) -> None:
        """Stop following partitions whose topic was deleted or re-created. Old offsets mean nothing in a new topic."""
        cluster = self._snapshots.cluster()
        if cluster is None or self._follower is None or not self._follower.positions:
            return
        if self._clock() < self._identified_at + fresh_s:
            return
        self._identified_at = self._clock()
        live_topics = cluster.describe({topic for topic, _ in self._follower.positions})
        for where in list(self._follower.positions):
            if self._is_other(self._followed[where], where[0], live_topics):
                self._follower.remove([where])
                self._look_at_soon(where)

    def _is_other(self, followed: _Followed, topic: str, live_topics: Mapping[str, LiveTopic]) -> bool:
        """Return True if the topic was deleted or re-created since the partition was read."""
        live = live_topics.get(topic)
        return live is None or contradict(self._source.layout, topic, live.topic_id, followed.topic_id)


def _follower_of(query: LogQuery, settings: ReadSettings) -> LiveFollower:
    from tieredstore.live import LiveFollower  # noqa: PLC0415  needs the extra `kafka`, a bucket alone does not

    return LiveFollower(
        query.client or {}, isolation=query.isolation, columns=settings.columns, timeout_s=query.timeout_s
    )
