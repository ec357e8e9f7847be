"""Background reads of the bucket for a consumer. A few threads read all partitions in turns. One limit applies to the
bytes of all records that wait for the caller.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.log_sections import offset_index_of
from tieredstore.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    RangeNotSatisfiableError,
    TieredStoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.kafka.records.columns import int64_values
from tieredstore.records.partition import PartitionRead
from tieredstore.records.report import LostOffsets
from tieredstore.records.sections import IndexedEnds
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.remote import RemoteStorageManager

UNREADABLE: Final = (CorruptDataError, UnknownKeyError, WrongKeyError)
"""Errors that no retry can solve."""

_MIB: Final = 1024 * 1024
_BATCH_BYTES: Final = 4 * _MIB
_TURN_BYTES: Final = 16 * _MIB
"""Bytes that a thread may read of one partition while another partition waits for a thread."""


class Turn(enum.Enum):
    """The state of a stream."""

    RESTING = enum.auto()
    """No thread reads the stream, because enough records of the stream wait for the caller."""
    QUEUED = enum.auto()
    """The stream waits for a thread, or a thread reads it."""
    ENDED = enum.auto()
    """Everything up to ``stop`` was read."""
    FAILED = enum.auto()
    """The read failed after the last batch; ``error`` is the reason."""
    DROPPED = enum.auto()


@dataclass(eq=False, slots=True)
class StoredStream:
    """A read of one partition's log in the bucket, from offset ``position`` up to ``stop`` (exclusive).

    Records wait for the caller in ``batches``. The stream's other fields no longer change once ``turn`` is ENDED or
    FAILED.
    """

    lineage: Lineage
    position: int
    stop: int
    batches: deque[pa.RecordBatch] = field(default_factory=deque["pa.RecordBatch"])
    lost: list[LostOffsets] = field(default_factory=list["LostOffsets"])
    """Ranges of offsets that a segment should have by its manifest, but does not have."""
    skipped: list[LostOffsets] = field(default_factory=list["LostOffsets"])
    """Damaged batches that were skipped and logged, each as the offsets from its first one to the next record."""
    told: int = 0
    """The number of ``skipped`` batches that the caller has reported. Used by the polling thread only."""
    readable_at: int | None = None
    """After an error: the first offset after the damage from which the segment can be read; None if there is none."""
    turn: Turn = Turn.RESTING
    error: TieredStoreError | None = None
    waiting_bytes: int = 0
    reading: Generator[pa.RecordBatch, None, None] | None = None

    @property
    def is_done(self) -> bool:
        """True if the read has ended, with or without an error."""
        return self.turn in (Turn.ENDED, Turn.FAILED)


class StoredStreams:
    """All reads of a consumer from the bucket, in ``partitions.at.once`` background threads. Only one thread may call
    this object.

    Waiting records take at most ``queued.max.kbytes``, plus one record batch for each thread. Each stream may fill only
    its share, so that a slow stream does not delay the others.
    """

    def __init__(self, source: RemoteStorageManager, settings: ConsumerSettings, news: threading.Event) -> None:
        self._threads_wanted, self._limit = settings.partitions_at_once, settings.queued_bytes
        self._source = source
        self._settings = ReadSettings(
            isolation=settings.isolation,
            on_corrupt="fail" if settings.on_data_loss == "fail" else "skip",
            on_data_loss="report",
            # Make batches small enough that two for each thread fit into the limit.
            target_bytes=max(64 * 1024, min(_BATCH_BYTES, self._limit // (2 * self._threads_wanted))),
        )
        self._news = news
        self._changed = threading.Condition()
        self._turns: deque[StoredStream] = deque()
        self._streams: dict[StoredStream, None] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.queued_bytes = 0
        """Bytes of decoded records that wait for the caller."""

    def begin(self, stream: StoredStream) -> None:
        """Begin to read a stream."""
        with self._changed:
            self._streams[stream] = None
            self._queue(stream)
            if len(self._threads) < min(self._threads_wanted, len(self._streams)):
                # A daemon thread, so that a store that does not answer cannot keep the process alive.
                name = f"tieredstore-consumer_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def drop(self, stream: StoredStream) -> None:
        """End a stream. Drop its waiting records, and records that still arrive."""
        with self._changed:
            stream.turn = Turn.DROPPED
            self._streams.pop(stream, None)
            self.queued_bytes -= stream.waiting_bytes
            stream.waiting_bytes = 0
            stream.batches.clear()
            reading, stream.reading = stream.reading, None
            self._changed.notify_all()
        if reading is not None:
            reading.close()

    def next_skipped(self, stream: StoredStream) -> LostOffsets | None:
        """Return the next damaged batch before the end of the stream's next records that was not reported yet; None if
        there is none.

        After a failed read, batches after the last record are left to the next read, which meets them again.
        """
        with self._changed:
            upto = int64_values(stream.batches[0], "offset")[-1] if stream.batches else -1
        if stream.told < len(stream.skipped) and (
            stream.turn is Turn.ENDED or stream.skipped[stream.told].start <= upto
        ):
            return stream.skipped[stream.told]
        return None

    def take(self, stream: StoredStream) -> pa.RecordBatch | None:
        """Return the next batch of a stream, if one is ready."""
        with self._changed:
            if not stream.batches:
                return None
            batch = stream.batches.popleft()
            stream.waiting_bytes -= batch.nbytes
            self.queued_bytes -= batch.nbytes
            self._queue(stream)
            return batch

    def close(self) -> None:
        """Ask all threads to end. A thread ends once the store has answered its current request."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, end: float) -> None:
        """Wait for the reading threads to end, at most until the monotonic time ``end``."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _queue(self, stream: StoredStream) -> None:
        """Queue a stream for a turn on a reading thread, if the stream has room for more records. The caller holds
        the lock.
        """
        if stream.turn is Turn.RESTING and stream.waiting_bytes <= self._share() // 2:
            stream.turn = Turn.QUEUED
            self._turns.append(stream)
            self._changed.notify()

    def _share(self) -> int:
        return self._limit // max(1, min(len(self._streams), 2 * self._threads_wanted))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (not self._turns or self.queued_bytes >= self._limit):
                    self._changed.wait()
                if self._is_closed:
                    return
                stream = self._turns.popleft()
                if stream.turn is Turn.DROPPED:
                    continue
                reading, stream.reading = stream.reading, None
            self._take_turn(stream, reading if reading is not None else self._read(stream))

    def _take_turn(self, stream: StoredStream, reading: Generator[pa.RecordBatch, None, None]) -> None:
        """Read one partition's stream until its turn on this thread is over."""
        read_bytes, goes_on = 0, True
        try:
            while goes_on:
                batch = next(reading, None)
                read_bytes += 0 if batch is None else batch.nbytes
                goes_on = self._keep(stream, batch, read_bytes)
        except TieredStoreError as error:
            self._fail(stream, error)
        except BaseException as error:  # noqa: BLE001  otherwise this thread's partitions would wait forever
            # Such an error, for example a lack of memory, does not prove that the records are damaged.
            failure = TieredStoreError(f"reading {stream.lineage.partition} failed: {error!r}")
            failure.__cause__ = error
            self._fail(stream, failure)
        else:
            self._end_turn(stream, reading)
            return
        reading.close()

    def _keep(self, stream: StoredStream, batch: pa.RecordBatch | None, read_bytes: int) -> bool:
        """Queue a batch for the caller. If ``batch`` is None, mark the stream's end. Return True if the thread may read
        on."""
        with self._changed:
            if stream.turn is Turn.DROPPED or self._is_closed:
                return False
            if batch is None:
                stream.turn = Turn.ENDED
            else:
                stream.batches.append(batch)
                stream.waiting_bytes += batch.nbytes
                self.queued_bytes += batch.nbytes
            self._news.set()
            has_room = stream.waiting_bytes < self._share() and self.queued_bytes < self._limit
            return batch is not None and has_room and (read_bytes < _TURN_BYTES or not self._turns)

    def _end_turn(self, stream: StoredStream, reading: Generator[pa.RecordBatch, None, None]) -> None:
        """End a stream's turn on this thread. If no other stream needs the thread, keep the stream's read open, because
        a new read would repeat requests to the store.
        """
        with self._changed:
            is_open = stream.turn is Turn.QUEUED and not self._is_closed
            keeps = is_open and len(self._streams) <= self._threads_wanted
            if keeps:
                stream.reading = reading
        # Close the read, because the stream's next turn may be on a different thread.
        if not keeps:
            reading.close()
        with self._changed:
            if stream.turn is Turn.QUEUED:
                stream.turn = Turn.RESTING
                self._queue(stream)
            elif stream.is_done:
                self._streams.pop(stream, None)

    def _fail(self, stream: StoredStream, error: TieredStoreError) -> None:
        with self._changed:
            self._streams.pop(stream, None)
            if stream.turn is not Turn.DROPPED:
                stream.turn, stream.error = Turn.FAILED, error
            self._news.set()

    def _read(self, stream: StoredStream) -> Generator[pa.RecordBatch, None, None]:
        """Read the rest of a stream."""
        with self._open(stream, stream.position) as read:
            noted = 0
            try:
                for records in read:
                    offsets = int64_values(records, "offset")
                    noted = _note_skipped(stream, read, offsets, noted)
                    stream.position = offsets[-1] + 1
                    yield records
            except CorruptDataError as error:
                # If the log's object is missing or too short, nothing after the damage is readable.
                is_cut = isinstance(error.__cause__, ObjectNotFoundError | RangeNotSatisfiableError)
                if self._settings.on_corrupt == "skip" and stream.position < stream.stop and not is_cut:
                    stream.readable_at = self._find_readable(stream)
                raise
            report = read.report
            stream.lost += report.lost
            if report.undecided is not None:
                # The read has met an open transaction. The stream ends at the transaction's first offset, and the next
                # look-up decides how to continue.
                stream.stop = max(stream.position, report.undecided.first_offset)
            _note_skipped(stream, read, (stream.stop,), noted)
            stream.position = stream.stop

    def _open(self, stream: StoredStream, start: int) -> PartitionRead:
        return PartitionRead(self._source, stream.lineage, start, stream.stop, self._settings)

    def _find_readable(self, stream: StoredStream) -> int | None:
        """Return an offset after the damage from which the segment can be read, or None. Try one index entry per chunk,
        because a damaged chunk is unreadable as a whole.
        """
        tried, span = -1, stream.lineage.span_at(stream.position)
        with contextlib.suppress(CorruptDataError):
            chunk_bytes = self._source.fetch_manifest(span.segment).chunk_index.original_chunk_size
            ends = IndexedEnds(span.segment, offset_index_of(self._source, span.segment))
            for end in (ends[number] for number in range(1, len(ends) - 1)):
                if stream.turn is Turn.DROPPED:
                    break
                # An entry has the last offset of an append, and the append's position. So read from the next offset on.
                start, chunk = end.high + 1, end.position // chunk_bytes
                if end.low > stream.position and start < min(span.stop, stream.stop) and chunk > tried:
                    tried = chunk
                    with contextlib.suppress(CorruptDataError), self._open(stream, start) as read:
                        next(iter(read), None)
                        return start
        return None


