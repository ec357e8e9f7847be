"""One topic at a broker: Messages of many producers into batches, and batches into the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol
from zlib import crc32

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.batches import Buffer
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.broker.counts import BrokerCounts
from tieredstore.pubsub.broker.stored_lately import SeenMessages
from tieredstore.pubsub.errors import DeliveryFailed
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import MessageHeader, ProducerRequest
from tieredstore.pubsub.produce.batch_memory import BatchMemory
from tieredstore.pubsub.produce.batch_writer import SealedMessage

_logger: Final = logging.getLogger(__name__)

_LEAST_MEMORY: Final = 64 << 10
_MOST_EMPTY: Final = 5_000
"""Requests without records that wait for a notification; of more, the audit says that they are lost or empty."""

Answer = Callable[[TieredStoreError | None], None]
"""Tells whoever sent a Message how it went; called once, on the loop."""


class Writer(Protocol):
    """What stores a batch and notifies; on a thread of uploads."""

    def write(
        self,
        messages: list[SealedMessage],
        deadline: Deadline,
        partition: int | None = None,
        memory: BatchMemory | None = None,
        empty: Sequence[ProducerRequest] = (),
    ) -> tuple[int, int]:
        """Where it stands: read partition and offset."""
        ...

    def close(self) -> None:
        """Begin no more."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is sealed, and how long its delivery may take."""

    size: int
    seconds: float
    messages: int
    delivery_s: float

    @property
    def message_size(self) -> int:
        """Bytes of a Message at most."""
        return self.size - index_size(1)


@dataclass(slots=True)
class _Held:
    """A Message until it is stored."""

    header: MessageHeader
    identity: bytes | None
    room: int
    answers: list[Answer]


@dataclass(slots=True)
class _OpenBatch:
    memory: BatchMemory
    timer: asyncio.TimerHandle
    held: list[_Held] = field(default_factory=list[_Held])
    empty: tuple[ProducerRequest, ...] = ()
    """Requests of which its notification tells that they had no records."""

    def sealed(self) -> list[SealedMessage]:
        """Its Messages, of which nobody has looked for the times of their records."""
        stored = self.memory.stored()
        return [
            SealedMessage(message, held.header.request, held.header.record_count, None, None)
            for message, held in zip(stored, self.held, strict=True)
        ]


class TopicProcessor:
    """Gathers, seals, has it written, answers. All on the loop but for the writing itself."""

    def __init__(
        self,
        topic: str,
        writer: Writer,
        limits: BatchLimits,
        *,
        loop: asyncio.AbstractEventLoop,
        uploads: Executor,
        give_back: Callable[[int], None],
        pool: SlabPool,
        counts: BrokerCounts,
        partitions: int | None = None,
    ) -> None:
        """``pool``: memory for batches. ``partitions``: a producer's Messages go to one of so many read partitions;
        None: to any."""
        self.topic = topic
        self.limits = limits
        self._writer = writer
        self._loop = loop
        self._uploads = uploads
        self._give_back = give_back
        self._pool = pool
        self._usual_size = _LEAST_MEMORY
        self._counts = counts
        self._partitions = partitions
        self._open: dict[int | None, _OpenBatch] = {}
        self._held: dict[bytes, _Held] = {}
        self._seen = SeenMessages()
        self._empty: dict[ProducerRequest, None] = {}  # that no notification tells of yet, in their order
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def take(self, data: Buffer, header: MessageHeader, room: int, answer: Answer) -> None:
        """Hold a copy of a whole, checked Message until it is stored; ``answer`` is told. One that was sent before is
        not stored again, but answered as the first one is, or was."""
        identity = bytes(data[: header.size]) if header.request is not None else None
        if identity is not None and (identity in self._seen or identity in self._held):
            self._counts.repeated += 1
            self._give_back(room)
            first = self._held.get(identity)
            if first is None:
                answer(None)
            else:
                first.answers.append(answer)
            return
        held = _Held(header, identity, room, [answer])
        if identity is not None:
            self._held[identity] = held
        self._add(held, data, self._lane(header))

    def note_empty(self, header: MessageHeader) -> None:
        """A Message without records was answered, and is not stored: the next notification tells of its number, which
        would look like a loss."""
        if header.request is not None and len(self._empty) < _MOST_EMPTY:
            self._empty[header.request] = None

    def seal_all(self) -> None:
        """Have everything written now, full or not."""
        for lane in list(self._open):
            self._seal(lane)

    async def drained(self) -> None:
        """Returns when all is stored, or has failed, and was answered."""
        self.seal_all()
        await self._is_idle.wait()

    def close(self) -> None:
        """Begin no more writes."""
        self._writer.close()

    def _lane(self, header: MessageHeader) -> int | None:
        if self._partitions is None or header.request is None:
            return None
        address, epoch, _ = header.request
        return crc32(address + epoch.to_bytes(8, "big", signed=True)) % self._partitions

    def _add(self, held: _Held, data: Buffer, lane: int | None) -> None:
        batch = self._open.get(lane)
        if batch is not None and batch.memory.left < len(data):
            self._seal(lane)
            batch = None
        if batch is None:
            batch = self._open[lane] = self._new_batch(lane, len(data))
        batch.memory.add(data)
        batch.held.append(held)
        if len(batch.held) >= self.limits.messages:
            self._seal(lane)

    def _new_batch(self, lane: int | None, least: int) -> _OpenBatch:
        # As large as the last one was: a broker has many topics open at once, and most of them have little.
        memory = BatchMemory(
            self._pool, self.limits.size, self.limits.messages, least=least, first=max(self._usual_size, least)
        )
        self._under_way += 1
        self._is_idle.clear()
        return _OpenBatch(memory, self._loop.call_later(self.limits.seconds, self._seal, lane))

    def _seal(self, lane: int | None) -> None:
        batch = self._open.pop(lane)
        batch.timer.cancel()
        batch.empty, self._empty = tuple(self._empty), {}
        self._usual_size = max(_LEAST_MEMORY, batch.memory.used)
        self._uploads.submit(self._write, batch, lane, Deadline.after(self.limits.delivery_s))

    def _write(self, batch: _OpenBatch, lane: int | None, deadline: Deadline) -> None:
        """On a thread of uploads."""
        failure: TieredStoreError | None = None
        try:
            self._writer.write(batch.sealed(), deadline, lane, batch.memory, batch.empty)
        except TieredStoreError as error:
            failure = error
        except BaseException as error:
            _logger.exception("a batch of topic %s was not written", self.topic)
            failure = DeliveryFailed(f"an error of the broker's own: {type(error).__name__}")
        self._loop.call_soon_threadsafe(self._settle, batch, failure)

    def _settle(self, batch: _OpenBatch, failure: TieredStoreError | None) -> None:
        if failure is not None:
            self._counts.failed_messages += len(batch.held)
            self._empty = dict.fromkeys((*batch.empty, *self._empty))
            _logger.warning("%d Messages of topic %s are not stored: %s", len(batch.held), self.topic, failure)
        else:
            self._counts.batches += 1
            self._counts.stored_messages += len(batch.held)
            self._counts.stored_bytes += batch.memory.used
        self._give_back(sum(held.room for held in batch.held))
        for held in batch.held:
            if held.identity is not None:
                del self._held[held.identity]
                if failure is None:
                    self._seen.add(held.identity)
            for answer in held.answers:
                answer(failure)
        self._under_way -= 1
        if not self._under_way:
            self._is_idle.set()
