"""Delivery of messages and record batches, from bucket or broker, to the consumer's caller. Each delivery advances the
partition's position."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from confluent_kafka import KafkaError, Message

from tieredstore.consumer import _message
from tieredstore.consumer.client import Received, position_of
from tieredstore.consumer.core import was_cut
from tieredstore.consumer.partition import Live, Partition
from tieredstore.errors import BatchCorruptError
from tieredstore.live.follower import Link
from tieredstore.live.messages import MessageColumns, headers_size
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Measures
    from tieredstore.consumer.core import Core
    from tieredstore.model import TopicPartition

# Passed to ``map``, which takes a third of the time of a Python loop.
_error: Final[Any] = Message.error
_OVERTAKEN: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """Records of one partition with offsets from ``start_offset`` on; the next batch continues at ``next_offset``."""

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    records: pa.RecordBatch


@dataclass(slots=True)
class _OpenBatch:
    """A batch from the bucket that several calls return in parts. ``size`` is the size of all its rows in bytes."""

    partition: Partition
    records: pa.RecordBatch
    size: int
    messages: _message.BatchMessages
    row: int = 0


class Delivery:
    """Hands the core's records to the consumer's calls. Used by the polling thread only.

    :meth:`take` advances the partitions' positions. :meth:`put_back` moves them back for messages that a call could not
    return.
    """

    def __init__(self, core: Core, measures: Measures, held_bytes: int) -> None:
        self._held_bytes = held_bytes
        self._core = core
        self._measures = measures
        self._opened: dict[TopicPartition, _OpenBatch] = {}
        self._turns: deque[_OpenBatch] = deque()
        self._held: deque[Partition] = deque()
        self._events: deque[Received] = deque()
        """Events that were put back."""
        self._usual_size = 1024
        """The average size in bytes of the client's last messages."""

    @property
    def has_open(self) -> bool:
        """True if rows of a batch, or messages of the Kafka client, wait for a call that returns them."""
        return bool(self._turns) or bool(self._held)

    def room(self, count: int) -> int:
        """Return the number of messages to request from the client: at most ``count``, and no more than the delivery
        may hold. Return at least one, so that the client is always called.
        """
        held = sum(len(partition.held) for partition in self._held)
        return max(1, min(count, self._held_bytes // self._usual_size - held))

    def take(self, messages: list[Received], count: int) -> None:
        """Append available messages until there are ``count``: first events, then held messages of the client, then
        records of the bucket.

        If this fails, for example in the user's callback for losses, the caller puts the messages back.
        """
        messages += self.take_events(count - len(messages))
        while self._held and len(messages) < count:
            messages += self._take_held(count - len(messages))
        while len(messages) < count and (opened := self._next_open()) is not None:
            messages += self._take_rows(opened, count - len(messages))

    def take_batch(self, max_rows: int | None, columns: MessageColumns) -> PartitionBatch | None:
        """Return available records of one partition."""
        while self._held:
            partition = self._held[0]
            if self._is_current(partition) and partition.held:
                return self._take_held_batch(partition, max_rows, columns)
            self._held.popleft()
        opened = self._next_open()
        if opened is None:
            return None
        partition, start = opened.partition, opened.row
        stop = len(opened.messages) if max_rows is None else min(len(opened.messages), start + max_rows)
        records = opened.records
        chosen = records.select(columns.schema.names).slice(start, stop - start)
        first = opened.messages.offset(start)
        self._note_moved(opened, stop, records.slice(start, stop - start).nbytes)
        assert partition.position is not None
        return PartitionBatch(*partition.where, first, partition.position, chosen)

    def judge(self, messages: list[Received], asked: int) -> list[Received]:
        """Drop messages of partitions that the client should no longer fetch; return the other messages. ``asked`` is
        the number of messages requested from the client.
        """
        live = self._core.live
        if len(messages) < asked:
            live.note_drained()
        if not messages:
            return messages
        if not live.unheard and not live.leaving and not any(map(_error, messages)):
            records = kept = messages
        else:
            kept = [message for message in messages if self._is_wanted(message)]
            records = [message for message in kept if message.error() is None]
        self._count_live(records)
        return [message for message in kept if not self._has_to_wait(message)] if self._held else kept

    def hold(self, messages: list[Received]) -> None:
        """Keep messages of the client for later calls."""
        for message in messages:
            partition = self._core.partitions.get((message.topic(), message.partition()))
            if partition is not None and isinstance(partition.phase, Live):
                partition.phase.held.append(message)
                self.hold_on(partition)

    def put_back(self, messages: Sequence[Received]) -> None:
        """Put back messages that the call could not return. A later call returns them."""
        firsts: dict[TopicPartition, Position] = {}
        for message in reversed(messages):
            partition = self._core.partitions.get((message.topic(), message.partition()))
            if message.error() is not None:
                self._events.appendleft(message)
                continue
            if partition is None:
                continue
            phase = partition.phase
            # A message of the client may be from before the partition left the broker, or from an earlier assignment.
            is_own = isinstance(message, _message.Message)
            if isinstance(phase, Live) and phase.link is Link.HEARD and not is_own:
                phase.held.appendleft(message)
                self.hold_on(partition)
            else:
                firsts[partition.where] = position_of(message)
        for where, first in firsts.items():
            self.forget([where])
            self._core.move_back(self._core.partitions[where], first)

    def hold_on(self, partition: Partition) -> None:
        """Queue a partition for delivery if it has held messages, for example after a pause."""
        if partition.held and partition not in self._held:
            self._held.append(partition)

    def forget(self, wheres: Sequence[TopicPartition]) -> None:
        """Drop the open batches of these partitions, and no longer return their held messages."""
        for where in wheres:
            opened = self._opened.pop(where, None)
            if opened is not None:
                self._turns.remove(opened)
        self._held = deque(partition for partition in self._held if partition.where not in wheres)

    def _count_live(self, messages: Sequence[Received]) -> None:
        self._measures.records["broker"] += len(messages)
        self._measures.byte_counts["broker"] += sum(map(len, messages))
        if messages:
            size = _size_of(messages)
            self._core.live.note_received(messages, size)
            self._usual_size = max(64, size // len(messages))

    def _is_current(self, partition: Partition) -> bool:
        return self._core.partitions.get(partition.where) is partition and not partition.paused

    def take_events(self, count: int = 1000) -> list[Received]:
        """Return a partition's events as messages with an error: it has reached its end, or has no start offset."""
        events = self._core.events
        given = self._take_put_back(count)
        while events and len(given) < count:
            where, kind, offset = events.popleft()
            if where not in self._core.partitions:
                continue
            if kind == "eof":
                reason = "the bucket has no more records yet"
                error = KafkaError(KafkaError._PARTITION_EOF, f"Broker: No more messages ({reason})")
            else:
                words = "no previously committed offset available" if offset < 0 else "fetch failed due to offset range"
                error = KafkaError(
                    KafkaError._AUTO_OFFSET_RESET, f"{words}: Local: No offset to automatically reset to"
                )
            given.append(_message.event(*where, offset, error))
        return given

    def _take_put_back(self, count: int) -> list[Received]:
        """Return events that were put back. The end of a partition comes after the partition's held messages."""
        given: list[Received] = []
        waiting: deque[Received] = deque()
        while self._events and len(given) < count:
            message = self._events.popleft()
            error, partition = message.error(), self._core.partitions.get((message.topic(), message.partition()))
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                if partition is None or partition.eof_at != message.offset():
                    continue  # the partition has left this end, and reports it again when it is back there
                if partition.held or partition.paused:
                    waiting.append(message)
                    continue
            given.append(message)
        self._events.extendleft(reversed(waiting))
        return given

    def _take_held(self, count: int) -> list[Received]:
        partition = self._held[0]
        messages: list[Received] = []
        if self._is_current(partition):
            while partition.held and len(messages) < count:
                messages.append(partition.held.popleft())
        if not partition.held or not self._is_current(partition):
            self._held.popleft()
        if messages:
            partition.commit.has_given = True
            self._core.live.note_received(messages, _size_of(messages))
        return messages

    def _take_held_batch(self, partition: Partition, max_rows: int | None, columns: MessageColumns) -> PartitionBatch:
        most = len(partition.held) if max_rows is None else min(max_rows, len(partition.held))
        messages = list(islice(partition.held, most))
        # Build the batch before taking the messages, so that none is skipped if this fails.
        try:
            records = columns.build_leading(cast("list[Message]", messages))
        except BatchCorruptError:
            if self.room(2) < 2:
                # Each call takes at least one more message, so drop the partition's messages, and fetch them again.
                self.forget([partition.where])
                self._core.move(partition, position_of(messages[0]))
            raise
        del messages[records.num_rows :]
        for _ in messages:
            partition.held.popleft()
        if partition.held:
            self._held.rotate(-1)
        else:
            self._held.popleft()
        partition.commit.has_given = True
        self._core.live.note_received(messages, _size_of(messages))
        return PartitionBatch(*partition.where, messages[0].offset(), messages[-1].offset() + 1, records)

    def _next_open(self) -> _OpenBatch | None:
        """Return the batch that is being delivered; if there is none, open the next batch."""
        while self._turns:
            opened = self._turns[0]
            if self._core.partitions.get(opened.partition.where) is opened.partition and opened.row < len(
                opened.messages
            ):
                return opened
            self._turns.popleft()
            self._opened.pop(opened.partition.where, None)
        readable = self._core.next_readable()
        if readable is None:
            return None
        partition, records = readable
        messages = _message.BatchMessages(*partition.where, records)
        opened = _OpenBatch(partition, records, records.nbytes, messages)
        self._opened[partition.where] = opened
        self._turns.append(opened)
        return opened

    def _take_rows(self, opened: _OpenBatch, count: int) -> Sequence[Received]:
        start = opened.row
        stop = min(len(opened.messages), start + count)
        messages = opened.messages.take(start, stop)
        self._note_moved(opened, stop, opened.size * (stop - start) // max(1, len(opened.messages)))
        return messages

    def _note_moved(self, opened: _OpenBatch, stop: int, byte_count: int) -> None:
        partition, count = opened.partition, stop - opened.row
        opened.row = stop
        if count <= 0:
            return
        partition.tally.timestamp_ms = opened.messages.timestamp(stop - 1)
        epoch = opened.messages.epoch(stop - 1)
        partition.at = Position(opened.messages.offset(stop - 1) + 1, None if epoch < 0 else epoch)
        partition.commit.has_given = True
        self._measures.records["bucket"] += count
        self._measures.byte_counts["bucket"] += byte_count
        if stop == len(opened.messages):
            self._turns.remove(opened)
            self._opened.pop(partition.where, None)

    def _has_to_wait(self, message: Received) -> bool:
        """If earlier messages of the partition wait to be returned, queue this message behind them and return True."""
        partition = self._core.partitions.get((message.topic(), message.partition()))
        if partition is None or not partition.held or message.error() is not None:
            return False
        partition.held.append(message)
        return True

    def _is_wanted(self, message: Received) -> bool:
        core, error = self._core, message.error()
        where = message.topic(), message.partition()
        partition = core.partitions.get(where)
        if partition is None or not isinstance(partition.phase, Live):
            # Return errors that concern the Kafka client or a topic. Drop messages of partitions that the client should
            # no longer fetch.
            return error is not None and partition is None and where not in core.live.leaving
        live = partition.phase
        if error is None:
            return self._is_wanted_record(message, partition, live)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and live.hole_at != message.offset():
            # Compaction can remove the last records of a batch at a segment's end. A fetch from an offset after the
            # batch's remaining records returns the same batch again. After ten such fetches, librdkafka reports the
            # batch as too large, but then continues after the batch. So only a second report for the same offset is an
            # error.
            live.hole_at = message.offset()
            return False
        if error.code() not in _OVERTAKEN:
            if error.code() == KafkaError._PARTITION_EOF:
                partition.eof_at = message.offset()
            return True
        core.lose_by_client(partition, was_cut=was_cut(error), reason=error.str())
        return False

    def _is_wanted_record(self, message: Received, partition: Partition, live: Live) -> bool:
        if live.link is Link.UNCHECKED:
            return False  # the seek that checks for truncation fetches the message again
        if live.link is Link.SILENT:
            # Drop messages of the previous assignment, which may still arrive.
            if partition.where in self._core.live.leaving or message.offset() < live.assigned_at:
                return False
            self._core.live.hear(partition, live)
        partition.commit.has_given = True
        return True


def _size_of(messages: Sequence[Received]) -> int:
    """Return the size in bytes of all values, plus an estimate for keys and headers: those of the last message.

    Measuring each key would double the cost per message.
    """
    last: Any = messages[-1]
    return sum(map(len, messages)) + len(messages) * (len(last.key() or b"") + headers_size(last))