def _note_skipped(stream: StoredStream, read: PartitionRead, offsets: Sequence[int], noted: int) -> int:
    """Note the damaged batches before the last of ``offsets``, the offsets of the next records or of the read's end.
    Leave out the first ``noted`` batches of the read. Return the number of batches noted so far.

    The header of a damaged batch does not prove which offsets it has. So the loss ends at the next record, the next
    damaged batch, or the segment's end.
    """
    # A repeated read may find the same damaged batch again.
    known, following, found = {span.start for span in stream.skipped}, offsets[-1], list[LostOffsets]()
    waiting = 0
    for skipped in reversed(read.report.skipped[noted:]):
        segment, first = skipped.segment, skipped.batch.base_offset
        # All records after the batch have these offsets. The read begins one batch early, and without an earlier batch,
        # ``follows`` is -1.
        least = max(segment.start_offset, read.start, skipped.batch.follows + 1)
        if least > offsets[-1]:
            waiting += 1
            continue
        stop = min(offsets[bisect_left(offsets, least)], segment.end_offset + 1, following)
        first = first if least <= first < stop else least
        if first < stop and first not in known:
            found.append(LostOffsets(segment.topic_id_partition, first, stop))
            following = first
    stream.skipped += reversed(found)
    return len(read.report.skipped) - waiting
