"""From pieces of a log to Arrow: who feeds the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tieredstore.errors import ConfigError, InvalidRange
from tieredstore.kafka.batches import BatchHeader, Buffer
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records._kernel import Scanner
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.kafka.records.codecs import Decompressor
from tieredstore.kafka.records.columns import COLUMNS, RecordColumns
from tieredstore.kafka.records.log_reading import LogReading, OnCorrupt, SkippedBatch
from tieredstore.limits import MAX_INT32, MAX_OFFSET


class RecordDecoder:
    """Decodes logs into record batches of Arrow: of ``columns``, in their order.

    ``on_corrupt`` says what becomes of a damaged batch: ``fail`` raises BatchCorrupt after the records before it have
    been given; ``skip`` leaves it out and reports it in :attr:`skipped`. A batch whose length or magic is damaged
    raises either way, since nothing says where the next one begins.

    A record batch holds about ``target_bytes`` of keys, values and headers (up to twice as much; one record more than
    that stands alone), and at most 131,072 rows. ``max_batch_bytes`` bounds what one batch of Kafka may have, stored
    and decompressed; memory stays within a small multiple of both. A decoder is for one thread; several run in
    parallel, since the work is done without the interpreter's lock.
    """

    def __init__(
        self,
        columns: Sequence[str] = COLUMNS,
        *,
        check_crc: bool = True,
        on_corrupt: OnCorrupt = "fail",
        keep_headers: bool = False,
        target_bytes: int = 4 * 1024 * 1024,
        max_batch_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        if on_corrupt not in ("fail", "skip"):
            raise ConfigError(f"on_corrupt is {on_corrupt!r}; it must be fail or skip")
        if not 0 < target_bytes <= MAX_INT32 // 2:
            raise ConfigError(f"target_bytes is {target_bytes}; it must be from 1 to {MAX_INT32 // 2}")
        if not 0 < max_batch_bytes <= MAX_INT32:
            raise ConfigError(f"max_batch_bytes is {max_batch_bytes}; it must be from 1 to {MAX_INT32}")
        self._columns = RecordColumns(columns)
        self._check_crc = check_crc
        self._on_corrupt: OnCorrupt = on_corrupt
        self._target_bytes = target_bytes
        self._max_batch_bytes = max_batch_bytes
        self._pool = shared_pool()
        self._keep_headers = keep_headers
        self._offsets = (0, MAX_OFFSET)
        self._scanner: Scanner | None = None
        self._reading: LogReading | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of all record batches."""
        return self._columns.schema

    @property
    def next_offset(self) -> int:
        """Where the reading of the last log ended: all records before it were given, or are not to be.

        It is the stop offset if that was reached, otherwise one more than the last offset of the log; offsets that
        control batches, aborted transactions and compaction took are passed over. Final once the iterator is exhausted.
        """
        start, stop = self._offsets
        if self._reading is None or self._reading.is_stopped:
            return stop if self._reading else start
        return min(max(self._reading.last_offset + 1, start), stop)

    @property
    def offset_reached(self) -> int:
        """One more than the last offset of the batches of the last log that were walked over."""
        return 0 if self._reading is None else self._reading.last_offset + 1

    @property
    def stopped_at(self) -> int | None:
        """The byte of the last log, a batch border, at which its reading stopped since all that follows is said to lie
        at the stop offset or beyond; None where it went on to the end. Final once the iterator is exhausted."""
        return self._reading.position if self._reading is not None and self._reading.is_stopped else None

    @property
    def ended_in_zeros(self) -> bool:
        """Whether the last log ended in zeros, as a preallocated one does. Final once the iterator is exhausted."""
        return self._reading is not None and self._reading.ended_in_zeros

    @property
    def skipped(self) -> Sequence[SkippedBatch]:
        """The damaged batches that were left out of the last log."""
        return self._reading.skipped if self._reading else ()

    def take_headers(self) -> list[BatchHeader]:
        """The headers of all batches walked over since they were last taken, if ``keep_headers``.

        Control batches and those of aborted transactions are among them, damaged ones are not. Positions are those in
        the log. They pile up, 104 bytes a batch, until they are taken; every batch behind a record batch that was
        given is there.
        """
        return self._reading.take_headers() if self._reading else []

    def decode(
        self,
        pieces: Iterable[Buffer],
        *,
        start_offset: int = 0,
        stop_offset: int | None = None,
        end_offset: int = MAX_OFFSET,
        aborted: Iterable[AbortedTransaction] = (),
        position: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in ``[start_offset, stop_offset)`` of one log, in record batches without empty ones.

        ``pieces`` are bytes of the log that follow each other, cut anywhere; the first begins at a batch border, which
        lies at byte ``position`` of the log. A piece must not change until the next one is asked for; none is asked for
        once the stop offset is reached. ``end_offset`` is that of the log, one more than its last: a batch beyond it is
        damaged, which its CRC does not tell, since that leaves out the offset. Records of ``aborted`` transactions are
        left out. Control records never appear. A zero-filled rest, as of a preallocated log, is its end. Raises
        BatchCorrupt, also for a log that ends inside a batch. What a decoder says about a log is that of its latest
        ``decode``.
        """
        stop = MAX_OFFSET if stop_offset is None else stop_offset
        if not 0 <= start_offset <= stop <= MAX_OFFSET:
            raise InvalidRange(f"offsets {start_offset} to {stop_offset} are not a range")
        scanner = Scanner(
            self._pool, self._columns.wanted, start_offset, stop, end_offset, merge_aborted(aborted),
            self._check_crc, self._keep_headers, self._max_batch_bytes, self._target_bytes,
            # Of its own: a body lies in its memory while record batches of it are given.
            Decompressor(self._pool, self._max_batch_bytes).decompress,
        )  # fmt: skip
        self._scanner = scanner
        self._offsets = (start_offset, stop)
        self._reading = LogReading(
            scanner, self._columns, self._on_corrupt,
            position=position, worth_giving=self._target_bytes // 4,
        )  # fmt: skip
        return self._reading.read(pieces if start_offset < stop else ())

    def leave_out(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Leave out the records of these transactions, and of no others, from the piece that is given next on.

        For one who is told of them while the pieces of the log that is being decoded are asked for.
        """
        if self._scanner is not None:
            self._scanner.leave_out(merge_aborted(aborted))


def merge_aborted(aborted: Iterable[AbortedTransaction]) -> list[tuple[int, int, int]]:
    """(producer id, first offset, last offset) in order, those that overlap as one: an entry may be known twice."""
    merged: list[tuple[int, int, int]] = []
    for producer, first, last in sorted((a.producer_id, a.first_offset, a.last_offset) for a in aborted):
        if merged and merged[-1][0] == producer and first <= merged[-1][2]:
            merged[-1] = (producer, merged[-1][1], max(last, merged[-1][2]))
        else:
            merged.append((producer, first, last))
    return merged
