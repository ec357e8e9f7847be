"""One read partition as a consumer goes along it: notifications told, objects under way, records in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tieredstore.backends.base import Buffer
from tieredstore.errors import ObjectNotFoundError, RangeNotSatisfiableError
from tieredstore.kafka.arrow_values import repeat_value
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.counts import ConsumerCounts
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, split_checksums
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.queue.auditor import ReadMessages
from tieredstore.pubsub.queue.queues import Position, QueuedNotification
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch

if TYPE_CHECKING:
    from tieredstore.pubsub.queue.kafka_audit import Auditor

BUSY_LOOK_S: Final = 0.2
"""A queue that had something lately is looked at so often …"""

IDLE_LOOK_S: Final = 2.0
"""… and one that had nothing for ``IDLE_AFTER_S`` so often."""

IDLE_AFTER_S: Final = 10.0
_LOOKS_AHEAD: Final = 2


class FetchedObject(NamedTuple):
    """An object, its checksum, and those of its Messages' bodies where they were read for it."""

    body: Buffer
    crc32: int
    checksums: Sequence[int] | None


class Fetches:
    """The objects that all partitions of a consumer have ahead, and the threads that fetch them: ``objects`` of them,
    of ``most_bytes`` in all; one that is larger than that may be the only one."""

    def __init__(self, log: BatchLog, objects: int, most_bytes: int) -> None:
        self.log = log
        self.at_once = objects
        self._objects, self._bytes = objects, most_bytes  # that are left
        # Objects take no more threads than there is room for; the others look for what comes behind them.
        self.pool: ThreadPool = ThreadPool(objects + _LOOKS_AHEAD, "tieredstore-pubsub-fetch")

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be fetched now."""
        return self._objects <= 0 or self._bytes <= 0

    def begin(self, batch: QueuedBatch) -> Future[FetchedObject]:
        """Take room for an object, and fetch it."""
        self._objects, self._bytes = self._objects - 1, self._bytes - batch.size
        return self.pool.submit(self._fetch, batch)

    def give_back(self, batch: QueuedBatch) -> None:
        """The object is ahead no more."""
        self._objects, self._bytes = self._objects + 1, self._bytes + batch.size

    def close(self) -> None:
        """Fetch nothing more."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, batch: QueuedBatch) -> FetchedObject:
        """On several threads, which read the checksums too. Memory that other objects were in is used again: what is
        fresh from the system costs as much again as what comes over the wire."""
        topics = self.log.topics
        body: Buffer
        body = room = memoryview(topics.memory.slab(batch.size))[: batch.size]
        try:
            topics.store.get_whole(batch.key, room)
        except RangeNotSatisfiableError:  # it is longer or shorter, which is seen by its checksum or its index
            body = topics.store.get(batch.key)
        return FetchedObject(body, *split_checksums(body, batch.key))


@dataclass(frozen=True, slots=True)
class SharedReading:
    """What the partitions of one consumer share, and where they note what they find."""

    log: BatchLog
    fetches: Fetches
    decoder: Callable[[], BatchDecoder]
    auditor: Auditor | None
    is_skipping: bool
    """Damaged Messages are left out, and the others of their object are read."""
    dedup_window_ms: int | None
    """Repeated Messages are left out within so long."""
    monotonic: Callable[[], float] = time.monotonic
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)
    skipped: list[str] = field(default_factory=list[str])
    """Damaged Messages that were left out, a sentence each."""

    def skip(self, whys: Sequence[str]) -> None:
        """Note damaged Messages."""
        self.skipped.extend(whys)
        self.counts.damaged_messages += len(whys)


