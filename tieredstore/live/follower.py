"""A consumer that follows partitions for as long as it is wanted, and says what came of each."""

from __future__ import annotations

import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import AlreadyClosedError, BatchCorruptError, ResourceNotFoundError, TieredStoreError
from tieredstore.kafka.records import COLUMNS
from tieredstore.live.clients import LiveConsumer, reading_configuration
from tieredstore.live.faults import OF_GROUPS, OF_HOLES, OUT_OF_RANGE, fault, translate_errors
from tieredstore.live.messages import MessageColumns, epoch_of, last_offset, pieces, size_of
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.live.topic_watch import TopicWatch
from tieredstore.model import Isolation, TopicPartition
from tieredstore.process.closing import Closing

_ROWS: Final = 10_000
_TARGET_BYTES: Final = 4 * 1024 * 1024
_FIRST_ROWS: Final = 256
"""How large messages are is not known before the first have come."""

_WAIT_S: Final = 0.1
_LOOK_S: Final = 5.0
"""How long a look whether a broker is there at all may take."""


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """What came of a partition: ``records`` in the order of offsets, all of which before ``next_offset`` were given.

    None for records means that the broker does not have what comes next: retention passed by, the log was cut, or the
    topic is gone. The partition is followed no longer then.
    """

    where: TopicPartition
    records: pa.RecordBatch | None
    next_offset: int
    leader_epoch: int | None = None
    """That of the last record."""


class Link(enum.Enum):
    """What is known of the client's side of a partition that it fetches.

    | from | event | next |
    |---|---|---|
    | - | assigned, with the leader epoch of the record before | `UNCHECKED` |
    | - | assigned without | `SILENT` |
    | `UNCHECKED` | the client takes the seek that has it ask the leader | `SILENT` |
    | `SILENT` | a record or the end comes | `HEARD` |
    """

    UNCHECKED = enum.auto()
    """The client has yet to ask whether the record before the place is of the broker's log: nothing is given."""
    SILENT = enum.auto()
    """Nothing has come since it was assigned, so that the client does not tell where it is."""
    HEARD = enum.auto()


@dataclass(slots=True)
class _Followed:
    """A partition that is followed: where it goes on, with the epoch of the record before as far as it is known."""

    position: int
    epoch: int | None
    link: Link
    failure: TieredStoreError | None = None
    """Raised once all is given that came before it."""


