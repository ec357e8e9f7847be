"""The decoder of logs into Arrow record batches, and the reading of one log through the kernel."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from tieredstore.errors import BatchCorruptError, ConfigError, CorruptDataError, InvalidRangeError
from tieredstore.kafka.batches import FRAME_SIZE, BatchHeader, Buffer, first_batch_size
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records._kernel import Scanner
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.kafka.records.codecs import Decompressor
from tieredstore.kafka.records.columns import COLUMNS, RecordColumns
from tieredstore.limits import MAX_INT32, MAX_OFFSET

# The states that the kernel returns, in the order of its own enumeration.
_PIECE_READ, _PARTIAL_BATCH, _COLUMNS_FULL, _STOP_REACHED, _ZERO_TAIL, _FAULTY = range(6)

_LEAST_FRAME: Final = 17
"""The bytes that the kernel needs to check a batch's length and magic."""

OnCorrupt: TypeAlias = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class SkippedBatch:
    """A damaged batch that was left out: its position in the log, its own base offset, and the reason.

    ``follows`` is the last offset of the batches before it, or -1.
    """

    position: int
    size_in_bytes: int
    base_offset: int
    reason: str
    follows: int


class LogReading:
    """The reading of one log from byte ``position`` on, where a batch must begin. Call :meth:`read` once."""

    def __init__(
        self,
        scanner: Scanner,
        columns: RecordColumns,
        on_corrupt: OnCorrupt,
        *,
        position: int,
        worth_giving: int,
    ) -> None:
        self._scanner = scanner
        self._columns = columns
        self._on_corrupt = on_corrupt
        self.position = position
        """The end of the last batch that was read, in bytes from the log's beginning."""
        self._worth_giving = worth_giving
        self._state = _PIECE_READ
        self.ended_in_zeros = False
        """True if the log ended in zeros instead of a batch."""
        self.skipped: list[SkippedBatch] = []

    @property
    def last_offset(self) -> int:
        """The last offset of the batches read so far, -1 before the first batch."""
        return self._scanner.last_offset

    @property
    def is_stopped(self) -> bool:
        """True once all further batches are known to be at the stop offset or beyond."""
        return self._state == _STOP_REACHED

    def take_headers(self) -> list[BatchHeader]:
        """Return the headers of the batches that were read since the last call."""
        return [BatchHeader(*fields) for fields in self._scanner.take_headers()]

    def read(self, pieces: Iterable[Buffer]) -> Iterator[pa.RecordBatch]:
        """See RecordDecoder.decode."""
        rest = bytearray()
        try:
            for piece in pieces:
                with memoryview(piece) as whole, whole.cast("B") as view:
                    # The end of the last piece may have cut a batch. First add only the bytes that this batch lacks.
                    # All other batches are decoded in place.
                    consumed = 0
                    while rest and consumed < len(view):
                        taken = min(_count_missing(rest), len(view) - consumed)
                        rest += view[consumed : consumed + taken]
                        consumed += taken
                        if len(rest) >= _LEAST_FRAME:
                            yield from self._walk_rest(rest)
                    # Decode the batches that are whole in this piece of the log. Keep the bytes after them, which begin
                    # another batch.
                    if not rest and self._state != _STOP_REACHED:
                        with view[consumed:] as unread:
                            walked = yield from self._walk(unread)
                            rest += unread[walked:]
                if self._state == _STOP_REACHED:
                    break
        except CorruptDataError:
            # The next piece is damaged. Yield the records before it first.
            yield from self._flush()
            raise
        yield from self._flush()
        if self._state != _STOP_REACHED:
            self._expect_end(rest)

    def _walk_rest(self, rest: bytearray) -> Iterator[pa.RecordBatch]:
        """Decode a batch that was cut between pieces, when it is complete or known to be invalid."""
        walked = yield from self._walk(rest)
        del rest[: len(rest) if self._state == _STOP_REACHED else walked]

    def _walk(self, piece: memoryview | bytearray) -> Generator[pa.RecordBatch, None, int]:
        """Yield the records of all batches that are whole in the piece of the log. Return the size of those batches."""
        # After zeros only zeros may follow, because nothing is written after preallocated space.
        if self.ended_in_zeros:
            _expect_zeros(piece, self.position)
            self.position += len(piece)
            return len(piece)
        self._scanner.set_piece(piece, self.position)
        try:
            yield from self._walk_batches()
            walked = self._scanner.place
        finally:
            # Release the piece of the log. Its owner can close the mapped file, or another buffer, only when nothing
            # refers to the piece.
            self._scanner.release()
        if self._state == _ZERO_TAIL:
            self.ended_in_zeros, walked = True, len(piece)
        self.position += walked
        return walked

    def _walk_batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                self._state = self._scanner.scan()
                problem = _sentence(self._scanner.fault) if self._state == _FAULTY else None
            except BatchCorruptError as error:
                self._state, problem = _FAULTY, str(error)
            if problem is not None:
                yield from self._pass_over(problem)
            # At the end of a piece of the log, yield the records if there are enough. The caller then need not wait for
            # the next piece.
            elif self._state == _COLUMNS_FULL or self._scanner.pending_bytes >= self._worth_giving:
                yield from self._flush()
            if problem is None and self._state != _COLUMNS_FULL:
                return

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if (taken := self._scanner.columns.take()) is not None:
            yield self._columns.build(taken)

    def _pass_over(self, problem: str) -> Iterator[pa.RecordBatch]:
        """Yield the records before the damaged batch, then raise an error or skip the batch, as ``on_corrupt`` says."""
        position, size, base_offset = self._scanner.batch_at_hand
        # With a damaged length or magic the next batch cannot be found, so raise an error, whatever ``on_corrupt`` is.
        lost = 0 < self._scanner.fault[0] <= _LAST_FRAMING_FAULT
        if lost or self._on_corrupt == "fail":
            yield from self._flush()
            raise BatchCorruptError(
                f"the record batch at byte {position}{'' if lost else f' (offset {base_offset})'} {problem}"
            )
        self.skipped.append(SkippedBatch(position, size, base_offset, problem, self.last_offset))
        self._scanner.skip_batch()

    def _expect_end(self, rest: bytearray) -> None:
        """Raise BatchCorruptError if ``rest`` is a truncated batch. If ``rest`` is only zeros, the log ends there."""
        # 12 or more zeros are the end of the log, because the length of a batch is in its first 12 bytes and never 0.
        if rest and (len(rest) < FRAME_SIZE or any(rest)) and not self.ended_in_zeros:
            raise BatchCorruptError(f"the log ends {len(rest)} bytes into the record batch at byte {self.position}")
        self.ended_in_zeros = self.ended_in_zeros or bool(rest)


