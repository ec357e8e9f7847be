"""A consumer's state of one read partition: notifications, running fetches of objects, and records in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.backends.base import Buffer
from tieredstore.errors import ObjectNotFoundError, RangeNotSatisfiableError
from tieredstore.kafka.arrow_values import repeat_value
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.counts import ConsumerCounts
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.format.audit_records import IdsHash
from tieredstore.pubsub.format.batches import BatchIndex, headers_in, split_checksums
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import MessageHeader
from tieredstore.pubsub.queue.queues import Position, QueuedNotification
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch

if TYPE_CHECKING:
    from tieredstore.pubsub.queue.kafka_audit import Auditor

BUSY_LOOK_S: Final = 0.2
"""Seconds between reads of a queue that had entries recently."""

IDLE_LOOK_S: Final = 2.0
"""Seconds between reads of a queue that had no entries for ``IDLE_AFTER_S``."""

IDLE_AFTER_S: Final = 10.0
_LOOKS_AHEAD: Final = 2


class FetchedObject(NamedTuple):
    """A fetched object, its CRC-32, and the CRC-32 of each Message's body (None if not computed)."""

    body: Buffer
    crc32: int
    checksums: Sequence[int] | None


class Fetches:
    """The threads with which a consumer prefetches objects, and their budget. The budget limits the number of objects
    to ``objects``, and their total size to ``pubsub.fetch.bytes``.

    A larger object is fetched alone.
    """

    def __init__(self, log: BatchLog, objects: int) -> None:
        self.log = log
        self.at_once = objects
        # The remaining budget.
        self._objects, self._bytes = objects, log.settings.fetch_bytes
        # Besides the threads that fetch objects, ``_LOOKS_AHEAD`` threads read ahead in the queue.
        self.pool: ThreadPool = ThreadPool(objects + _LOOKS_AHEAD, "tieredstore-pubsub-fetch")

    @property
    def is_full(self) -> bool:
        """True if the budget is used up."""
        return self._objects <= 0 or self._bytes <= 0

    def begin(self, batch: QueuedBatch) -> Fetching:
        """Begin to fetch a batch's object, and count it and its bytes against the budget."""
        self._objects, self._bytes = self._objects - 1, self._bytes - batch.size
        return Fetching(batch, self.fetch(batch))

    def fetch(self, batch: QueuedBatch) -> Future[FetchedObject]:
        """Begin to fetch the object of a batch that :meth:`begin` has counted."""
        return self.pool.submit(fetch_object, self.log, batch)

    def give_back(self, batch: QueuedBatch) -> None:
        """Release the budget that :meth:`begin` reserved for an object."""
        self._objects, self._bytes = self._objects + 1, self._bytes + batch.size

    def close(self) -> None:
        """Stop fetching."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def fetch_object(log: BatchLog, batch: QueuedBatch) -> FetchedObject:
    """Fetch an object and compute its checksums. Raise DataLossError if it is missing. Runs on several threads.

    The object goes to recycled memory, because getting new memory from the system takes as long as the transfer.
    """
    topics = log.topics
    body: Buffer
    body = room = memoryview(topics.memory.slab(batch.size))[: batch.size]
    try:
        try:
            topics.store.get_whole(batch.key, room)
        # The object's size differs from the size in the notification. Read the object nevertheless, because a later
        # check of the checksum or index raises the error.
        except RangeNotSatisfiableError:
            body = topics.store.get(batch.key)
    except ObjectNotFoundError as error:
        raise log.loss(batch) from error
    return FetchedObject(body, *split_checksums(body, batch.key))


def fetch_in_order(
    log: BatchLog, batches: Iterable[QueuedBatch], objects: int
) -> Generator[tuple[QueuedBatch, FetchedObject]]:
    """Yield each batch with its object. Fetch up to ``objects`` objects and ``pubsub.fetch.bytes`` ahead. Raise
    DataLossError for a missing object."""
    with ThreadPool(objects, "tieredstore-pubsub-fetch") as pool:
        yield from in_parallel(
            pool, lambda batch: (batch, fetch_object(log, batch)), batches,
            at_once=objects, weigh=lambda batch: batch.size, max_weight=log.settings.fetch_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SharedReading:
    """State that the partitions of one consumer share."""

    log: BatchLog
    fetches: Fetches
    decoder: Callable[[], BatchDecoder]
    auditor: Auditor | None
    is_skipping: bool
    """True to skip damaged Messages and read the other Messages of their object."""
    is_once: bool
    """True to skip Messages that repeat earlier Messages."""
    monotonic: Callable[[], float] = time.monotonic
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)
    skipped: list[str] = field(default_factory=list[str])
    """Skipped Messages, one sentence each."""

    def close(self) -> None:
        """End the threads, and send the remaining audit records."""
        self.fetches.close()
        if self.auditor is not None:
            self.auditor.close()

    def skip(self, whys: Sequence[str]) -> None:
        """Report damaged Messages."""
        self.skipped.extend(whys)
        self.counts.damaged_messages += len(whys)


class Lookout:
    """Reads one partition of the queue, and schedules the next read.

    ``look`` waits for the queue only if its caller has no backlog (entries that are read but not handed out). With a
    backlog, a fetching thread reads ahead, and reads more entries each time. ``look`` raises an error of that thread
    only after it has returned the entries before the error.
    """

    def __init__(self, shared: SharedReading, partition: int, offset: int) -> None:
        self._shared = shared
        self._partition = partition
        self._found_s = shared.monotonic()
        self.restart(offset)

    def restart(self, offset: int) -> None:
        """Continue at ``offset``."""
        self._cursor = self._shared.log.queue.cursor(self._partition, offset)
        self._stride = 1
        self.next_look_s: float = 0.0
        self.looking: Future[Looked] | None = None

    def look(self, *, has_backlog: bool) -> list[QueuedNotification]:
        """Begin a read of the queue if one is due. Return its entries once they have arrived, else an empty list."""
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
        """Read at least ``count`` entries. If an error follows some entries, return these entries, because the next
        read raises the error again."""
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
    """Entries read from the queue, True if its end was reached, and the number of requests made."""

    entries: list[QueuedNotification]
    is_end: bool
    asked: int


@dataclass(frozen=True, slots=True)
class Fetching:
    """A batch and the running fetch of its object. The object counts against the budget. After an error there is no
    fetch, and the next read begins another."""

    batch: QueuedBatch
    object: Future[FetchedObject] | None = None


class OpenBatch:
    """The rest of a fetched object from ``position`` on. Some of its rows are decoded and can be taken; later rows are
    not decoded yet.

    If decoding finds damage, the partition fetches the object again, and reopens the batch after the last record handed
    out.
    """

    def __init__(self, shared: SharedReading, batch: QueuedBatch, fetched: FetchedObject, position: Position) -> None:
        """Raise MessageCorruptError if the object's CRC-32 is wrong, unless the consumer skips damage."""
        self.at_hand: RowsAtHand | None = None
        self.repeated: frozenset[int] = frozenset()
        self.batch: QueuedBatch = batch
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
        """Decode rows if none are left to take. Return False if the batch has no more rows."""
        if self.at_hand is None and (rows := next(self._decoded, None)) is not None:
            self.at_hand = RowsAtHand(with_places(rows, self.batch.partition, self.batch.offset))
        return self.at_hand is not None

    def _decode(self, fetched: FetchedObject, position: Position) -> Iterator[pa.RecordBatch]:
        """Yield the records from ``position`` on, except the records of repeated Messages."""
        body, _, checksums = fetched
        decoder = self._shared.decoder()
        noting = iter if self.audited is None else self.audited.note_ids
        index = BatchIndex(body, self.batch.key, len(body))
        self.batch.check_count(len(index))
        numbers = (number for number in range(position.message, len(index)) if number not in self.repeated)
        for rows in noting(decoder.decode_messages(index.messages(body, numbers), checksums)):
            passed = _count_passed(rows, position)
            if passed < rows.num_rows:
                yield rows.slice(passed)
        # If the object's checksum is wrong, but no Message was damaged and skipped, report the wrong checksum.
        self._shared.skip(decoder.skipped or ([] if self._damage is None else [self._damage]))


