"""What becomes of each assigned partition: found out, read from the bucket, followed on the broker, and back.

All of it happens on the thread that polls. Reads and look-ups of others' threads only leave what they have; it is taken
up by the next call, and let go if it is of an assignment that is over.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from tieredstore.consumer.looks import Answer, Look, Start
from tieredstore.consumer.partition import Partition, Phase
from tieredstore.consumer.placement import CutOff, InBucket, Lost, OnBroker, Unreadable, lags
from tieredstore.consumer.settings import Mode
from tieredstore.consumer.stalls import Stalls
from tieredstore.consumer.stored_stream import UNREADABLE, StoredStream
from tieredstore.consumer.troubles import Troubles
from tieredstore.errors import CorruptData, SegmentNotFound
from tieredstore.model import TopicPartition

if TYPE_CHECKING:
    from tieredstore.consumer.live_side import LiveSide
    from tieredstore.consumer.lookups import Lookups
    from tieredstore.consumer.measures import Measures
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.consumer.stored_streams import StoredStreams

_logger: Final = logging.getLogger(__name__)
_CHECK_S: Final = 0.02
"""How long the client is given to begin with a partition that is to be checked."""


class Core:
    """The partitions of a consumer, and what is to be done about them. For the polling thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        live: LiveSide,
        lookups: Lookups,
        streams: StoredStreams,
        measures: Measures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.paused: dict[TopicPartition, bool] = {}
        """Whether each that was ever assigned is paused: as in librdkafka that outlives the assignment."""
        self.events: deque[tuple[TopicPartition, str, int]] = deque()
        """What is to be told as a message of its own: the partition, ``eof`` or ``unset``, an offset."""
        self.readable: deque[Partition] = deque()
        """Those that are read from the bucket, in the order of their turns."""
        self.troubles = Troubles(settings, measures, clock)
        self.stalls = Stalls(settings.timeout_s, clock)
        self.live = live
        self.lookups = lookups
        self.streams = streams
        self._settings = settings
        self._clock = clock
        self._generations = itertools.count(1)
        self._due_at = 0.0
        self._review_at = clock() + settings.refresh_s

    def add(self, starts: Iterable[tuple[TopicPartition, Start]]) -> None:
        """Partitions that are assigned from now on."""
        new = [
            Partition(where, next(self._generations), start, paused=self.paused.setdefault(where, False))
            for where, start in starts
        ]
        for partition in new:
            self.partitions[partition.where] = partition
            if isinstance(partition.start, int):
                partition.position = partition.start
        # Those that are paused too: what is committed now is where they go on, whatever is committed until then.
        self._look(new)

    def drop(self, wheres: Iterable[TopicPartition]) -> None:
        """Partitions that are assigned no longer: nothing of them is given from now on. Others tell the client."""
        for where in wheres:
            partition = self.partitions.pop(where, None)
            if partition is not None:
                self._end_stream(partition)
                self.live.forget([where])

    def move(self, partition: Partition, start: Start) -> None:
        """Go on at another place, which ends what was wrong at this one."""
        self._leave(partition)
        partition.start, partition.error, partition.failing_since, partition.tries = start, None, None, 0
        partition.position = start if isinstance(start, int) else None
        partition.last_epoch, partition.eof_at = -1, -1
        # The end that is meant is the one of now, also if it is only read from there after a resume.
        if not partition.paused or partition.position is None:
            self._look([partition])

    def pause(self, partition: Partition) -> None:
        """Fetch no more; what waits of the bucket is let go, and read again."""
        if partition.paused:
            return
        partition.paused = self.paused[partition.where] = True
        if partition.is_live:
            self.live.set_paused(partition)
        elif partition.phase is not Phase.LOOKING or partition.position is not None:
            self._leave(partition)

    def resume(self, partition: Partition) -> None:
        """Go on where it was."""
        if not partition.paused:
            return
        partition.paused = self.paused[partition.where] = False
        if partition.is_live:
            self.live.set_paused(partition)
        elif partition.phase not in (Phase.FAILED, Phase.IDLE):
            self._look([partition])

    def tick(self) -> None:
        """Take up what has come, and look again where it is time. Never waits."""
        for answer in self.lookups.answers():
            partition = self.partitions.get(answer.where)
            if partition is not None and partition.generation == answer.generation:
                with self._tried_again(partition):
                    (self._review if answer.is_review else self._take)(partition, answer)
        now = self._clock()
        if now >= self._due_at:
            self._look_again(now)
        if self.live.due_in is not None:
            self.live.flush()
        if self.live.unchecked:
            self.live.check()

    def positions(self) -> dict[TopicPartition, int]:
        """What is handed out next of each whose start is known."""
        self.live.locate()
        known = self.partitions.items()
        return {where: partition.position for where, partition in known if partition.position is not None}

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that may soon give records, and that the client does not tell of."""
        return bool(self.readable) or any(
            partition.phase is Phase.LOOKING and not partition.paused for partition in self.partitions.values()
        )

    @property
    def due_in(self) -> float:
        """In how many seconds something is to be done whether or not anything comes."""
        due = min(self._due_at, self._review_at) - self._clock()
        if self.live.unchecked:
            due = min(due, _CHECK_S)
        return max(0.0, due if self.live.due_in is None else min(due, self.live.due_in))

    def next_readable(self) -> tuple[Partition, Any] | None:
        """The next piece that the bucket gave, of the partition whose turn it is."""
        for _ in range(len(self.readable)):
            partition = self.readable[0]
            self.readable.rotate(-1)
            stream = partition.stream
            assert stream is not None
            piece = self.streams.take(stream)
            if piece is not None:
                partition.failing_since, partition.tries = None, 0
                return partition, piece
            if stream.is_done and not stream.pieces:
                with self._tried_again(partition):
                    self._take_end(partition, stream)
        return None

    def lost_by_client(self, partition: Partition, *, was_cut: bool, reason: str) -> None:
        """The client cannot go on: retention passed by, or the log was cut."""
        self.live.locate()
        self._leave(partition)
        if was_cut and not self.troubles.accepts(partition, f"{_name(partition)}: {reason}"):
            return
        if was_cut:
            partition.last_epoch = -1
        # At once, but not again and again.
        partition.tries += 1
        if partition.tries == 1:
            self._look([partition])
        else:
            self._look_later(partition, self.troubles.pause_s(partition.tries))

    @contextlib.contextmanager
    def _tried_again(self, partition: Partition) -> Generator[None]:
        """Look again later where the client or a callback of the user's raises, which the call then does too."""
        try:
            yield
        except BaseException:
            if partition.phase is Phase.LOOKING:
                partition.tries += 1
                self._look_later(partition, self.troubles.pause_s(partition.tries))
            raise

    def _take(self, partition: Partition, answer: Answer) -> None:
        if partition.phase is not Phase.LOOKING:
            return
        if partition.paused:
            self._keep_start(partition, answer)
            return
        if answer.error is not None:
            self._fail(partition, answer.error)
            return
        # Where the broker alone was asked, the bucket has what it had.
        partition.live, partition.lineage = answer.live, answer.lineage or partition.lineage
        if answer.recreated:
            self._begin_anew(partition, answer)
            return
        partition.topic_id = answer.topic_id or partition.topic_id
        if answer.was_reset is not None:
            self.troubles.was_reset(partition, answer.was_reset, answer.position)
        if answer.is_unset:
            partition.phase = Phase.IDLE
            self.events.append((partition.where, "unset", -1 if answer.was_reset is None else answer.was_reset))
            return
        if answer.truncated_to is not None:
            sentence = (
                f"the bucket's log of {_name(partition)} is another one from offset {answer.truncated_to} on than was "
                f"read up to offset {answer.position}: its leader epochs differ"
            )
            if not self.troubles.accepts(partition, sentence):
                return
            partition.last_epoch = -1
        if answer.position is None:
            self._wait(partition)
            return
        partition.position = partition.start = answer.position
        self._settle(partition, answer)

    def _keep_start(self, partition: Partition, answer: Answer) -> None:
        """Of a partition that is paused only where it starts is kept; the rest is looked at when it is resumed."""
        if partition.position is None and answer.position is not None and not answer.recreated:
            partition.position = partition.start = answer.position

    def _settle(self, partition: Partition, answer: Answer) -> None:
        placement, position = answer.placement, answer.position
        assert position is not None
        match placement:
            case OnBroker():
                self.live.add(partition)
                self.troubles.side(partition, "broker")
                partition.phase, partition.failing_since = Phase.LIVE, None
            case InBucket():
                self.troubles.side(partition, "bucket")
                partition.phase = Phase.BUCKET
                assert answer.lineage is not None
                partition.stream = StoredStream(partition.where, answer.lineage, position, placement.stop)
                self.readable.append(partition)
                self.streams.begin(partition.stream)
            case Lost():
                if self.troubles.loses(partition, position, placement.stop):
                    self._go_on(partition, placement.stop)
            case CutOff():
                # Else what lies behind in the bucket would be given again, and again.
                partition.broker_from = placement.end
                sentence = (
                    f"the broker's log of {_name(partition)} ends at offset {placement.end}, and it was read up to "
                    f"offset {position}"
                )
                if self.troubles.accepts(partition, sentence):
                    self._go_on(partition, placement.end)
            case Unreadable():
                error = CorruptData(f"what comes next cannot be read: {placement.problem}")
                if self.troubles.accepts_damage(partition, error):
                    self._wait(partition)
            case _:
                self._wait(partition)

    def _review(self, partition: Partition, answer: Answer) -> None:
        """What was found out of a partition that goes on by the client."""
        if not partition.is_live or answer.error is not None:
            return
        if answer.recreated:
            self.live.locate()
            self._leave(partition)
            self._begin_anew(partition, answer)
            return
        partition.live = answer.live or partition.live
        self.live.locate()
        is_silent = partition.where in self.live.silent
        if self.stalls.stands_still(partition, answer.readable_end, is_silent=is_silent):
            self._leave(partition)
            self._look([partition])
            return
        placement, lineage = answer.placement, answer.lineage
        if not isinstance(placement, InBucket) or lineage is None or answer.position is None:
            return
        # Where the broker is preferred that is a log that has left the position behind.
        if self._settings.mode is Mode.KAFKA_PREFERRED or lags(answer.position, placement.stop, lineage):
            self.live.locate()
            self._leave(partition)
            self._look([partition])

    def _begin_anew(self, partition: Partition, answer: Answer) -> None:
        """The topic is another one of the same name."""
        sentence = (
            f"topic {partition.where[0]} was created again as {answer.topic_id}, and {_name(partition)} of "
            f"{partition.topic_id} was read up to offset {partition.position}"
        )
        if self.troubles.accepts(partition, sentence):
            partition.topic_id, partition.last_epoch, partition.lineage = answer.topic_id, -1, None
            partition.start = "earliest" if answer.position is None else answer.position
            partition.position = answer.position
            self._look([partition])

    def _take_end(self, partition: Partition, stream: StoredStream) -> None:
        """A stream has given all that it will."""
        self._end_stream(partition)
        partition.phase = Phase.LOOKING
        for extent in stream.skipped:
            self.troubles.tell(extent)
        for extent in stream.lost:
            if not self.troubles.loses(partition, extent.start, extent.stop):
                partition.position = partition.start = extent.start
                return
        error = stream.error
        if error is None:
            self._go_on(partition, max(partition.position or 0, stream.stop))
        elif isinstance(error, UNREADABLE):
            if self.troubles.accepts_damage(partition, error):
                behind = stream.lineage.span_at(partition.position or 0).stop
                if self.troubles.loses(partition, partition.position or 0, behind):
                    self._go_on(partition, behind)
        else:
            self._fail(partition, error)

    def _fail(self, partition: Partition, error: Exception) -> None:
        """Something went wrong that may pass: it is tried again, and told of once it has lasted."""
        partition.phase = Phase.LOOKING
        # Retention took it since the listing.
        partition.is_listed_anew = isinstance(error, SegmentNotFound)
        self._look_later(partition, self.troubles.fails(partition, error))

    def _go_on(self, partition: Partition, position: int) -> None:
        partition.position = partition.start = position
        self._look([partition])

    def _wait(self, partition: Partition) -> None:
        partition.phase, partition.failing_since, partition.tries = Phase.WAITING, None, 0
        self._look_later(partition, self._settings.refresh_s)
        position = partition.position
        if self._settings.emits_eof and position is not None and partition.eof_at != position:
            partition.eof_at = position
            self.events.append((partition.where, "eof", position))

    def _look(self, partitions: Iterable[Partition]) -> None:
        looks: list[Look] = []
        for partition in partitions:
            partition.phase, partition.due_at = Phase.LOOKING, 0.0
            partition.generation = next(self._generations)
            start = partition.start if partition.position is None else partition.position
            looks.append(
                Look(
                    partition.where, partition.generation, start, partition.last_epoch, partition.topic_id,
                    partition.is_listed_anew, broker_from=partition.broker_from,
                )
            )  # fmt: skip
            partition.is_listed_anew = False
        if looks:
            self.lookups.ask(looks)

    def _look_later(self, partition: Partition, pause_s: float) -> None:
        partition.due_at = self._clock() + pause_s
        self._due_at = min(self._due_at, partition.due_at)

    def _look_again(self, now: float) -> None:
        due = [one for one in self.partitions.values() if 0 < one.due_at <= now and not one.paused]
        self._look(due)
        later = [one.due_at for one in self.partitions.values() if one.due_at > 0 and not one.paused]
        if now >= self._review_at:
            self._review_at = now + self._settings.refresh_s
            self._ask_reviews()
        self._due_at = min([*later, self._review_at])

    def _ask_reviews(self) -> None:
        """Whether those that come from the client still should."""
        self.live.locate()
        self.lookups.ask(
            Look(
                partition.where, partition.generation, partition.position, partition.last_epoch, partition.topic_id,
                is_review=True, broker_from=partition.broker_from,
            )
            for partition in list(self.live.partitions.values())
            if partition.position is not None and partition.position >= 0
        )  # fmt: skip

    def _leave(self, partition: Partition) -> None:
        """Stop what is under way for a partition, wherever it is read."""
        self._end_stream(partition)
        if partition.is_live:
            self.live.remove(partition)
        partition.phase, partition.due_at = Phase.LOOKING, 0.0
        partition.generation = next(self._generations)

    def _end_stream(self, partition: Partition) -> None:
        stream, partition.stream = partition.stream, None
        if stream is not None:
            self.streams.drop(stream)
            self.readable.remove(partition)


def _name(partition: Partition) -> str:
    return f"{partition.where[0]}-{partition.where[1]}"
