"""Writing of a batch: put the object, append its notification to the topic's queue, and return the batch's place."""

from __future__ import annotations

import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from queue import Empty, SimpleQueue
from random import random
from typing import Final

from tieredstore.errors import InvalidRangeError, StoreUnavailableError, TieredStoreError
from tieredstore.kafka.batches import Buffer
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.errors import DeliveryFailedError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import batch_checksum, batch_index, fill_batch, index_size
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.format.notifications import BatchFacts, BatchKey, Notification, RequestRuns
from tieredstore.pubsub.queue.hedging import UsualTime
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.pubsub.settings import BatchSettings

_MOST_VALUES: Final = 30_000
"""Maximum number of JSON values about producers in a notification. This many values take up to 800 KB of the 1 MiB that
readers and Kafka accept.
"""

_VALUES_A_PRODUCER: Final = 4


@dataclass(frozen=True, slots=True)
class SealedMessage:
    """A Message as stored, with the facts for its notification.

    A Message that another client has built may name no producer, and its timestamps are unknown.
    """

    stored: Buffer
    request: ProducerRequest | None
    record_count: int
    min_timestamp: int | None
    max_timestamp: int | None


@dataclass(slots=True)
class SealedBatch:
    """Messages that are stored together as one batch, within the limits of the settings."""

    settings: BatchSettings
    messages: list[SealedMessage] = field(default_factory=list[SealedMessage])
    stored_bytes: int = 0

    def has_room_for(self, message: SealedMessage) -> bool:
        """Return True if the Message fits; an empty batch has room for any Message."""
        return not self.messages or self.stored_bytes + len(message.stored) <= self.settings.batch_bytes

    def add(self, message: SealedMessage) -> None:
        """Add a Message."""
        self.messages.append(message)
        self.stored_bytes += len(message.stored)

    @property
    def is_full(self) -> bool:
        """True if the batch has reached a limit of the settings."""
        settings = self.settings
        return self.stored_bytes >= settings.batch_bytes or len(self.messages) >= settings.batch_messages


_TRIES_AT_ONCE: Final = 2
_FIRST_DELAY_S: Final = 0.1
_MOST_DELAY_S: Final = 5.0


@dataclass(slots=True)
class _Tries:
    """The tries of one put."""

    ended: SimpleQueue[Future[None]] = field(default_factory=SimpleQueue[Future[None]])
    under_way: int = 0
    error: TieredStoreError | None = None
    is_unclear: bool = False

    def wait(self, deadline: Deadline, hedge_s: float) -> bool:
        """Wait until the object is stored, another try is due, or the deadline has passed. Return True if it is
        stored."""
        while self.under_way:
            left_s = deadline.remaining_s()
            longest_s = left_s if self.under_way >= _TRIES_AT_ONCE else min(hedge_s, left_s)
            try:
                outcome(self.ended.get(timeout=max(0.0, longest_s)), 0)
            except Empty:
                return False
            except TieredStoreError as error:
                self.error, self.under_way = error, self.under_way - 1
                self.is_unclear |= error.retryable
            else:
                return True
        return False