class Lookout:
    """Goes along one partition of the queue, and knows when it is time to look again.

    The caller waits for the queue only when there is nothing else to go on with. In a backlog a thread of fetches asks,
    for more and more entries at a time, and what went wrong is told when all before it is read.
    """

    def __init__(self, shared: SharedReading, partition: int, offset: int) -> None:
        self._shared = shared
        self._partition = partition
        self._found_s = shared.monotonic()
        self.restart(offset)

    def restart(self, offset: int) -> None:
        """Look from there on."""
        self._cursor = self._shared.log.queue.cursor(self._partition, offset)
        self._stride = 1
        self.next_look_s: float = 0.0
        self.looking: Future[Looked] | None = None

    def look(self, *, has_backlog: bool) -> list[QueuedNotification]:
        """What the queue has next, if it is time to ask and the answer is there."""
        now_s = self._shared.monotonic()
        if now_s < self.next_look_s:
            return []
        looking = self.looking
        if looking is None and has_backlog:
            self.looking = self._shared.fetches.pool.submit(self._read, self._stride)
            return []
        if looking is not None and has_backlog and not (looking.done() and looking.exception() is None):
            return []
        self.looking = None
        looked = self._read(1) if looking is None else outcome(looking)
        self._shared.counts.looks += looked.asked
        if looked.entries:
            self._found_s, self.next_look_s = now_s, 0.0
            self._stride = min(2 * self._stride, self._shared.fetches.at_once)
        if looked.is_end:
            self._stride = 1
            is_idle = now_s - self._found_s > IDLE_AFTER_S
            self.next_look_s = now_s + (IDLE_LOOK_S if is_idle else BUSY_LOOK_S)
        return looked.entries

    def _read(self, count: int) -> Looked:
        """So many entries or more. What fails behind some of them fails again when it is next asked for."""
        entries: list[QueuedNotification] = []
        asked, is_end = 0, False
        while len(entries) < count and not is_end:
            asked += 1
            try:
                more = self._cursor.read()
            except BaseException:
                if not entries:
                    raise
                break
            entries += more
            is_end = not more
        return Looked(entries, is_end, asked)


class Looked(NamedTuple):
    """What the queue had next, whether there is nothing behind it yet, and how often it was asked."""

    entries: list[QueuedNotification]
    is_end: bool
    asked: int


@dataclass(frozen=True, slots=True)
class Fetching:
    """A batch that has room, and its object on the way."""

    batch: QueuedBatch
    object: Future[FetchedObject]


class OpenBatch:
    """A fetched object from ``position`` on: rows at hand, and those to be decoded. After damage it is ``fetching``
    again, and opened anew from behind what was handed out."""

    def __init__(self, shared: SharedReading, fetching: Fetching, fetched: FetchedObject, position: Position) -> None:
        """MessageCorruptError for an object that is not the one that was written, unless damage is skipped."""
        self.at_hand: RowsAtHand | None = None
        self.repeated: frozenset[int] = frozenset()
        self.fetching = fetching
        self.batch: QueuedBatch = fetching.batch
        self._shared = shared
        self._damage: str | None = None
        try:
            self.batch.check(fetched.crc32)
        except MessageCorruptError as error:
            if not shared.is_skipping:
                raise
            self._damage = str(error)
        auditor = shared.auditor
        self.audited: ReadMessages | None = (
            None if auditor is None else ReadMessages(auditor, fetched.body, self.batch.key, position)
        )
        self._decoded = self._decode(fetched, position)

    def fill(self) -> bool:
        """Have rows at hand, if there are any."""
        if self.at_hand is None and (rows := next(self._decoded, None)) is not None:
            self.at_hand = RowsAtHand(with_places(rows, self.batch.partition, self.batch.offset))
        return self.at_hand is not None

    def _decode(self, fetched: FetchedObject, position: Position) -> Iterator[pa.RecordBatch]:
        """The records from ``position`` on, but those of repeated Messages."""
        body, _, checksums = fetched
        decoder, left_out = self._shared.decoder(), list[str]()
        noting = iter if self.audited is None else self.audited.note_ids

        def note_skipped() -> None:
            left_out.extend(decoder.skipped)
            if self._damage is None:
                self._shared.skip(decoder.skipped)

        index = BatchIndex(body, self.batch.key, len(body))
        self.batch.check_count(len(index))
        if not position.message and not position.record and not self.repeated:
            yield from noting(decoder.decode(body, self.batch.key, checksums))
            note_skipped()
        else:
            for number in range(min(position.message, len(index)), len(index)):
                if number in self.repeated:
                    continue
                start, stop = index.byte_range(number)
                given = position.record if number == position.message else 0
                for rows in noting(decoder.decode_message(memoryview(body)[start:stop], index.place(number))):
                    passed = max(0, min(given, rows.num_rows))
                    given -= passed
                    if passed < rows.num_rows:
                        yield rows.slice(passed)
                note_skipped()
        if self._damage is not None:
            # The object is damaged somewhere: said in general where no Message was left out for it.
            self._shared.skip(left_out or [self._damage])