class ReadMessages:
    """The Messages of one object that a consumer has decoded but not completely handed out. Not thread-safe.

    After a Message's last record is handed out, the auditor reports the Message with the ids of all its records. The
    ids may include those of records before ``position``, which another member of the group has handed out.
    """

    def __init__(self, auditor: Auditor, body: Buffer, name: str, position: Position) -> None:
        """Begin at ``position``, because the earlier reader of the partition has reported the Messages before it."""
        self._auditor = auditor
        self._headers = dict(headers_in(body, name))
        first = self._headers.get(position.message)
        if isinstance(first, MessageHeader) and first.record_count <= position.record:
            del self._headers[position.message]
        self._hashes: dict[int, IdsHash] = {}

    def note_ids(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches unchanged, and note their message ids. The batches must have all records of each
        Message."""
        for batch in batches:
            runs, begin = pc.run_end_encode(batch.column("message")), 0
            for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                ids = batch.column("message_id").slice(begin, end - begin).drop_null()
                self._hashes.setdefault(number, IdsHash()).add(ids.to_pylist())
                begin = end
            yield batch

    def note_handed_out(self, message: int, record: int) -> None:
        """Report the Messages that are handed out completely: all records up to ``record`` of ``message`` (inclusive)
        are handed out."""
        while self._hashes:
            number = next(iter(self._hashes))  # the lowest number, because Messages are decoded in order
            header = self._headers.get(number)
            is_within = isinstance(header, MessageHeader) and record + 1 < header.record_count
            if number > message or (number == message and is_within):
                return
            hashed = self._hashes.pop(number)
            if isinstance(header, MessageHeader) and header.request is not None:
                self._auditor.tell(header.request, bytes(hashed), hashed.count)


def _count_passed(rows: pa.RecordBatch, position: Position) -> int:
    """Return how many rows of the position's Message are before the position."""
    if not position.record:
        return 0
    is_passed = pc.and_(
        pc.equal(rows.column("message"), position.message), pc.less(rows.column("record"), position.record)
    )
    return int(pc.sum(is_passed).as_py() or 0)


class PartitionState:
    """One partition while this consumer owns it; ``term`` numbers the periods of ownership. Not thread-safe.

    Each batch of the partition goes through these states, each represented by an object:

    ==================  =======================================  =====================================================
    a batch is          in                                       next
    ==================  =======================================  =====================================================
    QueuedNotification  ``_queued``: its notification was read   Fetching: as soon as the budget allows
    Fetching            ``_ahead``: it has budget                OpenBatch: it is the first, and its object is there.
                                                                 Absent or damaged: raises, and is fetched again by the
                                                                 next read; :meth:`pass_over` exhausts it
    OpenBatch           ``_ahead``, as the first: its rows are   exhausted: no rows are left. Damage in it: Fetching,
                        decoded, and handed out                  resumed after the last record handed out
    exhausted           nothing: ``position`` is after it, its   –
                        budget is returned
    ==================  =======================================  =====================================================

    ``position`` follows the last record handed out. It moves only when rows are taken, a batch is exhausted, or a loss
    is skipped.
    """

    def __init__(self, shared: SharedReading, partition: int, position: Position, term: int = 0) -> None:
        self.partition = partition
        self.term = term
        self.position: Position = position
        self.lookout: Lookout = Lookout(shared, partition, position.offset)
        self._shared = shared
        self._seen = SeenMessages(shared.log, partition) if shared.is_once else None
        self._queued: deque[QueuedNotification] = deque()
        self._ahead: deque[Fetching | OpenBatch] = deque()

    def look(self) -> None:
        """Read ahead in the queue if a read is due, and fetch within the budget."""
        self._fetch()
        if len(self._queued) < self._shared.fetches.at_once:
            self._queued.extend(self.lookout.look(has_backlog=bool(self._ahead or self._queued)))
            self._fetch()

    def _fetch(self) -> None:
        fetches = self._shared.fetches
        while self._queued and not fetches.is_full:
            try:
                batch = self._shared.log.batch_of(self.partition, self._queued[0])
            except NotificationCorruptError:
                if self._ahead:
                    return  # first hand out the batches before this notification
                raise
            self._queued.popleft()
            self._ahead.append(fetches.begin(batch))

    @property
    def under_way(self) -> list[Future[FetchedObject] | Future[Looked]]:
        """The running fetch of the next object, and the running read of the queue. More records come only after the
        fetch or the read ends."""
        first = self._first
        futures = (first.object if isinstance(first, Fetching) else None, self.lookout.looking)
        return [future for future in futures if future is not None and not future.done()]

    @property
    def _first(self) -> Fetching | OpenBatch | None:
        return self._ahead[0] if self._ahead else None

    @property
    def has_ahead(self) -> bool:
        """True if batches of earlier queue reads are left, so that records may come without another read."""
        return bool(self._ahead or self._queued)

    @property
    def at_hand(self) -> RowsAtHand | None:
        """Decoded rows that are not taken yet."""
        return self._first.at_hand if isinstance(self._first, OpenBatch) else None

    def fill(self) -> bool:
        """Return True if there are rows to take. Raise DataLossError for an absent object."""
        while True:
            match self._first:
                case None:
                    self._fetch()
                    if not self._ahead:
                        return False
                case Fetching(batch, fetched):
                    if fetched is None:
                        self._ahead[0] = Fetching(batch, self._shared.fetches.fetch(batch))
                    elif not is_done(fetched, 0.0):
                        return False
                    else:
                        self._ahead[0] = Fetching(batch)
                        self._ahead[0] = self._open(batch, outcome(fetched))
                case OpenBatch() as opened:
                    try:
                        if opened.fill():
                            return True
                    except BaseException:
                        self._ahead[0] = Fetching(opened.batch)
                        raise
                    self._exhaust()

    def _open(self, batch: QueuedBatch, fetched: FetchedObject) -> OpenBatch:
        self._shared.counts.batches += 1
        self._shared.counts.stored_bytes += len(fetched.body)
        at = self.position if self.position.offset == batch.offset else Position(batch.offset)
        opened = OpenBatch(self._shared, batch, fetched, at)
        self.position = at
        if self._seen is not None:
            opened.repeated = self._seen.doubles(batch, fetched.body)
        return opened

    def take(self) -> ConsumedRecord:
        """Hand out one record."""
        opened, rows = self._rows()
        record = rows.take()
        self._move(opened, rows, record.message, record.record)
        return record

    def take_rest(self) -> pa.RecordBatch:
        """Hand out all decoded rows of the batch."""
        opened, rows = self._rows()
        rest = rows.rest()
        self._move(opened, rows, rest.column("message")[-1].as_py(), rest.column("record")[-1].as_py())
        return rest

    def _rows(self) -> tuple[OpenBatch, RowsAtHand]:
        opened = self._first
        if not isinstance(opened, OpenBatch) or opened.at_hand is None:
            raise ValueError("no rows to take: call fill() first")
        return opened, opened.at_hand

    def _move(self, opened: OpenBatch, rows: RowsAtHand, message: int, record: int) -> None:
        self.position = Position(self.position.offset, message, record + 1)
        if rows.taken == rows.rows.num_rows:
            opened.at_hand = None
        if opened.audited is not None:
            opened.audited.note_handed_out(message, record)

    def _exhaust(self) -> None:
        first = self._ahead.popleft()
        self._shared.fetches.give_back(first.batch)
        if isinstance(first, OpenBatch):
            self._shared.counts.repeated_messages += len(first.repeated)
        self.position = Position(first.batch.next_offset)

    def pass_over(self, continue_at: int | None = None) -> None:
        """Skip the cause of the last error: the first batch, or entries that the queue has lost, up to ``continue_at``
        (default: the queue's start)."""
        if self._ahead:
            self._exhaust()
        elif self._queued:
            self.position = Position(self._queued.popleft().next_offset)
        else:
            at = self._shared.log.queue.start(self.partition) if continue_at is None else continue_at
            self.position = Position(at)
            self.lookout.restart(self.position.offset)

    def close(self) -> None:
        """Return the budget."""
        while self._ahead:
            self._shared.fetches.give_back(self._ahead.popleft().batch)


class ConsumedRecord(NamedTuple):
    """One record and its place. ``timestamp`` is in ms; None if the record has no timestamp."""

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
    """Decoded rows of one batch in order. The consumer can take each row once."""

    rows: pa.RecordBatch
    taken: int = 0
    _records: Iterator[ConsumedRecord] | None = None

    def take(self) -> ConsumedRecord:
        """Take the next row."""
        if self._records is None:
            self._records = records_of(self.rows.slice(self.taken))
        record = next(self._records)
        self.taken += 1
        return record

    def rest(self) -> pa.RecordBatch:
        """Take all remaining rows."""
        rest = self.rows.slice(self.taken) if self.taken else self.rows
        self.taken = self.rows.num_rows
        return rest


def with_places(rows: pa.RecordBatch, partition: int, offset: int) -> pa.RecordBatch:
    """Return the rows with columns for their partition and offset."""
    columns = [
        *rows.columns,
        repeat_value(partition, rows.num_rows, pa.int32()),
        repeat_value(offset, rows.num_rows, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, "partition", "offset"])


def records_of(rows: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """Yield the rows as records. ``rows`` must have all columns of a decoder, and the columns that :func:`with_places`
    adds."""
    for row in rows.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row.pop("headers") or ())
        yield ConsumedRecord(headers=headers, **row)