def _count_missing(rest: bytearray) -> int:
    """Return how many bytes are missing until the batch in ``rest`` is complete, or until its length and magic can be
    checked.
    """
    size = first_batch_size(rest)
    return max(size or 0, _LEAST_FRAME) - len(rest)


def _expect_zeros(piece: memoryview | bytearray, position: int) -> None:
    if bytes(piece) != bytes(len(piece)):
        raise BatchCorruptError(f"the log has data at byte {position} or later, but zeros before it mark the log's end")


# Messages by the kernel's fault number, with placeholders for the fault's two numbers. Number 0 is no fault.
_SENTENCES: Final = (
    "",
    "has the impossible length {0}",
    "has the unknown magic {0}",
    "has {0} bytes, but max_batch_bytes allows only {1}",
    "has {0} bytes, too few for its header",
    "has an impossible range of offsets: base offset {0}, last offset delta {1}",
    "states {0} records, but spans {1} offsets",
    "has the unknown compression type {0}",
    "begins at offset {0}, but the batch before it ends at offset {1}",
    "is damaged: its bytes have the CRC {0:08x}, but its header states {1:08x}",
    "states {0} records, which do not fit into its {1} bytes",
    "has a damaged record, number {0} of {1}: its fields do not fit the size that it states",
    "has a damaged record, number {0}: its offset delta {1} is not above the previous one, or is outside of the batch",
    "has a damaged record, number {0} of {1}: its headers are malformed",
    "has {0} bytes left after its {1} records",
    "is a damaged message: its fields do not fit its size of {0} bytes",
    "has an inner message, number {0}, that is malformed, compressed, or not of magic {1}",
    "has an inner message, number {0}, that is damaged: its CRC does not match",
    "is a compressed message set without messages",
    "has an inner message with the offset {0}, which contradicts the set's offset {1} or the message before it",
    "begins at offset {0} and reaches beyond its log, which ends before offset {1}",
    "has at least {0} record headers, but max_batch_bytes leaves room for only {1}",
)

# Faults up to this number hide the batch's end: a wrong length, an unknown magic, and more bytes than allowed.
_LAST_FRAMING_FAULT: Final = 3


def _sentence(fault: tuple[int, int, int]) -> str:
    """Describe the fault, to follow "the record batch at byte ..."."""
    kind, first, second = fault
    return _SENTENCES[kind].format(first, second)