class PartitionState:
    """One partition as long as a consumer has it in one ``term`` of ownership. For one thread.

    Its batches follow each other through these states, each of which is an object with what there is of the batch:

    ==================  =======================================  =====================================================
    a batch is          in                                       goes on
    ==================  =======================================  =====================================================
    QueuedNotification  ``_told``: its notification was read     Fetching: as soon as there is room
    Fetching            ``_ahead``: it has room                  OpenBatch: it is the first, and its object is there.
                                                                 Absent or damaged: stays, and raises each time;
                                                                 :meth:`pass_over` exhausts it
    OpenBatch           ``_ahead``, as the first: its rows are   exhausted: no rows are left. Damage in it: Fetching,
                        decoded, and handed out                  with the place behind what was handed out
    exhausted           nothing: ``position`` is behind it, its  –
                        room is given back
    ==================  =======================================  =====================================================

    ``position`` is behind what was handed out. Nothing moves it but rows that are taken, a batch that is exhausted, and
    a loss that is passed over.
    """

    def __init__(self, shared: SharedReading, partition: int, position: Position, term: int = 0) -> None:
        self.partition = partition
        self.term = term
        self.position: Position = position
        self.lookout: Lookout = Lookout(shared, partition, position.offset)
        self._shared = shared
        window_ms = shared.dedup_window_ms
        self._seen = None if window_ms is None else SeenMessages(shared.log, partition, window_ms)
        self._told: deque[QueuedNotification] = deque()
        self._ahead: deque[Fetching | OpenBatch] = deque()

    def look(self) -> None:
        """Read on in the queue, if it is time to, and fetch what fits the room."""
        self._fetch()
        if len(self._told) < self._shared.fetches.at_once:
            self._told.extend(self.lookout.look(has_backlog=bool(self._ahead or self._told)))
            self._fetch()

    def _fetch(self) -> None:
        fetches = self._shared.fetches
        while self._told and not fetches.is_full:
            batch = self._shared.log.batch_of(self.partition, self._told[0])
            self._told.popleft()
            self._ahead.append(Fetching(batch, fetches.begin(batch)))

    @property
    def under_way(self) -> list[Future[FetchedObject] | Future[Looked]]:
        """What must come before there can be more records: the next object, and an answer of the queue."""
        first = self._first
        futures = (first.object if isinstance(first, Fetching) else None, self.lookout.looking)
        return [future for future in futures if future is not None and not future.done()]

    @property
    def _first(self) -> Fetching | OpenBatch | None:
        return self._ahead[0] if self._ahead else None

    @property
    def has_ahead(self) -> bool:
        """Whether records may come without another look at the queue."""
        return bool(self._ahead or self._told)

    @property
    def at_hand(self) -> RowsAtHand | None:
        """Decoded rows that were not taken yet."""
        return self._first.at_hand if isinstance(self._first, OpenBatch) else None

    def fill(self) -> bool:
        """Have rows at hand, if any are there by now. DataLossError for an absent object."""
        while True:
            match self._first:
                case None:
                    self._fetch()
                    if not self._ahead:
                        return False
                case Fetching() as fetching:
                    if not is_done(fetching.object, 0.0):
                        return False
                    self._ahead[0] = self._open(fetching)
                case OpenBatch() as opened:
                    try:
                        if opened.fill():
                            return True
                    except BaseException:
                        self._ahead[0] = opened.fetching
                        raise
                    self._exhaust()

    def _open(self, fetching: Fetching) -> OpenBatch:
        batch = fetching.batch
        try:
            fetched = outcome(fetching.object, 0)
        except ObjectNotFoundError as error:
            raise self._shared.log.loss(batch) from error
        self._shared.counts.batches += 1
        self._shared.counts.stored_bytes += len(fetched.body)
        at = self.position if self.position.offset == batch.offset else Position(batch.offset)
        opened = OpenBatch(self._shared, fetching, fetched, at)
        self.position = at
        if self._seen is not None:
            opened.repeated = self._seen.doubles(batch, fetched.body)
        return opened

    def take(self) -> ConsumedRecord:
        """Hand out one record of those at hand."""
        opened, rows = self._rows()
        record = rows.take()
        self._move(opened, rows, record.message, record.record)
        return record

    def take_rest(self) -> pa.RecordBatch:
        """Hand out all that is left at hand."""
        opened, rows = self._rows()
        rest = rows.rest()
        self._move(opened, rows, rest.column("message")[-1].as_py(), rest.column("record")[-1].as_py())
        return rest

    def _rows(self) -> tuple[OpenBatch, RowsAtHand]:
        opened = self._first
        if not isinstance(opened, OpenBatch) or opened.at_hand is None:
            raise ValueError("no rows are at hand: fill() says whether there are")
        return opened, opened.at_hand

    def _move(self, opened: OpenBatch, rows: RowsAtHand, message: int, record: int) -> None:
        self.position = Position(self.position.offset, message, record + 1)
        if not rows.are_left:
            opened.at_hand = None
        if opened.audited is not None:
            opened.audited.note_handed_out(message, record)

    def _exhaust(self) -> None:
        first = self._ahead.popleft()
        self._shared.fetches.give_back(first.batch)
        if isinstance(first, OpenBatch):
            self._shared.counts.repeated_messages += len(first.repeated)
        self.position = Position(first.batch.offset + 1)

    def pass_over(self) -> None:
        """Go on behind what failed: the first batch, or what retention has freed."""
        if self._ahead:
            self._exhaust()
        elif self._told:
            self.position = Position(self._told.popleft().offset + 1)
        else:
            self.position = Position(self._shared.log.queue.start(self.partition))
            self.lookout.restart(self.position.offset)

    def close(self) -> None:
        """Give the room back."""
        while self._ahead:
            self._shared.fetches.give_back(self._ahead.popleft().batch)