class BatchWriter:
    """Writes batches of one topic. Thread-safe; up to ``uploads`` threads may write in parallel."""

    def __init__(self, log: BatchLog, *, host: str | None = None) -> None:
        """``host`` becomes part of the objects' keys; the default is this machine's name.

        If the queue cannot be reached, close ``log`` and raise the queue's error. Raise ConfigError if the definition
        was copied from another cluster that still has it, because that cluster's gc would delete these batches."""
        self.log = log
        self._usual = UsualTime()
        # Use more threads than concurrent attempts, because an attempt that hangs keeps its thread until the store's
        # own deadline.
        self._pool = ThreadPool((_TRIES_AT_ONCE + 1) * log.settings.uploads, "tieredstore-pubsub-put")
        self._host = host or socket.gethostname().partition(".")[0].replace("/", "-")[:63] or "host"
        try:
            # Copied definitions name the same queue if it is in Kafka, so both clusters know all batches.
            if log.topic.queue != KAFKA and log.topic.path != log.topics.path_of(log.topic.name):
                log.topics.check_alone(log.topic)
            self._turns = count(secrets.randbelow(log.queue.partitions))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Begin no more tries of uploads, drop the tries that have not begun, and close the topic."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.log.close()

    def write(
        self,
        messages: Sequence[SealedMessage],
        deadline: Deadline,
        partition: int | None = None,
        memory: BatchMemory | None = None,
        empty: Sequence[ProducerRequest] = (),
    ) -> tuple[int, int]:
        """Store the batch and append its notification. Return the notification's read partition and offset.

        Without ``partition``, batches go to the read partitions in turn. The notification also lists ``empty``
        requests. Raise DeliveryFailedError on failure."""
        notification = self.store(messages, deadline, memory, empty)
        if partition is None:
            partition = next(self._turns) % self.log.queue.partitions
        key = notification.key
        try:
            # Begin no append after the deadline. This process may have slept so long that `gc` took the object for an
            # orphan.
            deadline.check("the append")
            (offset,) = self.log.queue.append(partition, [notification.to_json()], deadline)
            # The process may have slept during the append. `gc` takes no object for an orphan before three times this
            # timeout.
            if deadline.remaining_s() <= -self.log.settings.delivery_timeout_ms / 1000:
                raise StoreUnavailableError("the append took so long that `gc` may have taken the object for an orphan")
        except TieredStoreError as error:
            # Either the object is an orphan that readers do not see, or the append succeeded and only its answer was
            # lost.
            raise DeliveryFailedError(
                f"{key} is stored, but its notification failed: {error}", maybe_stored=True
            ) from error
        return partition, offset

    def store(
        self,
        messages: Sequence[SealedMessage],
        deadline: Deadline,
        memory: BatchMemory | None = None,
        empty: Sequence[ProducerRequest] = (),
    ) -> Notification:
        """Store the batch without appending a notification. Raise DeliveryFailedError on failure.

        ``memory``, if given, already holds all of the batch's Messages in place. Without it, this method copies the
        Messages into one buffer.
        """
        stored = [message.stored for message in messages]
        pool = self.log.topics.memory
        body = fill_batch(stored, lambda size: memoryview(pool.slab(size))) if memory is None else memory.batch(stored)
        key = self._key(messages)
        self._put(key, body, deadline)
        return self._notification(messages, key, body, empty)

    def _put(self, key: str, body: memoryview, deadline: Deadline) -> None:
        """Return once the object is stored.

        Raise DeliveryFailedError if the store refuses the object, or at the deadline. The error's ``maybe_stored`` is
        True if a try may have succeeded or may still succeed."""
        mark, tries, delay_s = uuid.uuid4().hex, _Tries(), _FIRST_DELAY_S
        while True:
            if tries.under_way < _TRIES_AT_ONCE:
                self._pool.submit(self._try, key, body, mark).add_done_callback(tries.ended.put)
                tries.under_way += 1
            if tries.wait(deadline, self._usual.hedge_after_s):
                return
            error = tries.error
            if error is not None and not error.retryable:
                raise DeliveryFailedError(
                    f"{key} was not stored: {error}", maybe_stored=tries.is_unclear or tries.under_way > 0
                ) from error
            if deadline.remaining_s() <= 0:
                why = "no answer in time" if error is None else str(error)
                raise DeliveryFailedError(f"{key} was not stored: {why}", maybe_stored=True) from error
            if not tries.under_way:
                time.sleep(max(0.0, min(delay_s * (0.5 + random() / 2), deadline.remaining_s())))  # noqa: S311  jitter
                delay_s = min(2 * delay_s, _MOST_DELAY_S)

    def _try(self, key: str, body: memoryview, mark: str) -> None:
        begin_s = time.monotonic()
        self.log.store.put_once(key, body, mark)
        self._usual.note(time.monotonic() - begin_s)

    def _key(self, messages: Sequence[SealedMessage]) -> str:
        """Return a new key for the batch. A random number makes it unique."""
        server_id = secrets.randbits(64) - (1 << 63)
        request = messages[0].request
        client_id, ms = 0 if request is None else request.request_id, time.time_ns() // 1_000_000
        topic = self.log.topic
        return str(BatchKey(topic.path, client_id, server_id, ms, 0, self._host, topic.is_hashed))

    def _notification(
        self, messages: Sequence[SealedMessage], key: str, body: Buffer, empty: Sequence[ProducerRequest]
    ) -> Notification:
        named = request_runs(message.request for message in messages)
        left_out = request_runs(empty)
        values = _values(named)
        facts = BatchFacts(
            batch_id=uuid.uuid4().hex,
            records=sum(message.record_count for message in messages),
            min_timestamp=_over_all(min, [message.min_timestamp for message in messages]),
            max_timestamp=_over_all(max, [message.max_timestamp for message in messages]),
            total_size=len(body),
            crc32=batch_checksum(body, [message.stored for message in messages]),
            # Leave out a list that would make the notification too large. Readers then read the object's headers
            # instead.
            producers=named if values <= _MOST_VALUES else (),
            empty=left_out if values + _values(left_out) <= _MOST_VALUES else (),
        )
        return Notification(
            topic=self.log.topic.name,
            object_size=len(body) - index_size(len(messages)),
            message_count=len(messages),
            key=key,
            bucket=self.log.topics.bucket_name,
            facts=facts,
        )


