"""Logs that are followed for as long as somebody wants: bucket first, then the broker, and back where need be."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tieredstore.errors import AlreadyClosed
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.life import contradict
from tieredstore.partitions.position import Position, stand
from tieredstore.partitions.selections import Assign
from tieredstore.process.closing import Closing
from tieredstore.reading.losses import LossRule, losses_between, name_of, report_losses
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.split_reads import StoredWindow
from tieredstore.records.report import LostOffsets
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.live import EpochEnd, LiveCluster, LiveFollower
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote.source import SegmentSource

_LOOK_AGAIN_S: Final = 1.0
"""The least time between two looks at the bucket: each is a listing."""

_PAUSE_S: Final = 0.1
"""The least time between two looks while one waits, however often the bucket is to be listed."""

_SLEEP_S: Final = 0.5
"""Waits are cut into such pieces: a clock may not be the machine's, and the bucket may be closed meanwhile."""

_IDENTITY_S: Final = 30.0
"""How often it is looked whether the topics are still the same ones, while nothing comes from the broker; and how long
one is taken to be the same while its records come from the bucket."""

_FRESH_IDENTITY_S: Final = 1.0
"""The same before records of the broker are given, which may be another topic's of the same name."""


@dataclass(frozen=True, slots=True)
class TailRecords:
    """Records of one partition, in the order of offsets.

    All before ``next_offset`` were given, or are not to be; ``lost`` are offsets in front of these records that nobody
    has, where the query puts up with that.
    """

    where: TopicPartition
    topic_id: Uuid
    records: pa.RecordBatch
    next_offset: int
    lost: tuple[LostOffsets, ...] = ()


class _StoredRead(NamedTuple):
    """A partition that is being read from the bucket."""

    log: PartitionLog
    window: StoredWindow
    batches: Generator[pa.RecordBatch, None, None]


@dataclass(slots=True)
class _Followed:
    """How far one partition was read. ``topic_id`` is None until it was first seen."""

    position: int
    epoch: int | None = None
    """That of the record before it, if it is known: a later one that begins below has cut the log."""
    topic_id: Uuid | None = None
    identified_at: float = -math.inf
    leader: int | None = None
    """The epoch of the leader in whose log the position was found."""
    refused: int | None = None
    """The same where the broker did not go on from there."""
    lost: list[LostOffsets] = field(default_factory=list[LostOffsets])
    """Those to be told with the records behind them; they ascend."""

    def move(self, log: PartitionLog, offset: int) -> None:
        """Go to a place in the log as it is."""
        self.position, self.epoch = offset, log.position(offset).epoch


