"""Reads of the bucket that go on behind a consumer: some threads, one bound on what waits, in turns by partition."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tieredstore.catalog.lineage import Gap
from tieredstore.consumer.stored_stream import Piece, StoredStream
from tieredstore.errors import CorruptData, TieredStoreError
from tieredstore.records.numbers import int64_values
from tieredstore.records.partition import PartitionRead

if TYPE_CHECKING:
    from tieredstore.records import ReadSettings, SkippedInSegment
    from tieredstore.remote.source import SegmentSource

_MIB: Final = 1024 * 1024
_BATCH_BYTES: Final = 4 * _MIB
_TURN_BYTES: Final = 16 * _MIB
"""What a partition reads before another one has its turn, if others wait."""


class StoredStreams:
    """The streams of a consumer. Given to and taken from on one thread; ``threads`` others read.

    What waits to be taken is bounded by ``queued_bytes``, and one record batch more for each thread. Each stream may
    fill its share of that, so that a slow one keeps no other waiting.
    """

    def __init__(
        self,
        source: SegmentSource,
        settings: ReadSettings,
        *,
        threads: int,
        queued_bytes: int,
        news: threading.Event,
    ) -> None:
        self._source = source
        self._settings = replace(settings, on_data_loss="report", target_bytes=_target_bytes(queued_bytes, threads))
        self._threads_wanted = threads
        self._limit = queued_bytes
        self._news = news
        self._changed = threading.Condition()
        self._turns: deque[StoredStream] = deque()
        self._streams: dict[StoredStream, None] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.queued_bytes = 0
        """Bytes of decoded records that wait."""

    def begin(self, stream: StoredStream) -> None:
        """Read a stream."""
        with self._changed:
            self._streams[stream] = None
            self._queue(stream)
            self._start_thread()

    def drop(self, stream: StoredStream) -> None:
        """End a stream; what it has read is let go, and what is still on its way will be."""
        with self._changed:
            stream.is_dropped = True
            self._streams.pop(stream, None)
            self.queued_bytes -= stream.waiting_bytes
            stream.waiting_bytes = 0
            stream.pieces.clear()
            reading, stream.reading = stream.reading, None
            self._changed.notify_all()
        if reading is not None:
            reading.close()

    def take(self, stream: StoredStream) -> Piece | None:
        """The next piece of a stream, if one is there."""
        with self._changed:
            if not stream.pieces:
                return None
            piece = stream.pieces.popleft()
            stream.waiting_bytes -= piece.size
            self.queued_bytes -= piece.size
            self._queue(stream)
            return piece

    def put_back(self, stream: StoredStream, piece: Piece) -> None:
        """What was taken and not given: it comes first again."""
        with self._changed:
            if not stream.is_dropped:
                stream.pieces.appendleft(piece)
                stream.waiting_bytes += piece.size
                self.queued_bytes += piece.size

    def close(self) -> None:
        """Ask all threads to end; they do once their store has answered."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, end: float) -> None:
        """Wait for them, until the moment ``end`` at most."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _queue(self, stream: StoredStream) -> None:
        """Have a stream take its turn if it may read. The lock is held."""
        if stream.is_queued or stream.is_dropped or stream.is_done or stream.waiting_bytes > self._share() // 2:
            return
        stream.is_queued = True
        self._turns.append(stream)
        self._changed.notify()

    def _share(self) -> int:
        return self._limit // max(1, min(len(self._streams), 2 * self._threads_wanted))

    def _start_thread(self) -> None:
        if len(self._threads) < min(self._threads_wanted, len(self._streams)):
            # A daemon: one that a store keeps waiting must not keep the process from ending.
            name = f"tieredstore-consumer_{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (not self._turns or self.queued_bytes >= self._limit):
                    self._changed.wait()
                if self._is_closed:
                    return
                stream = self._turns.popleft()
                reading, stream.reading = stream.reading, None
            self._turn(stream, reading if reading is not None else self._read(stream))

    def _turn(self, stream: StoredStream, reading: Generator[Piece, None, None]) -> None:
        """Read of one stream until it is another one's turn."""
        read_bytes, goes_on = 0, True
        try:
            while goes_on:
                piece = next(reading, None)
                read_bytes += 0 if piece is None else piece.size
                goes_on = self._took(stream, piece, read_bytes)
        except TieredStoreError as error:
            self._ended(stream, error)
        except BaseException as error:  # a thread that dies would leave its partition waiting for ever
            self._ended(stream, CorruptData(f"reading {stream.lineage.partition} failed: {error!r}"))
            raise
        else:
            self._rest(stream, reading)
            return
        reading.close()

    def _took(self, stream: StoredStream, piece: Piece | None, read_bytes: int) -> bool:
        """Keep what was read; whether the stream may read on."""
        with self._changed:
            if stream.is_dropped or self._is_closed:
                return False
            if piece is None:
                stream.is_ended = True
            else:
                stream.pieces.append(piece)
                stream.waiting_bytes += piece.size
                self.queued_bytes += piece.size
            self._news.set()
            has_room = stream.waiting_bytes < self._share() and self.queued_bytes < self._limit
            return piece is not None and has_room and (read_bytes < _TURN_BYTES or not self._turns)

    def _rest(self, stream: StoredStream, reading: Generator[Piece, None, None]) -> None:
        """After a turn: the read stays open if its place is not needed, since a new one asks for the same again."""
        with self._changed:
            keeps = (
                not stream.is_dropped and not stream.is_done and len(self._streams) <= self._threads_wanted
                and not self._is_closed
            )  # fmt: skip
            if keeps:
                stream.reading = reading
        # Closed before the stream can have its next turn, which may be on another thread.
        if not keeps:
            reading.close()
        with self._changed:
            stream.is_queued = False
            if stream.is_done:
                self._streams.pop(stream, None)
            self._queue(stream)

    def _ended(self, stream: StoredStream, error: TieredStoreError) -> None:
        with self._changed:
            stream.is_queued = False
            self._streams.pop(stream, None)
            if not stream.is_dropped:
                stream.error = error
            self._news.set()

    def _read(self, stream: StoredStream) -> Generator[Piece, None, None]:
        """What is left of a stream, in pieces."""
        read = PartitionRead(self._source, stream.lineage, stream.position, stream.stop, self._settings)
        with read:
            for records in read:
                next_offset = int64_values(records, "offset")[-1] + 1
                stream.position = next_offset
                yield Piece(records, next_offset, _size_of(records))
            report = read.report
            stream.lost += report.lost
            stream.skipped += [_skipped(skipped) for skipped in report.skipped]
            if report.undecided is not None:
                # Less is decided than was when it was looked: whoever looks again is told where.
                stream.stop = max(stream.position, report.undecided.first_offset)
            stream.position = stream.stop


def _skipped(skipped: SkippedInSegment) -> Gap:
    """A damaged batch that was left out, as far as it can be believed: the offset that it gives itself."""
    segment = skipped.segment
    first = min(max(segment.start_offset, skipped.batch.base_offset), segment.end_offset)
    return Gap(skipped.segment.topic_id_partition, first, first + 1)


def _size_of(records: Any) -> int:
    return int(records.nbytes)


def _target_bytes(queued_bytes: int, threads: int) -> int:
    """A record batch's size: several fit into what may wait."""
    return max(64 * 1024, min(_BATCH_BYTES, queued_bytes // (2 * threads)))
