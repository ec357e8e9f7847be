"""One read partition as a consumer goes along it: notifications ahead, objects under way, records in order."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tieredstore.backends.base import Buffer
from tieredstore.errors import DataLoss, MessageCorrupt, ObjectNotFound, RangeNotSatisfiable, TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.rows_at_hand import ConsumedRecord, RowsAtHand, with_places
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.format.batches import BatchIndex, split_checksums
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.notifications import Notification, parse_notification
from tieredstore.pubsub.queue.auditor import ReadMessages
from tieredstore.pubsub.queue.queues import NotificationQueue, Position, QueuedNotification
from tieredstore.pubsub.queue.topics import Topic, Topics

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.pubsub.queue.kafka_audit import Auditor

BUSY_LOOK_S: Final = 0.2
"""A queue that had something lately is looked at so often …"""

IDLE_LOOK_S: Final = 2.0
"""… and one that had nothing for ``IDLE_AFTER_S`` so often."""

IDLE_AFTER_S: Final = 10.0


class FetchRoom:
    """How many objects, and bytes of them, all partitions of a consumer may have ahead."""

    def __init__(self, objects: int, most_bytes: int) -> None:
        self._objects = objects
        self._bytes = most_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be fetched now."""
        return self._objects <= 0 or self._bytes <= 0

    def take(self, size: int) -> None:
        """An object of so many bytes is ahead; one that is larger than all room may be the only one."""
        self._objects, self._bytes = self._objects - 1, self._bytes - size

    def give_back(self, size: int) -> None:
        """It is ahead no more."""
        self._objects, self._bytes = self._objects + 1, self._bytes + size


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the queue had next, and whether there is nothing behind it yet."""

    entries: list[QueuedNotification]
    is_end: bool
    asked: int = 1
    """Questions to the queue."""


@dataclass(slots=True)
class _Ahead:
    """A notification that was read, and its object on the way."""

    queued: QueuedNotification
    key: str
    notification: Notification
    object: Future[tuple[Buffer, int, Sequence[int] | None]]
    """With its checksum, and those of its Messages' bodies where they were read for it."""

    @property
    def offset(self) -> int:
        return self.queued.offset