def _over_all(choose: Callable[[list[int]], int], timestamps: Sequence[int | None]) -> int | None:
    """Return the timestamp that ``choose`` selects (min or max); None if any of the timestamps is unknown."""
    known = [timestamp for timestamp in timestamps if timestamp is not None]
    return choose(known) if len(known) == len(timestamps) else None


def request_runs(requests: Iterable[ProducerRequest | None]) -> tuple[RequestRuns, ...]:
    """Group requests by producer, and list their ids as sequences of consecutive ids."""
    ids: dict[tuple[str, int], set[int]] = {}
    for request in requests:
        if request is not None:
            ids.setdefault((request.address.hex(), request.epoch_ms), set()).add(request.request_id)
    return tuple(
        RequestRuns(address, epoch, tuple(_runs(sorted(numbers)))) for (address, epoch), numbers in ids.items()
    )


def _values(named: tuple[RequestRuns, ...]) -> int:
    return sum(_VALUES_A_PRODUCER + len(runs.requests) for runs in named)


def _runs(numbers: Sequence[int]) -> list[int]:
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-1] + 1 >= number:
            runs[-1] = number
        else:
            runs += (number, number)
    return runs


# A Message has at least this many bytes. This limits the number of Messages in a batch, and so the memory for the
# batch's index.
_LEAST_MESSAGE: Final = 64


class BatchMemory:
    """Memory for one batch of ``size`` bytes and at most ``messages`` Messages. If the first Message needs more, the
    memory is larger.

    The memory is not thread-safe. Messages never change once they are added.
    """

    def __init__(self, pool: SlabPool, size: int, messages: int, *, least: int = 0, first: int | None = None) -> None:
        """Reserve the memory. ``least``: bytes that the first Message may need. ``first``: initial bytes, for batches
        that may stay small. With ``first``, add Messages only by :meth:`add`, which enlarges the memory when needed.
        """
        self._pool = pool
        self.most_messages: int = min(messages, size // _LEAST_MESSAGE + 1)
        self._first = self._end = index_size(self.most_messages)
        # Use one byte less, because the pool would return a much larger block for a round size.
        self._most = size - 1
        self._size = max(self._most, self._first + least)
        self._memory = memoryview(pool.slab(self._size if first is None else min(self._size, self._first + first)))
        self._sizes: list[int] = []

    @property
    def left(self) -> int:
        """Bytes left for further Messages."""
        most = self._most if self._sizes else self._size
        return max(0, most - self._end) if len(self._sizes) < self.most_messages else 0

    @property
    def messages(self) -> int:
        """Number of Messages."""
        return len(self._sizes)

    @property
    def used(self) -> int:
        """Bytes of all Messages."""
        return self._end - self._first

    def body(self, most: int, head: int) -> BodyWriter:
        """Return a writer for the next Message's records, with ``head`` free bytes before the records for the header.

        The writer takes at most ``most`` bytes, and no more than the rest of the memory. Only :meth:`hold` adds the
        Message to the batch.
        """
        return BodyWriter(min(most, self.left - head), self._memory[self._end : self._size], head)

    def hold(self, size: int) -> None:
        """Add the Message of ``size`` bytes that was written by the last writer of :meth:`body`."""
        self._end += size
        self._sizes.append(size)

    def add(self, message: Buffer) -> None:
        """Add a copy of a whole Message."""
        start = self._end
        self.hold(len(message))
        if self._end > len(self._memory):
            grown = memoryview(self._pool.slab(min(self._size, max(self._end, 2 * len(self._memory)))))
            grown[self._first : start] = self._memory[self._first : start]
            self._memory = grown
        self._memory[start : self._end] = message

    def list_messages(self) -> list[memoryview]:
        """Return views of the Messages; call this method after the last Message is added."""
        ends = list(accumulate(self._sizes, initial=self._first))
        return [self._memory[start:end] for start, end in pairwise(ends)]

    def batch(self, messages: Sequence[Buffer]) -> memoryview:
        """Return the object that holds all Messages; ``messages`` must be the result of :meth:`list_messages`."""
        if list(map(len, messages)) != self._sizes:
            raise InvalidRangeError(
                f"the {len(messages)} given Messages are not the {self.messages} Messages of the batch"
            )
        index = batch_index(messages)
        start = self._first - len(index)
        self._memory[start : self._first] = index
        return self._memory[start : self._end]


def room_for(messages_of_a_batch: int, batch_bytes: int, message_bytes: int) -> int:
    """Return the maximum number of Messages that a batch can hold.

    A Message ends when the next record does not fit. Any two successive Messages are therefore together larger than the
    limit of a single Message.
    """
    return max(1, min(messages_of_a_batch, 2 * (batch_bytes // message_bytes) + 2))