class ConsumedRecord(NamedTuple):
    """One record and its place. ``timestamp`` in ms; None where the format has none."""

    partition: int
    offset: int
    message: int
    record: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    message_id: bytes | None
    timestamp: int | None


@dataclass(slots=True)
class RowsAtHand:
    """Rows of one batch in their order, with their places. A row that was taken is never given again."""

    rows: pa.RecordBatch
    taken: int = 0
    _records: Iterator[ConsumedRecord] | None = None

    @property
    def are_left(self) -> bool:
        """Whether there are rows that were not taken."""
        return self.taken < self.rows.num_rows

    def take(self) -> ConsumedRecord:
        """Take the next row."""
        if self._records is None:
            self._records = records_of(self.rows.slice(self.taken))
        record = next(self._records)
        self.taken += 1
        return record

    def rest(self) -> pa.RecordBatch:
        """Take all rows that are left."""
        rest = self.rows.slice(self.taken) if self.taken else self.rows
        self.taken = self.rows.num_rows
        return rest


def with_places(rows: pa.RecordBatch, partition: int, offset: int) -> pa.RecordBatch:
    """The same rows with columns for their partition and offset."""
    columns = [
        *rows.columns,
        repeat_value(partition, rows.num_rows, pa.int32()),
        repeat_value(offset, rows.num_rows, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, "partition", "offset"])


def records_of(rows: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The same rows, as records; all columns of a decoder, and those of :func:`with_places`."""
    for row in rows.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row.pop("headers") or ())
        yield ConsumedRecord(headers=headers, **row)
