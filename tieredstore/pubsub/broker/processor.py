"""A broker's topics: check, hold, write and acknowledge Messages.

The first write to a topic creates the topic's processor; further writes wait until the processor exists.

This module is separate from ``broker``: this module handles batches, and ``broker`` handles connections and requests.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import zstandard

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.batches import Buffer
from tieredstore.process.deadline import Deadline, boot_clock_s
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.broker.connection import Room
from tieredstore.pubsub.counts import BrokerCounts
from tieredstore.pubsub.errors import DeliveryFailedError, MessageCorruptError
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import (
    Compression,
    MessageHeader,
    MessagePlace,
    ProducerRequest,
    check_crc,
    parse_message_header,
    split_checksum,
)
from tieredstore.pubsub.format.packets import WriteRequest
from tieredstore.pubsub.governor.directory import Assignment, Directory, KnownTopic, own_error
from tieredstore.pubsub.produce.batch_writer import BatchMemory, BatchWriter, SealedMessage
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.pubsub.settings import BatchBrokerSettings

_logger: Final = logging.getLogger(__name__)

_LEAST_MEMORY: Final = 64 << 10
_MOST_EMPTY: Final = 5_000
"""Maximum number of requests without records to remember until the next notification lists them. ``pubsub verify``
reports further requests as lost or empty.
"""

Answer = Callable[[TieredStoreError | None], None]
"""Callback that reports a Message's outcome to its sender; called once, on the broker's event loop."""


@dataclass(slots=True)
class _Held:
    """A Message that is not stored yet."""

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
    """Requests without records. The batch's notification will list them."""

    def seal(self) -> list[SealedMessage]:
        """Return the batch's Messages. The timestamps of records are left out, because the broker does not know
        them."""
        stored = self.memory.list_messages()
        return [
            SealedMessage(message, held.header.request, held.header.record_count, None, None)
            for message, held in zip(stored, self.held, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Intake:
    """Resources that the processors of one broker share: memory for Messages, counts, and threads that write batches.

    ``by_producer``: True if each producer's Messages all go to one read partition. ``make_room`` writes open batches if
    requests wait for their memory.
    """

    room: Room
    counts: BrokerCounts
    uploads: Executor
    by_producer: bool
    make_room: Callable[[], None]


class TopicProcessor:
    """Collects Messages of one topic in batches, writes the batches on threads, and answers the clients.

    A checked Message is in one of these states:

    ========  ==========================================  ===========================================================
    state     is in                                       next
    ========  ==========================================  ===========================================================
    repeated  the ``answers`` of the first copy, if that  answered with the first copy, or at once if that copy is
              copy is held                                stored. The repetition's memory is given back
    held      ``_held``, and an open batch                sealed: the batch is full or ``batch.ms`` old, requests wait
                                                          for memory, or the broker drains
    sealed    ``_held``, and a batch that is written      stored, or failed
    stored    ``_stored``, for ten minutes                forgotten
    failed    nothing; a repetition is stored             –
    ========  ==========================================  ===========================================================

    A Message holds memory until it is stored or has failed. Then its client gets one answer. The processor has one open
    batch or, if ``by_producer`` is set, one open batch for each read partition.
    """

    def __init__(self, writer: BatchWriter, intake: Intake) -> None:
        """Create the processor of a topic on the running event loop."""
        log = writer.log
        self.most_bytes: int = log.settings.batch_bytes - index_size(1)  # size of the largest Message
        self._topic = log.topic
        self._writer = writer
        self._intake = intake
        self._settings = log.settings
        self._pool = log.topics.memory
        self._loop = asyncio.get_running_loop()
        self._usual_size = _LEAST_MEMORY
        self._open: dict[int | None, _OpenBatch] = {}  # by read partition, or None for all
        self._held: dict[bytes, _Held] = {}
        self._stored = StoredHeaders(monotonic=self._loop.time)
        # Requests without records, in order, that no notification lists yet.
        self._empty: dict[ProducerRequest, None] = {}
        self._under_way = 0  # number of batches that are being written
        self.is_idle: asyncio.Event = asyncio.Event()
        self.is_idle.set()

    def take(self, data: Buffer, header: MessageHeader, room: int, answer: Answer) -> None:
        """Hold a copy of a checked Message until it is stored, then call ``answer``.

        A repeated Message is not stored again. Its client gets the same answer as the first copy's client."""
        identity = bytes(data[: header.size]) if header.request is not None else None
        if identity is not None and (identity in self._stored or identity in self._held):
            self._intake.counts.repeated += 1
            self._intake.room.give_back(room)
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
        self._intake.make_room()

    def note_empty(self, header: MessageHeader) -> None:
        """Remember an acknowledged Message without records, which is not stored.

        The next notification lists the Message's request id, because otherwise the missing id would look like a lost
        Message.
        """
        if header.request is not None and len(self._empty) < _MOST_EMPTY:
            self._empty[header.request] = None

    def end_batches(self) -> None:
        """Write all held Messages now, even if their batches are not full."""
        for lane in list(self._open):
            self._seal(lane)

    async def drain(self) -> None:
        """Write all held Messages, and wait until every Message is stored or has failed, and its client has an
        answer."""
        while self._open or not self.is_idle.is_set():
            self.end_batches()
            await self.is_idle.wait()

    def close(self) -> None:
        """Begin no more writes, and drop the open batches."""
        while self._open:
            self._open.popitem()[1].timer.cancel()
        self._writer.close()

    def _lane(self, header: MessageHeader) -> int | None:
        if not self._intake.by_producer or header.request is None:
            return None
        address, epoch, _ = header.request
        return crc32(address + epoch.to_bytes(8, "big", signed=True)) % self._topic.partitions

    def _add(self, held: _Held, data: Buffer, lane: int | None) -> None:
        batch = self._open.get(lane)
        if batch is not None and batch.memory.left < len(data):
            self._seal(lane)
            batch = None
        if batch is None:
            batch = self._open[lane] = self._new_batch(lane, len(data))
        batch.memory.add(data)
        batch.held.append(held)
        if len(batch.held) >= self._settings.batch_messages:
            self._seal(lane)

    def _new_batch(self, lane: int | None, least: int) -> _OpenBatch:
        # Most topics of a broker get little data, so begin with a buffer of the last batch's size, not of
        # ``batch_bytes``.
        memory = BatchMemory(
            self._pool,
            self._settings.batch_bytes,
            self._settings.batch_messages,
            least=least,
            first=max(self._usual_size, least),
        )
        return _OpenBatch(memory, self._loop.call_later(self._settings.batch_ms / 1000, self._seal, lane))

    def _seal(self, lane: int | None) -> None:
        batch = self._open.pop(lane)
        batch.timer.cancel()
        self._under_way += 1
        self.is_idle.clear()
        batch.empty, self._empty = tuple(self._empty), {}
        self._usual_size = max(_LEAST_MEMORY, batch.memory.used)
        deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000, boot_clock_s)
        self._intake.uploads.submit(self._write, batch, lane, deadline)

    def _write(self, batch: _OpenBatch, lane: int | None, deadline: Deadline) -> None:
        """Write a batch, on an upload thread."""
        failure: TieredStoreError | None = None
        try:
            self._writer.write(batch.seal(), deadline, lane, batch.memory, batch.empty)
        except TieredStoreError as error:
            failure = error
        except BaseException as error:
            _logger.exception("a batch of topic %s was not written", self._topic.name)
            failure = DeliveryFailedError(f"internal error of the broker: {type(error).__name__}")
        self._loop.call_soon_threadsafe(self._settle, batch, failure)

    def _settle(self, batch: _OpenBatch, failure: TieredStoreError | None) -> None:
        if failure is not None:
            self._intake.counts.failed_messages += len(batch.held)
            self._empty = dict.fromkeys((*batch.empty, *self._empty))
            _logger.warning("%d Messages of topic %s were not stored: %s", len(batch.held), self._topic.name, failure)
        else:
            self._intake.counts.batches += 1
            self._intake.counts.stored_messages += len(batch.held)
            self._intake.counts.stored_bytes += batch.memory.used
        self._intake.room.give_back(sum(held.room for held in batch.held))
        for held in batch.held:
            if held.identity is not None:
                del self._held[held.identity]
                if failure is None:
                    self._stored.add(held.identity)
            for answer in held.answers:
                answer(failure)
        self._under_way -= 1
        if not self._under_way:
            self.is_idle.set()
        self._intake.make_room()


Waiting = Callable[[TopicProcessor | None, TieredStoreError | None], None]
"""Callback that gets a topic's processor (None if this broker has none), and the error of a failed look-up (else
None)."""

_UPLOADS_A_SETTING: Final = 4


class TopicProcessors:
    """A broker's processors by topic, used only on its loop. Threads of ``lookups`` look up topics and open queues."""

    def __init__(
        self, directory: Directory, assignment: Assignment, own: BatchBrokerSettings, uploads: int, lookups: Executor
    ) -> None:
        """Begin without processors. ``uploads`` is the number of a topic's batches to write in parallel."""
        uploading = ThreadPool(_UPLOADS_A_SETTING * uploads, "tieredstore-broker-upload")
        room = Room(own.buffer_bytes, self._make_room)
        self.intake: Intake = Intake(room, BrokerCounts(), uploading, own.batch_by == "producer", self._make_room)
        self._directory = directory
        self._assignment = assignment
        self._lookups = lookups
        self._processors: dict[str, TopicProcessor] = {}
        self._preparing: dict[str, list[Waiting]] = {}

    def __len__(self) -> int:
        return len(self._processors)

    def is_ready(self, name: str) -> bool:
        """Return True if :meth:`ask` would answer at once."""
        return name in self._processors or self._has_none(name)

    def _has_none(self, name: str) -> bool:
        if self._directory.get(name) is not None:
            return not self._assignment.serves(name)
        return name not in self._preparing and self._directory.is_unknown(name)

    def ask(self, name: str, then: Waiting, begin: Callable[[Coroutine[object, object, None]], None]) -> None:
        """Call ``then`` with the topic's processor, or None if this broker does not serve the topic. Look up an unknown
        topic first.

        ``begin`` schedules a coroutine on the loop for the caller.
        """
        if self._has_none(name):
            then(None, None)
        elif (processor := self._processors.get(name)) is not None:
            then(processor, None)
        elif name in self._preparing:
            self._preparing[name].append(then)
        else:
            self._preparing[name] = [then]
            begin(self._prepare(name))

    async def drain(self) -> None:
        """Store all held Messages (see :meth:`TopicProcessor.drain`)."""
        await asyncio.gather(*(processor.drain() for processor in self._processors.values()))

    def close(self) -> None:
        """Begin no more writes."""
        for processor in self._processors.values():
            processor.close()
        self.intake.uploads.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        """End all batches if requests wait for memory that no running write will free."""
        processors = self._processors.values()
        if self.intake.room.waiting and all(each.is_idle.is_set() for each in processors):
            for each in processors:
                each.end_batches()

    async def _prepare(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        processor, failure = None, None
        try:
            known = self._directory.get(name) or await loop.run_in_executor(self._lookups, self._directory.look, name)
            if known is not None and self._assignment.serves(name):
                # Open the topic's queue on a thread, because opening may send requests.
                writer = await loop.run_in_executor(self._lookups, _open_writer, known)
                processor = self._processors[name] = TopicProcessor(writer, self.intake)
        except TieredStoreError as error:
            failure = error
        except Exception as error:
            _logger.exception("cannot serve topic %r", name)
            failure = own_error(error)
        for then in self._preparing.pop(name):
            then(processor, failure)


def _open_writer(known: KnownTopic) -> BatchWriter:
    if known.stored is None:
        raise ConfigError(f"this broker cannot store topic {known.name}: see its log")
    return BatchWriter(BatchLog(*known.stored))


WINDOW_S: Final = 600.0
MOST: Final = 200_000


class StoredHeaders:
    """Headers of recently stored Messages: at most 200,000, for ten minutes.

    A header has the producer, the request id and a checksum of the body, so Messages with equal headers are the same.
    Headers without a producer are never remembered as stored. Used only on the broker's loop.
    """

    def __init__(
        self, *, window_s: float = WINDOW_S, most: int = MOST, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._most = most
        self._monotonic = monotonic
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_s)

    def __contains__(self, header: bytes) -> bool:
        until_s = self._until_s.get(header)
        return until_s is not None and self._monotonic() < until_s

    def add(self, header: bytes) -> None:
        """Remember the header of a stored Message."""
        now_s = self._monotonic()
        self._until_s[header] = now_s + self._window_s
        self._until_s.move_to_end(header)
        while self._until_s:
            oldest = next(iter(self._until_s))
            if len(self._until_s) <= self._most and self._until_s[oldest] > now_s:
                return
            del self._until_s[oldest]


_PLACE: Final = MessagePlace("a request", 0, 0)
_GZIP: Final = 16 + zlib.MAX_WBITS


def check_message(write: WriteRequest, most: int) -> MessageHeader:
    """Return the header of a request's Message. Raise MessageCorruptError if the Message is damaged or larger than
    ``most``."""
    if len(write.data) > most:
        raise MessageCorruptError(
            f"a Message of {len(write.data)} bytes does not fit a batch, which holds at most {most} bytes"
        )
    computed, body_crc = split_checksum(write.data)
    if computed != write.crc:
        raise MessageCorruptError(f"the data has CRC-32 {computed:08x}, but the request says {write.crc:08x}")
    header = parse_message_header(write.data, _PLACE)
    body = memoryview(write.data)[header.size :]
    check_crc(header, body, _PLACE, body_crc)
    if not header.record_count and _holds_something(header.compression, body):
        raise MessageCorruptError("a Message with a record count of 0 has records")
    return header


def _holds_something(compression: Compression, body: memoryview) -> bool:
    """Return True if the body decompresses to at least one byte. Decompress no more than this byte."""
    if compression is Compression.NONE or not body:
        return bool(body)
    try:
        if compression is Compression.GZIP:
            return bool(zlib.decompressobj(_GZIP).decompress(body, 1))
        return bool(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read(1))
    except (zlib.error, zstandard.ZstdError):
        return True