class RecordDecoder:
    """Decodes logs into Arrow record batches with ``columns``, in their order.

    ``on_corrupt`` decides about a damaged batch. ``fail`` yields the records before the damaged batch, then raises
    BatchCorruptError. ``skip`` leaves the batch out and lists it in :attr:`skipped`. If the length or magic of a batch
    is damaged, the next batch cannot be found, so BatchCorruptError is always raised.

    An Arrow record batch has at most 131,072 rows, and about ``target_bytes`` of keys, values and headers. It has at
    most twice ``target_bytes``, except for a single larger record. ``max_batch_bytes`` limits the stored and the
    decompressed size of one Kafka batch. Memory stays within a small multiple of these two limits.

    A decoder is for one thread. Decoders of several threads run in parallel, because they work without the
    interpreter's lock.
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
        self._scanner: Scanner | None = None
        self._reading: LogReading | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of all record batches."""
        return self._columns.schema

    @property
    def offset_reached(self) -> int:
        """The last offset of the batches read in the last log, plus 1. Offsets of control batches, aborted transactions
        and compacted records count as read. The value is final once the iterator is exhausted.
        """
        return 0 if self._reading is None else self._reading.last_offset + 1

    @property
    def stopped_at(self) -> int | None:
        """The position in the last log at which reading stopped, or None if reading reached the log's end. The position
        is between two batches. All later batches are at the stop offset or beyond.

        The value is final once the iterator is exhausted.
        """
        return self._reading.position if self._reading is not None and self._reading.is_stopped else None

    @property
    def ended_in_zeros(self) -> bool:
        """True if the last log ended in zeros, as a preallocated log does. The value is final once the iterator is
        exhausted.
        """
        return self._reading is not None and self._reading.ended_in_zeros

    @property
    def skipped(self) -> Sequence[SkippedBatch]:
        """The damaged batches that were left out of the last log."""
        return self._reading.skipped if self._reading else ()

    def take_headers(self) -> list[BatchHeader]:
        """Return the headers of all batches that were read since the last call, if ``keep_headers``.

        Control batches and batches of aborted transactions are included, damaged batches are not. Positions are
        positions in the log. Until this call, headers take 104 bytes per batch. After a record batch is yielded, the
        headers of all batches that it came from are available.
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
        """Yield the records with offsets in ``[start_offset, stop_offset)`` of one log. No record batch is empty.

        ``pieces`` are consecutive bytes of the log, cut anywhere. The first piece begins with a batch, at byte
        ``position`` of the log. A piece must not change until the next piece is requested. After the stop offset, no
        piece is requested.

        ``end_offset`` is the log's last offset plus 1. A batch beyond it is damaged, even if the batch's CRC matches:
        the CRC does not cover the offset.

        Records of ``aborted`` transactions and control records are left out. Zeros up to the end of a log, as in a
        preallocated log, are ignored. The decoder's properties describe its latest ``decode``.

        Raise BatchCorruptError for damage, and for a log that ends inside a batch.
        """
        stop = MAX_OFFSET if stop_offset is None else stop_offset
        if not 0 <= start_offset <= stop <= MAX_OFFSET:
            raise InvalidRangeError(f"offsets {start_offset} to {stop_offset} are not a range")
        scanner = Scanner(
            self._pool, self._columns.wanted, start_offset, stop, end_offset, merge_aborted(aborted),
            self._check_crc, self._keep_headers, self._max_batch_bytes, self._target_bytes,
            # Each log needs its own decompressor. The decompressor's memory holds a body while record batches of that
            # body are yielded.
            Decompressor(self._pool, self._max_batch_bytes).decompress,
        )  # fmt: skip
        self._scanner = scanner
        self._reading = LogReading(
            scanner, self._columns, self._on_corrupt,
            position=position, worth_giving=self._target_bytes // 4,
        )  # fmt: skip
        return self._reading.read(pieces if start_offset < stop else ())

    def leave_out(self, aborted: Iterable[AbortedTransaction]) -> None:
        """From the next piece on, leave out the records of exactly these transactions.

        Call this method if you learn of aborted transactions only while you provide the pieces of the log.
        """
        if self._scanner is not None:
            self._scanner.leave_out(merge_aborted(aborted))


def merge_aborted(aborted: Iterable[AbortedTransaction]) -> list[tuple[int, int, int]]:
    """Return sorted (producer id, first offset, last offset). Overlapping entries are merged, because the same
    transaction may be given twice.
    """
    merged: list[tuple[int, int, int]] = []
    for producer, first, last in sorted((a.producer_id, a.first_offset, a.last_offset) for a in aborted):
        if merged and merged[-1][0] == producer and first <= merged[-1][2]:
            merged[-1] = (producer, merged[-1][1], max(last, merged[-1][2]))
        else:
            merged.append((producer, first, last))
    return merged