class LogTail(Closing):
    """Gives the records of partitions as they come, each from an offset on, across the seam between bucket and broker.

    Below the seam they are read from the bucket, one partition after the other, and those that have got beyond it come
    from one consumer meanwhile. What the broker deletes before it was read is looked for in the bucket. Without a
    broker the bucket is listed every ``look_s`` for what is new. Lost offsets, and a topic that was created again, are
    DataLoss by the query's policy, or warnings and the tail goes on behind them, or from the new topic's beginning.

    One ``LiveCluster`` and one consumer serve it until ``close``. Memory is bounded: one read of the bucket, one
    consumer. The isolation is the query's: under read_committed nothing is given before it is decided. For one thread.
    """

    def __init__(
        self,
        source: SegmentSource,
        query: LogQuery,
        positions: Mapping[TopicPartition, int | Position],
        *,
        settings: ReadSettings | None = None,
        look_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow ``positions``, which may be none; the query's selection is not looked at.

        A position with its leader epoch, as ``places`` and ``PartitionLog.position`` give it, tells later, in another
        process too, whether an election has cut the log below it.
        ``settings`` say which columns are read and how. ConfigError for what cannot be; nothing is asked yet.
        """
        self._source = source
        self._query = query
        self._settings = settings or ReadSettings()
        self._look_s = look_s
        self._clock = clock
        self._followed: dict[TopicPartition, _Followed] = {}
        # Each partition is in one of four places: its log is to be looked at, or is behind the seam and to be read
        # from the bucket, or is being read from there, or is followed on the broker.
        self._to_look_at: set[TopicPartition] = set()
        self._behind_seam: dict[TopicPartition, PartitionLog] = {}
        self._stored: _StoredRead | None = None
        self._is_closed = False
        self.aborted = 0
        """How many aborted transactions were met in the bucket whose records were left out."""
        self._cluster: LiveCluster | None = query.open_cluster()
        self._follower: LiveFollower | None = None
        try:
            self._follower = None if self._cluster is None else _follower_of(query, self._settings)
        except BaseException:
            if self._cluster is not None:
                self._cluster.close()
            raise
        self._loss_rule = LossRule(query)
        self._snapshots = LogSnapshots(lambda: source, query, fresh_s=0, clock=clock, cluster=self._cluster)
        self._looked_at = -math.inf
        self._identified_at = clock()
        self._live_first = False
        self.follow(positions)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Where each partition goes on, behind what :meth:`poll` has given."""
        return {where: followed.position for where, followed in self._followed.items()}

    @property
    def places(self) -> dict[TopicPartition, Position]:
        """The same with the leader epochs of what was given."""
        return {where: Position(followed.position, followed.epoch) for where, followed in self._followed.items()}

    def follow(self, positions: Mapping[TopicPartition, int | Position]) -> None:
        """Follow these partitions too, from these offsets on; one that is followed already moves there."""
        # What is under way for a partition that moves would give records of its old place.
        self.forget(positions)
        for where, place in positions.items():
            at = Position(place) if isinstance(place, int) else place
            self._followed[where] = _Followed(at.offset, at.epoch)
        self._to_look_at.update(positions)
        self._looked_at = -math.inf

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Follow these no longer."""
        for where in partitions:
            if self._followed.pop(where, None) is None:
                continue
            self._to_look_at.discard(where)
            self._behind_seam.pop(where, None)
            if self._stored is not None and self._stored.log.where == where:
                self._end_stored()
            if self._follower is not None:
                self._follower.remove([where])

    def poll(self, timeout_s: float) -> TailRecords | None:
        """The next records, of whichever partition; None if there are none within about ``timeout_s``.

        A look at the logs and a read of the bucket take as long as the store and the broker need, within their own
        deadlines. DataLoss by the query's policy; errors of the store and of the broker. After any of them the tail
        is as it was, and may be asked again. AlreadyClosed once it, or the source, was closed.
        """
        end = self._clock() + timeout_s
        while True:
            if self._is_closed:
                raise AlreadyClosed("the tail was closed; open another one to go on")
            # Also while all comes from the broker: nobody waits for what a closed bucket would have to tell.
            self._source.check_open()
            records = self._next_records()
            left = end - self._clock()
            if records is not None or left <= 0:
                return records
            self._wait(left)

    def close(self) -> None:
        """End what is under way, and the connections, also where one of them cannot be ended. Idempotent."""
        with contextlib.ExitStack() as ending:
            self._is_closed = True
            if self._cluster is not None:
                ending.callback(self._cluster.close)
            if self._follower is not None:
                ending.callback(self._follower.close)
            ending.callback(self._snapshots.close)
            ending.callback(self._end_stored)
            self._cluster = self._follower = None

    def _next_records(self) -> TailRecords | None:
        """What is there without waiting: of bucket and broker by turns, so that neither keeps the other waiting."""
        if self._to_look_at and self._clock() >= self._next_look_at():
            self._look()
        self._check_identity(_IDENTITY_S)
        self._live_first = not self._live_first
        if self._live_first:
            return self._next_live() or self._next_stored()
        return self._next_stored() or self._next_live()

    def _wait(self, left: float) -> None:
        """Until something may have come, ``left`` seconds at most."""
        if self._to_look_at:
            left = min(left, max(_PAUSE_S, self._next_look_at() - self._clock()))
        if self._follower is not None and self._follower.positions:
            self._follower.wait(min(left, _SLEEP_S))
        else:
            time.sleep(min(left, _SLEEP_S))

    def _next_look_at(self) -> float:
        return self._looked_at + self._look_s

    def _look(self) -> None:
        """Find out where those partitions go on that are neither read nor followed."""
        self._looked_at = self._clock()
        # Of no others: each topic is a listing, and those that are followed no longer are nobody's loss.
        self._snapshots.query = replace(self._query, selection=Assign(tuple(sorted(self._to_look_at))))
        snapshot = self._snapshots.current()
        ends = self._snapshots.epoch_ends({where: self.places[where] for where in self._to_look_at})
        stale = self._snapshots.stale({where: self.places[where] for where in self._to_look_at})
        for where in sorted(self._to_look_at):
            log = snapshot.logs.get(where)
            if log is None:
                # It stays among those to be looked at: it may come, or come back.
                self._tell_of_gone(where)
            else:
                self._identify(log)
                self._go_back_to_cut(log, ends.get(where))
                if where not in stale:
                    self._place(log)

    def _tell_of_gone(self, where: TopicPartition) -> None:
        followed = self._followed[where]
        if followed.topic_id is not None:
            self._loss_rule(
                f"{name_of(where)} ({followed.topic_id}) is gone, and it was read up to offset {followed.position}"
            )

    def _identify(self, log: PartitionLog) -> None:
        """Begin anew with a topic that was created again."""
        followed = self._followed[log.where]
        if followed.topic_id is not None and not log.is_of(followed.topic_id):
            self._loss_rule(
                f"topic {log.topic} was created again as {log.topic_id}, and {name_of(log.where)} of "
                f"{followed.topic_id} was read up to offset {followed.position}"
            )
            followed.move(log, log.earliest)
        followed.topic_id, followed.identified_at = log.topic_id, self._looked_at

    def _go_back_to_cut(self, log: PartitionLog, answer: EpochEnd | None) -> None:
        """Begin again where a later leader epoch has written another log below what was given."""
        followed = self._followed[log.where]
        standing = stand(Position(followed.position, followed.epoch), log, answer)
        if standing.kind == "cut":
            self._loss_rule(standing.sentence(name_of(log.where), followed.position, log))
            followed.move(log, standing.at)

    def _place(self, log: PartitionLog) -> None:
        """Read the partition from the bucket, or follow it on the broker, or look again later."""
        followed, where = self._followed[log.where], log.where
        if log.lineage is not None and followed.position < log.seam:
            self._lose(losses_between(log, followed.position, log.seam), followed)
            self._behind_seam[where] = log
            self._to_look_at.discard(where)
        elif log.live_start is not None and log.end_from(followed.position) >= log.live_start:
            # Not where the bucket's last records wait for a segment that decides them: that is looked at again.
            self._follow_live(log, log.live_start)

    def _follow_live(self, log: PartitionLog, live_start: int) -> None:
        followed = self._followed[log.where]
        if followed.position < live_start:
            self._lose([LostOffsets(log.topic_id_partition, followed.position, live_start)], followed)
            followed.move(log, live_start)
        elif followed.position > log.end:
            self._loss_rule(
                f"{name_of(log.where)} ({log.topic_id}) ends at offset {log.end}, and it was read up to "
                f"{followed.position}"
            )
            followed.move(log, log.end)
        assert self._follower is not None
        leader, refused = log.live_epoch, followed.refused
        followed.leader, followed.refused = leader, None
        # A place that a look has found all the same, since the broker refused it, is not checked again.
        epochs = {} if leader is None or leader == refused or not followed.position else {log.where: leader}
        self._follower.add({log.where: followed.position}, epochs)
        self._to_look_at.discard(log.where)

    def _lose(self, losses: Iterable[LostOffsets], followed: _Followed) -> None:
        """Tell of what is lost from the position on. Looked at again after an error it may be less, or the same."""
        extents = list(losses)
        report_losses([extent for extent in extents if extent not in followed.lost], self._query)
        followed.lost = [extent for extent in followed.lost if extent.stop <= followed.position] + extents

    def _next_stored(self) -> TailRecords | None:
        """The next records of the bucket, of the partition that is being read or of the next one."""
        while self._stored is not None or self._behind_seam:
            if self._stored is None:
                where = next(iter(self._behind_seam))
                self._stored = self._begin_stored(self._behind_seam.pop(where))
            stored = self._stored
            followed = self._followed[stored.log.where]
            try:
                records = next(stored.batches, None)
            except BaseException:
                # A generator that raised has ended for good, which the next poll would take for the window's end.
                self._look_at_soon(stored.log.where)
                self._end_stored()
                raise
            followed.move(stored.log, stored.window.position)
            followed.lost = sorted([*followed.lost, *stored.window.take_lost()], key=lambda extent: extent.start)
            if records is not None:
                return self._given(stored.log.where, records)
            self._end_stored()
            self._go_on_behind(stored.log)
        return None

    def _begin_stored(self, log: PartitionLog) -> _StoredRead:
        assert log.lineage is not None
        extent = self._followed[log.where].position, log.seam
        window = StoredWindow(self._source, log.lineage, extent, self._query, self._settings)
        return _StoredRead(log, window, window.batches())

    def _go_on_behind(self, log: PartitionLog) -> None:
        """At the seam: on the broker at once if it had the seam a moment ago, otherwise where a new look says."""
        self._to_look_at.add(log.where)
        is_known = self._clock() < self._followed[log.where].identified_at + _IDENTITY_S
        if is_known and log.live_start is not None and log.live_start <= log.seam:
            self._follow_live(log, log.live_start)
        else:
            self._look_at_soon(log.where)

    def _end_stored(self) -> None:
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.batches.close()
            self.aborted += len(stored.window.aborted)

    def _next_live(self) -> TailRecords | None:
        if self._follower is None or not self._follower.positions:
            return None
        self._follower.wait(0)
        if self._follower.is_ready:
            # Only now: what has come is of the topics that are there afterwards.
            self._check_identity(_FRESH_IDENTITY_S)
        event = self._follower.poll(0) if self._follower.is_ready else None
        if event is None:
            return None
        if event.records is not None:
            followed = self._followed[event.where]
            followed.position, followed.epoch = event.next_offset, event.leader_epoch
            return self._given(event.where, event.records)
        # The broker deletes what is in the bucket, so that is where the records may be now; or the log was cut.
        self._followed[event.where].refused = self._followed[event.where].leader
        self._look_at_soon(event.where)
        return None

    def _given(self, where: TopicPartition, records: pa.RecordBatch) -> TailRecords:
        followed = self._followed[where]
        lost = tuple(extent for extent in followed.lost if extent.start < followed.position)
        # The others are behind these records.
        followed.lost = followed.lost[len(lost) :]
        assert followed.topic_id is not None
        return TailRecords(where, followed.topic_id, records, followed.position, lost)

    def _look_at_soon(self, where: TopicPartition) -> None:
        """Look at a partition's log once a little time has passed since the last look."""
        self._to_look_at.add(where)
        self._looked_at = min(self._looked_at, self._clock() - self._look_s + min(_LOOK_AGAIN_S, self._look_s))

    def _check_identity(self, fresh_s: float) -> None:
        """Look at those again whose topic is not the one that was followed: its offsets mean nothing in another."""
        if self._cluster is None or self._follower is None or not self._follower.positions:
            return
        if self._clock() < self._identified_at + fresh_s:
            return
        self._identified_at = self._clock()
        live_topics = self._cluster.describe({topic for topic, _ in self._follower.positions})
        for where in list(self._follower.positions):
            live = live_topics.get(where[0])
            known = self._followed[where].topic_id
            if live is None or contradict(self._source.layout, where[0], live.topic_id, known):
                self._follower.remove([where])
                self._look_at_soon(where)


def _follower_of(query: LogQuery, settings: ReadSettings) -> LiveFollower:
    from tieredstore.live import LiveFollower  # noqa: PLC0415 - an extra of its own, which a bucket alone does not need

    return LiveFollower(
        query.client or {}, isolation=query.isolation, columns=settings.columns, timeout_s=query.timeout_s
    )