class LiveFollower(Closing):
    """Follows partitions of one cluster, each from an offset on. For one thread; to be closed.

    One consumer has them all, and joins no group. Memory is bounded whatever the number of partitions: what librdkafka
    reads ahead (``docs/how-to/read.md``) and about 4 MiB or 10,000 records on their way out.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        isolation: Isolation,
        columns: Sequence[str] = COLUMNS,
        timeout_s: float = 60.0,
        make_consumer: Callable[[Mapping[str, str]], LiveConsumer] = LiveConsumer,
    ) -> None:
        """ConfigError for what cannot be; nothing is connected to before the first partition."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, isolation)
        self._columns = MessageColumns(columns)
        self._servers = configuration["bootstrap.servers"]
        self._doing = f"the partitions that are followed at {self._servers} cannot be read"
        self._timeout_s = timeout_s
        self._consumer = make_consumer(reading_configuration(configuration, timeout_s))
        self._followed: dict[TopicPartition, _Followed] = {}
        self._ready: deque[LiveEvent] = deque()
        self._is_closed = False
        self._rows = _FIRST_ROWS
        self._answered_at = time.monotonic()
        self._watch = TopicWatch(self._consumer, timeout_s)
        self._watched = ""
        """The topic that was looked at last."""

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Where each partition that is followed goes on, behind what :meth:`poll` has given."""
        return {where: one.position for where, one in self._followed.items()}

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`poll` has something to give without asking."""
        return bool(self._ready)

    def add(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        """Follow these partitions too, from these offsets on; one that is followed already moves there.

        ``epochs`` are of leaders that had the offsets in their logs: if an election has cut a log below its offset
        since, an event without records tells it.
        """
        self.remove(positions)
        if positions:
            # Incremental: the others are fetched on, and what was read ahead of them is kept.
            with translate_errors(self._doing):
                self._consumer.incremental_assign([KafkaPartition(*where, at) for where, at in positions.items()])
            for where, at in positions.items():
                link = Link.UNCHECKED if where in epochs else Link.SILENT
                self._followed[where] = _Followed(at, epochs.get(where), link)
            self._answered_at = time.monotonic()
            self._watch.begin()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Follow these no longer; what had come of them and was not asked for is dropped."""
        known = [where for where in partitions if where in self._followed]
        if not known:
            return
        with translate_errors(self._doing):
            self._consumer.incremental_unassign([KafkaPartition(*where) for where in known])
        for where in known:
            del self._followed[where]
        self._ready = deque(event for event in self._ready if event.where in self._followed)

    def poll(self, timeout_s: float) -> LiveEvent | None:
        """What comes next, of whichever partition; None if nothing does for ``timeout_s``.

        Nothing is no error as long as a broker is there: a log may not grow. BrokerUnavailableError, to be tried again,
        if none has answered for the follower's own time-out; BrokerDeniedError, BrokerError, BatchCorruptError. What
        came before an error is given before it is raised, and asked again the follower goes on behind what it has
        given. A topic or partition that the brokers still do not know after some seconds is gone.
        """
        self.wait(timeout_s)
        if not self._ready:
            return None
        event = self._ready.popleft()
        if event.records is None:
            self.remove([event.where])
        else:
            followed = self._followed[event.where]
            followed.position = event.next_offset
            if event.leader_epoch is not None:
                followed.epoch = event.leader_epoch
        return event

    def wait(self, timeout_s: float) -> None:
        """Until :meth:`poll` has something to give, ``timeout_s`` at most; errors as there."""
        if self._is_closed:
            raise AlreadyClosedError("the follower was closed; open another one to go on")
        end = time.monotonic() + timeout_s
        while not self._ready:
            left = max(0.0, end - time.monotonic())
            self._raise_failure()
            if self._followed:
                self._check_places()
                # Asked to wait for many, a consumer waits its whole time for the last of them.
                messages = self._consumer.consume(self._rows, 0)
                self._take(messages or self._consumer.consume(1, min(left, _WAIT_S)))
                self._check_broker()
            elif left:
                time.sleep(min(left, _WAIT_S))
            if not left:
                return

    def _check_places(self) -> None:
        """Have the client ask the leaders: only a seek always does, which drops what was fetched before it."""
        for where, followed in self._followed.items():
            if followed.link is Link.UNCHECKED and followed.epoch is not None:
                place = KafkaPartition(*where, followed.position, leader_epoch=followed.epoch)
                with contextlib.suppress(KafkaException):  # the assignment has not begun yet
                    self._consumer.seek(place)
                    followed.link = Link.SILENT

    def close(self) -> None:
        """End the connections; AlreadyClosedError from then on."""
        self._is_closed = True
        self._consumer.close()

    def _take(self, messages: list[Message]) -> None:
        """What came, by partition; events keep the order in which a partition's messages came."""
        runs: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            where = _partition_of(message)
            followed = self._followed.get(where)
            if followed is not None and followed.link is Link.UNCHECKED:
                continue
            error = message.error()
            if error is not None:
                self._judge(error, where, runs)
            elif followed is not None and followed.failure is None:
                # Others may still come of a partition that was removed, or that begins again after an error.
                runs.setdefault(where, []).append(message)
        for where in list(runs):
            self._release(where, runs)
        if messages:
            size = size_of([message for message in messages if message.error() is None])
            # As many for the next call as make the target's size, if they are like these.
            self._rows = max(1, min(_ROWS, _TARGET_BYTES * len(messages) // max(1, size)))

    def _release(self, where: TopicPartition, runs: dict[TopicPartition, list[Message]]) -> None:
        """Make record batches of what has come of one partition."""
        for piece in pieces(runs.pop(where), _TARGET_BYTES):
            try:
                records = self._columns.build(piece)
            except BatchCorruptError as error:
                self._fail(where, error)
                break
            self._ready.append(LiveEvent(where, records, last_offset(piece) + 1, epoch_of(piece[-1])))
        self._heard_of(where)

    def _judge(self, error: KafkaError, where: TopicPartition, runs: dict[TopicPartition, list[Message]]) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._heard_of(where)
            return
        if code in OF_GROUPS | OF_HOLES:
            return
        broker_error = fault(error, self._doing)
        if code in OUT_OF_RANGE or isinstance(broker_error, ResourceNotFoundError):
            if where in runs:
                # What came before the error is good, and tells where the bucket has to go on.
                self._release(where, runs)
            if where in self._followed:
                self._ready.append(LiveEvent(where, None, self._followed[where].position))
        elif broker_error.retryable:
            # librdkafka tries again by itself: this is an error only if nothing comes until the time is over.
            self._consumer.trouble.note(error)
        else:
            # Raised here it would take along what came of other partitions in the same answer.
            self._fail(where, broker_error)

    def _fail(self, where: TopicPartition, error: TieredStoreError) -> None:
        followed = self._followed.get(where)
        if followed is not None and followed.failure is None:
            followed.failure = error

    def _raise_failure(self) -> None:
        """The error of a partition, which begins again behind what was given: the consumer has moved on."""
        for where, followed in list(self._followed.items()):
            if followed.failure is not None:
                # With the epoch: the leader may be another one by now, whose log was cut below the place.
                epochs = {} if followed.epoch is None else {where: followed.epoch}
                self.add({where: followed.position}, epochs)
                raise followed.failure

    def _heard_of(self, where: TopicPartition) -> None:
        if where in self._followed:
            self._followed[where].link = Link.HEARD
        self._answered_at = time.monotonic()
        self._consumer.trouble.forget()

    def _check_broker(self) -> None:
        """An error if a broker should have said something by now, and is not there when it is looked for."""
        trouble = self._consumer.trouble
        final = trouble.final(self._doing)
        if final is not None:
            raise final
        self._check_silent()
        if time.monotonic() < self._answered_at + self._timeout_s:
            return
        if trouble.noted is None and not self._list_silent():
            return
        # Connections come and go while a log does not grow, and nobody tells that they are back.
        self._look_for_broker()
        if self._list_silent():
            raise trouble.unavailable(self._doing, self._timeout_s)
        trouble.forget()
        self._answered_at = time.monotonic()

    def _check_silent(self) -> None:
        """Find out why nothing has come of some yet: of one topic after the other."""
        if not self._watch.is_due or not (silent := self._list_silent()):
            return
        topics = {topic for topic, _ in silent}
        self._watched = min({topic for topic in topics if topic > self._watched} or topics)
        partitions = sorted(number for topic, number in silent if topic == self._watched)
        for number, error in self._watch.faults(self._watched, partitions, self._doing).items():
            if not isinstance(error, ResourceNotFoundError):
                raise error
            where = self._watched, number
            self._followed[where].link = Link.HEARD
            self._ready.append(LiveEvent(where, None, self._followed[where].position))

    def _list_silent(self) -> list[TopicPartition]:
        """Those of which neither a record nor the end has come yet."""
        return [where for where, followed in self._followed.items() if followed.link is not Link.HEARD]

    def _look_for_broker(self) -> None:
        try:
            # Of one topic: the metadata of all may be large, and any answer will do.
            self._consumer.list_topics(self._any_topic(), timeout=min(_LOOK_S, self._timeout_s))
        except KafkaException as error:
            raise self._consumer.trouble.unavailable(self._doing, self._timeout_s) from error

    def _any_topic(self) -> str:
        return next(iter(self._followed))[0]


def _partition_of(message: Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    return topic or "", -1 if partition is None else partition