@dataclass(slots=True)
class PartitionReader:
    """Reads one partition from ``position`` on, as long as the consumer has it: a reader is of one ``term`` of
    ownership, and never used for another one. For one thread.

    ``position`` is behind what was handed out. Nothing moves it but rows that are taken, a batch that is exhausted, and
    a loss that is passed over.
    """

    topics: Topics
    topic: Topic
    queue: NotificationQueue
    pool: ThreadPool
    room: FetchRoom
    partition: int
    position: Position
    decoder: Callable[[], BatchDecoder]
    at_once: int
    """Objects are fetched at once."""
    seen: SeenMessages | None = None
    monotonic: Callable[[], float] = time.monotonic
    auditor: Auditor | None = None
    is_skipping: bool = False
    """Damaged Messages are left out, and the others of their object are read."""
    term: int = 0
    next_look_s: float = 0.0
    at_hand: RowsAtHand | None = None
    """Decoded rows that were not taken yet."""
    _next_offset: int = 0
    _last_seen_s: float = 0.0
    _waiting: deque[QueuedNotification] = field(default_factory=deque[QueuedNotification])
    _ahead: deque[_Ahead] = field(default_factory=deque[_Ahead])
    _looking: Future[_Looked] | None = None
    _stride: int = 1
    """Entries that the next look asks for."""
    _records: Iterator[pa.RecordBatch] | None = None
    skipped: list[str] = field(default_factory=list[str])
    """Damaged Messages that were left out, a sentence each."""
    doubles: int = 0
    """Messages that were left out since they came before."""
    looks: int = 0
    """Questions to the queue."""
    fetched: int = 0
    """Objects that came, with so many bytes:"""
    fetched_bytes: int = 0
    _repeated: frozenset[int] = frozenset()
    _audited: ReadMessages | None = None

    def __post_init__(self) -> None:
        self._next_offset = self.position.offset
        self._last_seen_s = self.monotonic()

    def look(self) -> None:
        """Read on in the queue, if it is time to, and fetch what fits the room."""
        self._fetch()
        now_s = self.monotonic()
        if len(self._waiting) >= self.at_once or now_s < self.next_look_s:
            return
        looked = self._read_on()
        if looked is None:
            return
        if looked.entries:
            self._waiting.extend(looked.entries)
            self._next_offset = looked.entries[-1].offset + 1
            self._last_seen_s, self.next_look_s = now_s, 0.0
            self._stride = min(2 * self._stride, self.at_once)
            self._fetch()
        if looked.is_end:
            self._stride = 1
            is_idle = now_s - self._last_seen_s > IDLE_AFTER_S
            self.next_look_s = now_s + (IDLE_LOOK_S if is_idle else BUSY_LOOK_S)

    def _read_on(self) -> _Looked | None:
        """What the queue has next. None while a question is under way and there are objects to go on with: in a
        backlog nothing waits for the queue then, and what went wrong with it is told behind them."""
        if self._looking is None:
            if not self._ahead and not self._waiting:
                self.looks += 1
                entries = self.queue.read(self.partition, self._next_offset)
                return _Looked(entries, is_end=not entries)
            self._looking = self.pool.submit(self._read_several, self._next_offset, self._stride)
            return None
        if (self._ahead or self._waiting) and not (self._looking.done() and self._looking.exception() is None):
            return None
        looking, self._looking = self._looking, None
        looked = outcome(looking)
        self.looks += looked.asked
        return looked

    def _read_several(self, offset: int, count: int) -> _Looked:
        """On a thread of fetches: some entries, more and more in a backlog, lest each object wait for the next look at
        the queue. What fails behind some of them fails again when it is next asked for."""
        entries: list[QueuedNotification] = []
        asked, is_end = 0, False
        while len(entries) < count and not is_end:
            asked += 1
            try:
                more = self.queue.read(self.partition, offset)
            except TieredStoreError:
                if not entries:
                    raise
                break
            entries += more
            offset, is_end = entries[-1].offset + 1 if entries else offset, not more
        return _Looked(entries, is_end, asked)

    def _fetch(self) -> None:
        while self._waiting and not self.room.is_full:
            queued = self._waiting[0]
            where = f"queue {self.topic.name}/{self.partition}, offset {queued.offset}"
            notification = parse_notification(queued.raw, where)
            key = self.topics.check_place(notification, self.topic, where)
            self._waiting.popleft()
            self.room.take(notification.total_size)
            self._ahead.append(_Ahead(queued, key, notification, self.pool.submit(self._object, key, notification)))

    def _object(self, key: str, notification: Notification) -> tuple[Buffer, int, Sequence[int] | None]:
        """On a thread of fetches, which are several: the checksums too."""
        body = self._into_room(key, notification.total_size)
        return body, *split_checksums(body, key)

    def _into_room(self, key: str, size: int) -> Buffer:
        """An object of a size that is known, into memory that others were in: what is fresh from the system costs as
        much again as what comes over the wire."""
        body = memoryview(self.topics.memory.slab(size))[:size]
        try:
            self.topics.store.get_whole(key, body)
        except RangeNotSatisfiable:  # it is longer or shorter, which is seen by its checksum or its index
            return self.topics.store.get(key)
        return body

    @property
    def under_way(self) -> list[Future[Any]]:
        """What must come before there can be more records: the next object, and an answer of the queue."""
        head = self._ahead[0].object if self._ahead else None
        return [future for future in (head, self._looking) if future is not None and not future.done()]

    @property
    def has_ahead(self) -> bool:
        """Whether records may come without another look at the queue."""
        return bool(self._records is not None or self._ahead or self._waiting)

    def fill(self) -> bool:
        """Have rows at hand, if any are there by now. DataLoss for an absent object.

        After an error the reader stands where it did: :meth:`pass_over` leaves out what it was about.
        """
        while self.at_hand is None:
            if self._records is not None:
                rows = self._next_of_object(self._records)
                if rows is not None:
                    self.at_hand = RowsAtHand(with_places(rows, self.partition, self.position.offset))
                    break
                self._end_object()
            if not self._ahead:
                self._fetch()
            if not self._ahead or not is_done(self._ahead[0].object, 0.0):
                return False
            self._begin_object(self._ahead[0])
        return True

    def take(self) -> ConsumedRecord:
        """Hand out one record of those at hand."""
        rows = self._rows()
        record = rows.take()
        self._move(rows, record.message, record.record)
        return record

    def take_rest(self) -> pa.RecordBatch:
        """Hand out all that is left at hand."""
        rows = self._rows()
        rest: Any = rows.rest()
        self._move(rows, rest.column("message")[-1].as_py(), rest.column("record")[-1].as_py())
        given: pa.RecordBatch = rest
        return given

    def _rows(self) -> RowsAtHand:
        if self.at_hand is None:
            raise ValueError("no rows are at hand: fill() says whether there are")
        return self.at_hand

    def _move(self, rows: RowsAtHand, message: int, record: int) -> None:
        self.position = Position(self.position.offset, message, record + 1)
        if not rows.are_left:
            self.at_hand = None
        if self._audited is not None:
            self._audited.handed_out(message, record)

    def _next_of_object(self, records: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        try:
            return next(records, None)
        except BaseException:
            # The object stays at hand: who asks again meets the damage again, behind what was handed out.
            self._records = None
            raise

    def pass_over(self) -> None:
        """Go on behind what failed: the object at hand, or the notification that is none."""
        if self._ahead:
            self._end_object()
        elif self._waiting:
            self._next_offset = max(self._next_offset, self._waiting.popleft().offset + 1)
            self.position = Position(self._waiting[0].offset if self._waiting else self._next_offset)
        else:
            self._looking = None
            start = self.queue.start(self.partition)
            self.position = Position(start)
            self._next_offset = start

    def close(self) -> None:
        """Give the room back."""
        while self._ahead:
            self.room.give_back(self._ahead.popleft().notification.total_size)
        self._records = self.at_hand = None

    def _begin_object(self, ahead: _Ahead) -> None:
        try:
            body, crc, checksums = outcome(ahead.object, 0)
        except ObjectNotFound as error:
            raise DataLoss(
                f"queue {self.topic.name}/{self.partition}, offset {ahead.offset}: the object {ahead.key} is not there"
            ) from error
        self.fetched, self.fetched_bytes = self.fetched + 1, self.fetched_bytes + len(body)
        facts = ahead.notification.facts
        is_another = facts is not None and crc != facts.crc32
        why = f"{ahead.key}: the object is not the one that was written: it has another CRC-32"
        if is_another and not self.is_skipping:
            raise MessageCorrupt(why)
        if self.position.offset != ahead.offset:
            self.position = Position(ahead.offset)
        if self.seen is not None:
            self._repeated = self.seen.doubles(ahead.queued, ahead.notification, ahead.key, body)
        auditor = self.auditor
        self._audited = None if auditor is None else ReadMessages(auditor, body, ahead.key, self.position)
        noting = None if self._audited is None else self._audited.noting
        left_out: list[str] = [] if is_another else self.skipped
        records = _records_from(
            self.decoder(), (body, checksums), ahead, self.position, self._repeated, left_out, noting
        )
        self._records = _with_damage(records, left_out, self.skipped, why) if is_another else records

    def _end_object(self) -> None:
        ended = self._ahead.popleft()
        self.room.give_back(ended.notification.total_size)
        self._records = None
        self.doubles += len(self._repeated)
        self._repeated = frozenset()
        self.position = Position(ended.offset + 1)


def _records_from(
    decoder: BatchDecoder,
    read: tuple[Buffer, Sequence[int] | None],
    ahead: _Ahead,
    position: Position,
    repeated: frozenset[int],
    skipped: list[str],
    noting: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None,
) -> Iterator[pa.RecordBatch]:
    """The records of an object from a position on, but those of ``repeated`` Messages; ``skipped`` gets what was
    damaged and left out, and ``noting`` sees all that is decoded."""
    body, checksums = read
    noting = noting or iter
    index = BatchIndex(body, ahead.key, len(body))
    if len(index) != ahead.notification.message_count:
        raise MessageCorrupt(f"{ahead.key}: its notification has {ahead.notification.message_count} Messages")
    if not position.message and not position.record and not repeated:
        yield from noting(decoder.decode(body, ahead.key, checksums))
        skipped.extend(left_out.why for left_out in decoder.skipped)
        return
    view = memoryview(body)
    for number in range(min(position.message, len(index)), len(index)):
        if number in repeated:
            continue
        start, stop = index.extent(number)
        left_out = position.record if number == position.message else 0
        for rows in noting(decoder.decode_message(view[start:stop], index.place(number))):
            untyped: Any = rows
            given = max(0, min(left_out, untyped.num_rows))
            left_out -= given
            if given < untyped.num_rows:
                yield untyped.slice(given)
        skipped.extend(message.why for message in decoder.skipped)


def _with_damage(
    records: Iterator[pa.RecordBatch], left_out: list[str], skipped: list[str], why: str
) -> Iterator[pa.RecordBatch]:
    """The records of an object that is damaged somewhere; ``why`` is told where no Message was left out for it."""
    yield from records
    skipped.extend(left_out or [why])


def rotated(readers: list[PartitionReader], turn: int) -> Iterator[PartitionReader]:
    """All readers, each time another first: no partition waits for a busy one."""
    return itertools.islice(itertools.cycle(readers), turn % len(readers), turn % len(readers) + len(readers))
