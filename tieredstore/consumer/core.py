"""The state machine of each assigned partition: look-ups of the next offset, and reads of the bucket or the broker.

``partition.py`` has the table of a partition's phases. Only the polling thread changes a partition. Threads that read
or look up do not change partitions: they store their results for the next call of the consumer. That call applies each
result, or drops it if the partition's phase has changed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.consumer.lookups import Found, Look, Unanswered
from tieredstore.consumer.loss_policy import LossPolicy
from tieredstore.consumer.partition import (
    Backoff,
    Bucket,
    Failed,
    Idle,
    Live,
    Looking,
    Parked,
    Partition,
    Retry,
    SeenLog,
    Start,
    Waiting,
)
from tieredstore.consumer.placement import (
    EndsEarlier,
    InBucket,
    Lost,
    OnBroker,
    Overwritten,
    Recreated,
    Unreadable,
    Unset,
    lags,
)
from tieredstore.consumer.settings import Mode
from tieredstore.consumer.streams import UNREADABLE, StoredStream
from tieredstore.errors import BrokerUnavailableError, CorruptDataError, SegmentNotFoundError
from tieredstore.live.epochs import epoch_end_in
from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.live_side import LiveSide
    from tieredstore.consumer.lookups import Lookups
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.consumer.streams import StoredStreams
    from tieredstore.records.report import LostOffsets

_CHECK_S: Final = 0.02
"""Seconds between two attempts to let the Kafka client check a partition for truncation."""


class Core:
    """Moves the partitions of a consumer from phase to phase. Used by the polling thread only."""

    def __init__(
        self,
        settings: ConsumerSettings,
        live: LiveSide,
        lookups: Lookups,
        streams: StoredStreams,
        policy: LossPolicy,
        clock: Callable[[], float],
    ) -> None:
        self.partitions = live.partitions
        self.paused: dict[TopicPartition, bool] = {}
        """True for each paused partition. As in librdkafka, the flag stays after the assignment has ended."""
        self.confirmed: dict[TopicPartition, int] = {}
        """Each partition's last known commit at the coordinator, of this assignment or an earlier one."""
        self.events: deque[tuple[TopicPartition, str, int]] = deque()
        """Events to return as messages. Each has a partition, a kind (``eof`` or ``unset``) and an offset."""
        self.readable: deque[Partition] = deque()
        """Partitions that are read from the bucket; the first partition is read next."""
        self.policy = policy
        self.live = live
        self.lookups = lookups
        self.streams = streams
        self._settings = settings
        self._clock = clock
        self._due_at = 0.0
        self._review_at = clock() + settings.refresh_s

    def add(self, starts: Iterable[tuple[TopicPartition, Start]]) -> None:
        """Add newly assigned partitions."""
        new = [Partition(where, start, paused=self.paused.setdefault(where, False)) for where, start in starts]
        self.partitions.update((partition.where, partition) for partition in new)
        # Look up paused partitions too, so that later commits do not change where these partitions start.
        self._look(*new)

    def drop(self, wheres: Iterable[TopicPartition]) -> None:
        """Remove partitions that are no longer assigned, and drop their waiting records. The caller informs the
        client.
        """
        for where in wheres:
            partition = self.partitions.pop(where, None)
            if partition is not None:
                self._end_stream(partition)
                self._forget_events(where)
                self.live.forget([where])

    def move(self, partition: Partition, start: Position | Start) -> None:
        """Continue a partition at ``start``. Clear its error and its retries."""
        if isinstance(partition.phase, Failed):
            # The consumer has already reported the loss, so forget the topic's id: a re-created topic is then accepted.
            partition.log = replace(partition.log, topic_id=None)
        self._leave(partition)
        self._forget_events(partition.where)
        partition.at, partition.retry, partition.eof_at = start, Retry(), -1
        # ``latest`` means the end of the log at the time of this call, so look up such a start now, even if the
        # partition is paused.
        if not partition.paused or partition.position is None:
            self._look(partition)

    def move_back(self, partition: Partition, first: Position) -> None:
        """Continue a partition at a record that was taken but not returned.

        If the partition's position is already before the record, keep that position, because the log was truncated or
        re-created. A failed partition stays failed.
        """
        if partition.position is None or partition.position <= first.offset:
            return
        if isinstance(partition.phase, Failed):
            partition.at = first
        else:
            self.move(partition, first)

    def read_again(self) -> None:
        """Read messages again that the client has dropped, because a signal or a callback has interrupted its call."""
        # The client's positions cannot be read if the callback has closed the consumer.
        with contextlib.suppress(KafkaException, RuntimeError):
            for partition, first in self.live.find_dropped():
                self.move(partition, first)

    def pause(self, partition: Partition) -> None:
        """Stop fetching a partition. Drop the bucket's records that were read but not yet returned. A resume reads
        these records again.
        """
        if partition.paused:
            return
        partition.paused = self.paused[partition.where] = True
        if isinstance(partition.phase, Live):
            self.live.set_paused(partition)
        elif not isinstance(partition.phase, Looking) or partition.position is not None:
            self._leave(partition)

    def resume(self, partition: Partition) -> None:
        """Continue a paused partition at its position."""
        if not partition.paused:
            return
        partition.paused = self.paused[partition.where] = False
        if isinstance(partition.phase, Live):
            self.live.set_paused(partition)
        elif not isinstance(partition.phase, Failed | Idle):
            self._look(partition)

    def tick(self) -> None:
        """Apply the results of look-ups, and begin the look-ups that are due. Never wait."""
        for answer in self.lookups.answers():
            partition = self.partitions.get(answer.look.where)
            if partition is None:
                continue
            with self._try_again(partition):
                match partition.phase:
                    case Looking(look) if look is answer.look:
                        self._take(partition, answer)
                    case Live() as live if live.review is answer.look:
                        self._take_review(partition, live, answer)
                    case _:
                        pass
        now = self._clock()
        if now >= self._due_at:
            self._look_again(now)
        if self.live.due_in is not None:
            self.live.flush()
        if self.live.unheard:
            self.live.check()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition with a known start."""
        self.live.locate()
        known = self.partitions.items()
        return {where: partition.position for where, partition in known if partition.position is not None}

    @property
    def is_busy(self) -> bool:
        """True while look-ups or reads of the bucket may give records at any moment."""
        return bool(self.readable) or any(
            isinstance(partition.phase, Looking) and not partition.paused for partition in self.partitions.values()
        )

    @property
    def due_in(self) -> float:
        """Return the seconds until the next timed action: a look-up, an assignment or a check."""
        due = min(self._due_at, self._review_at) - self._clock()
        if self.live.has_unchecked:
            due = min(due, _CHECK_S)
        return max(0.0, due if self.live.due_in is None else min(due, self.live.due_in))

    def take_error(self) -> Exception | None:
        """Return an error for the current call to raise. The error of a failed partition is returned each time."""
        error = self.policy.take_error()
        failed = (one.phase.error for one in self.partitions.values() if isinstance(one.phase, Failed))
        return next(failed, None) if error is None else error

    def next_readable(self) -> tuple[Partition, pa.RecordBatch] | None:
        """Return the next batch from the bucket. The partitions are read in rotation."""
        for _ in range(len(self.readable)):
            if not self.readable:
                break  # the user's callback for losses has ended other reads
            partition = self.readable[0]
            self.readable.rotate(-1)
            phase = partition.phase
            assert isinstance(phase, Bucket)
            stream = phase.stream
            while (skipped := self.streams.next_skipped(stream)) is not None:
                if self._avoid_damage(partition, stream, skipped.stop):
                    break
                stream.told += 1
                self.policy.tell(skipped)
            if partition.phase is not phase:
                continue  # the broker has the damaged records, or the user's callback has moved or ended the partition
            batch = self.streams.take(stream)
            if batch is not None:
                partition.retry, partition.damaged_at = Retry(), None
                return partition, batch
            if stream.is_done and not stream.batches:
                with self._try_again(partition):
                    self._take_end(partition, stream)
        return None

    def lose_by_client(self, partition: Partition, *, was_cut: bool, reason: str) -> None:
        """Handle a partition that the client cannot fetch, because the log was truncated (``was_cut``) or retention has
        deleted the record at the position.
        """
        self.live.locate()
        self._leave(partition)
        if partition.paused:
            return
        if was_cut:
            answer, position = epoch_end_in(reason), partition.position or 0
            at = Position(position) if answer is None else Position(min(answer.end, position), answer.epoch)
            sentence = (
                f"the broker's log of {partition} was rewritten from offset {at.offset} on, after it was read up to "
                f"offset {position}: {reason}"
            )
            if not self.policy.accepts(partition, sentence):
                return
            # Continue at the offset of the truncation, and prefer the broker from there, because the bucket may still
            # have the records that the broker has replaced.
            partition.at, partition.left_at = at, at.offset
        # After the first failure, look up at once; after further failures, look up after a pause.
        retry = partition.retry
        retry.refusals = 1 if was_cut else retry.refusals + 1
        if retry.tries == 0:
            retry.tries = 1
            self._look(partition)
        else:
            error = BrokerUnavailableError(f"{partition} cannot be read from offset {partition.position}: {reason}")
            self._back_off(partition, error, sum(map(self.policy.pause_s, range(1, retry.refusals))))

    @contextlib.contextmanager
    def _try_again(self, partition: Partition) -> Generator[None]:
        """Schedule another look-up if the ``with`` block raises an error of the client or of a user's callback."""
        try:
            yield
        except BaseException:
            if isinstance(partition.phase, Looking | Parked):
                partition.retry.tries += 1
                self._rest(partition, Backoff(self._clock() + self.policy.pause_s(partition.retry.tries)))
            raise

    def _take(self, partition: Partition, answer: Found | Unanswered) -> None:
        """Apply a look-up's answer to the partition that waits for it."""
        if partition.at == "committed" and isinstance(answer, Found):
            # Other members may have committed since this member's last commit.
            self.confirmed.pop(partition.where, None)
            if answer.look.is_commit and answer.at is not None:
                self.confirmed[partition.where] = answer.at.offset
        if partition.paused:
            # A paused partition needs only its start offset, because a resume looks the partition up again.
            if partition.position is None and isinstance(answer, Found) and not isinstance(answer.placement, Recreated):
                partition.at = answer.at or partition.at
                # Keep the topic's id too, so that the resume notices a topic that was re-created during the pause.
                partition.log = replace(partition.log, topic_id=answer.topic_id or partition.log.topic_id)
            partition.phase = Parked()
        elif isinstance(answer, Unanswered):
            self._back_off(partition, answer.error, answer.lasted_s)
        elif isinstance(answer.placement, Recreated):
            self._begin_anew(partition, answer)
        else:
            self._settle(partition, answer)

    def _settle(self, partition: Partition, found: Found) -> None:
        look, lineage = found.look, found.lineage or partition.log.lineage
        # If only the broker was asked, keep the known state of the bucket's log.
        partition.log = SeenLog(found.topic_id or partition.log.topic_id, look.live, lineage)
        if look.was_reset is not None:
            self.policy.note_reset(partition, look.was_reset, None if found.at is None else found.at.offset)
        if found.at is not None:
            partition.at = found.at
        match found.placement:
            case Unset():
                partition.phase = Idle()
                self.events.append((partition.where, "unset", -1 if look.was_reset is None else look.was_reset))
            case OnBroker():
                self.live.add(partition)
                self.policy.note_side(partition, "broker")
                partition.retry.since = None
            case InBucket(stop):
                assert found.lineage is not None
                self.policy.note_side(partition, "bucket")
                self._read(partition, found.lineage, stop)
            case Overwritten() | EndsEarlier() | Lost() | Unreadable() as loss:
                self._judge(partition, loss)
            case _:
                self._wait(partition)

    def _judge(self, partition: Partition, loss: Overwritten | EndsEarlier | Lost | Unreadable) -> None:
        """Continue reading a partition after lost offsets, if the consumer's loss policy allows it."""
        lineage, position = partition.log.lineage, partition.position or 0
        match loss:
            case Overwritten(at):
                sentence = (
                    f"the log of {partition} was rewritten from offset {at} on, after it was read up to offset "
                    f"{position}: its leader epochs differ"
                )
                if self.policy.accepts(partition, sentence):
                    self._go_on(partition, at, lineage)
            case EndsEarlier(end):
                # From the end of the broker's log on, prefer the broker. The consumer has already returned the bucket's
                # records after that end. If it read them again, it would find the same loss again.
                partition.left_at = end
                ends = f"the broker's log of {partition} ends at offset {end}, but it was read up to offset {position}"
                if self.policy.accepts(partition, ends):
                    partition.at = Position(end, partition.epoch)
                    self._look(partition)
            case Lost(stop):
                before = partition.at
                # A seek in the user's callback decides where the partition continues.
                if self.policy.loses(partition, position, stop) and partition.at is before:
                    self._go_on(partition, stop, lineage)
            case Unreadable(problem):
                error = CorruptDataError(f"cannot read the next records: {problem}")
                if self.policy.accepts_damage(partition, error):
                    self._wait(partition)

    def _take_review(self, partition: Partition, live: Live, answer: Found | Unanswered) -> None:
        """Apply the answer of a periodic look-up, made while the client fetches the partition."""
        live.review = None
        if isinstance(answer, Unanswered):
            return
        self.live.locate()
        if isinstance(answer.placement, Recreated):
            self._leave(partition)
            self._begin_anew(partition, answer)
            return
        partition.log = replace(partition.log, live=answer.look.live or partition.log.live)
        end = None if answer.look.broker is None else answer.look.broker.latest
        if self.live.is_stalled(partition, live, end) or self._belongs_elsewhere(answer):
            self._leave(partition)
            self._look(partition)

    def _belongs_elsewhere(self, found: Found) -> bool:
        match found.placement:
            case Overwritten():
                return True
            case InBucket(stop) if found.lineage is not None and found.at is not None:
                # With ``kafka_preferred``, a look-up answers `InBucket` only if the broker lacks the position.
                return self._settings.mode is Mode.KAFKA_PREFERRED or lags(found.at.offset, stop, found.lineage)
            case _:
                return False

    def _begin_anew(self, partition: Partition, found: Found) -> None:
        """Handle a re-created topic."""
        # At the start, only the group's commit tells how far the earlier topic was read.
        read = found.look.start if partition.position is None else partition.position
        upto = f"up to offset {read}" if isinstance(read, int) else "before"
        sentence = (
            f"topic {partition.where[0]} was created again as {found.topic_id}, after {partition} of "
            f"{found.look.read_id} was read {upto}"
        )
        # The last known commit was made in the earlier topic.
        self.confirmed.pop(partition.where, None)
        if self.policy.accepts(partition, sentence):
            partition.log = SeenLog(found.topic_id, found.look.live)
            partition.at = "earliest" if found.at is None else found.at
            self._look(partition)

    def _take_end(self, partition: Partition, stream: StoredStream) -> None:
        """Handle the end of a read from the bucket."""
        self._leave(partition)
        before, stop = partition.at, stream.stop
        for span in stream.lost:
            stop = self._find_on_broker(partition, span.start, span.stop)
            if stop > span.start and not self.policy.loses(partition, span.start, stop):
                partition.at = Position(span.start, partition.epoch)
                return
        error, position = stream.error, partition.position or 0
        if partition.at is not before:
            return  # the user's callback has sought another offset
        if error is None:
            self._go_on(partition, max(position, stop), stream.lineage)
        elif not isinstance(error, UNREADABLE):
            self._back_off(partition, error)
        elif partition.damaged_at != position and isinstance(error, CorruptDataError):
            # The damage may be in the answer only, not in the bucket, so read it again before anything counts as lost.
            partition.damaged_at = position
            self._look(partition)
        elif self._avoid_damage(
            partition, stream, behind := stream.readable_at or stream.lineage.span_at(position).stop
        ):
            self.policy.note_damage(partition, error)
        elif self.policy.accepts_damage(partition, error):
            behind = self._find_on_broker(partition, position, behind)
            if self.policy.loses(partition, position, behind) and partition.at is before:
                self._go_on(partition, behind, stream.lineage)

    def _avoid_damage(self, partition: Partition, stream: StoredStream, stop: int) -> bool:
        """If the bucket's records between the position and ``stop`` are damaged, read them from the broker instead.

        If the broker's log begins after the position, read the bucket up to this beginning only. Return False if the
        broker has none of the records, or if the damage is before the beginning of the broker's log.
        """
        position = partition.position or 0
        # A damaged batch that includes the position may begin, and so be reported, before the position.
        stop = min(max(stop, position + 1), stream.stop)
        first = self._find_on_broker(partition, position, stop)
        if first >= stop:
            return False
        self._leave(partition)
        if first == position:
            self._look(partition)
        else:
            # The second read meets the damaged batches before ``first`` again, which were reported already.
            self._read(partition, stream.lineage, first, stream.skipped[: stream.told])
        return True

    @staticmethod
    def _find_on_broker(partition: Partition, start: int, stop: int) -> int:
        """Return the first offset between ``start`` and ``stop`` that the broker has, and prefer the broker from this
        offset on. Return ``stop`` if the broker has none.
        """
        live = partition.log.live
        if live is None or (first := max(start, live[0])) >= min(stop, live[1]):
            return stop
        partition.left_at = first if partition.left_at is None else min(first, partition.left_at)
        return first

    def _read(self, partition: Partition, lineage: Lineage, stop: int, told: Sequence[LostOffsets] = ()) -> None:
        """Read a partition from the bucket, up to ``stop`` (exclusive). Do not report the damaged batches ``told``."""
        stream = StoredStream(lineage, partition.position or 0, stop, skipped=[*told], told=len(told))
        partition.phase = Bucket(stream)
        self.readable.append(partition)
        self.streams.begin(stream)

    def _back_off(self, partition: Partition, error: Exception, lasted_s: float = 0.0) -> None:
        """Retry after a pause; the loss policy decides if and when a call raises the error."""
        until = self._clock() + self.policy.note_failure(partition, error, lasted_s)
        # If a segment is missing, retention has deleted it since the listing, so list the topic again.
        self._rest(partition, Backoff(until, reload=isinstance(error, SegmentNotFoundError)))

    def _go_on(self, partition: Partition, offset: int, lineage: Lineage | None) -> None:
        """Continue reading a partition at ``offset``, after skipped offsets. Take the leader epoch from the bucket's
        log, because the last skipped record may have a later epoch than the returned records.
        """
        if offset != partition.position:
            partition.at = Position(offset, None if lineage is None else lineage.epoch_at(offset - 1))
        self._look(partition)

    def _wait(self, partition: Partition) -> None:
        partition.retry = Retry()
        self._rest(partition, Waiting(self._clock() + self._settings.refresh_s))
        position = partition.position
        if self._settings.emits_eof and position is not None and partition.eof_at != position:
            partition.eof_at = position
            self.events.append((partition.where, "eof", position))

    def _rest(self, partition: Partition, phase: Backoff | Waiting) -> None:
        partition.phase = phase
        self._due_at = min(self._due_at, phase.until)

    def _look(self, *partitions: Partition) -> None:
        looks: list[Look] = []
        for partition in partitions:
            reload = isinstance(partition.phase, Backoff) and partition.phase.reload
            looks.append(self._look_at(partition, reload=reload))
            partition.phase = Looking(looks[-1])
        if looks:
            self.lookups.ask(looks)

    def _look_at(self, partition: Partition, *, reload: bool = False, is_review: bool = False) -> Look:
        at, read_id = partition.at, partition.log.topic_id
        start, epoch = (at.offset, at.epoch) if isinstance(at, Position) else (at, None)
        topic_id = self._settings.topic_ids.get(partition.where[0], read_id)
        now, since = self._clock(), partition.retry.since
        end = (now if since is None or is_review else since) + self._settings.timeout_s
        return Look(
            partition.where, start, now, end, epoch, read_id, reload, is_review, partition.left_at, topic_id=topic_id
        )  # fmt: skip

    def _look_again(self, now: float) -> None:
        resting = [(one, one.phase) for one in self.partitions.values() if isinstance(one.phase, Backoff | Waiting)]
        self._look(*(partition for partition, phase in resting if phase.until <= now))
        if now >= self._review_at:
            self._review_at = now + self._settings.refresh_s
            self._ask_reviews()
        self._due_at = min([phase.until for _, phase in resting if phase.until > now] + [self._review_at])

    def _ask_reviews(self) -> None:
        """Begin a look-up of each partition that the Kafka client fetches. The answer shows if the consumer should read
        the bucket instead."""
        self.live.locate()
        looks: list[Look] = []
        for partition, live in self.live:
            if partition.position is not None and partition.position >= 0:
                live.review = self._look_at(partition, is_review=True)
                looks.append(live.review)
        self.lookups.ask(looks)

    def _leave(self, partition: Partition) -> None:
        """Stop the reads, fetches and look-ups of a partition."""
        self._end_stream(partition)
        if isinstance(partition.phase, Live):
            self.live.remove(partition)
        partition.phase = Parked()

    def _forget_events(self, where: TopicPartition) -> None:
        """Drop events of a partition that no call has returned yet, because they concern an earlier position."""
        if self.events:
            self.events = deque(event for event in self.events if event[0] != where)

    def _end_stream(self, partition: Partition) -> None:
        if isinstance(partition.phase, Bucket):
            self.streams.drop(partition.phase.stream)
            self.readable.remove(partition)


def was_cut(error: KafkaError) -> bool:
    """Return True if a client's error reports that the log was truncated before the position."""
    # Compare the text too, because with ``auto.offset.reset=error``, librdkafka uses one error code for all reasons.
    return error.code() == KafkaError._LOG_TRUNCATION or KafkaError(KafkaError._LOG_TRUNCATION).str() in error.str()
