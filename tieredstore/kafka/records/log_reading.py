"""One log on its way through the kernel: pieces in, record batches out."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from tieredstore.errors import BatchCorrupt
from tieredstore.kafka.batches import FRAME_SIZE, BatchHeader, Buffer, first_batch_size
from tieredstore.kafka.records._kernel import Scanner
from tieredstore.kafka.records.columns import RecordColumns

# The states of the kernel, in its order.
_PIECE_READ, _PARTIAL_BATCH, _COLUMNS_FULL, _STOP_REACHED, _ZERO_TAIL, _FAULTY = range(6)

_LEAST_FRAME: Final = 17
"""What the kernel must see of a batch to judge its length and magic."""

OnCorrupt: TypeAlias = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class SkippedBatch:
    """A damaged batch that was left out: its place in the log, the base offset that it gives itself, and the reason."""

    position: int
    size_in_bytes: int
    base_offset: int
    reason: str


class LogReading:
    """One log, from a batch border at byte ``position`` on; :meth:`read` is called once."""

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
        self._position = position
        self._worth_giving = worth_giving
        self._state = _PIECE_READ
        self._in_zeros = False
        self.skipped: list[SkippedBatch] = []

    @property
    def ended_in_zeros(self) -> bool:
        """Whether zeros ended the log, and no batch."""
        return self._in_zeros

    @property
    def position(self) -> int:
        """The byte of the log up to which batches were walked over."""
        return self._position

    @property
    def last_offset(self) -> int:
        """The last offset of the batches walked over, -1 before the first."""
        return self._scanner.last_offset

    @property
    def is_stopped(self) -> bool:
        """True once all further batches are known to lie at the stop offset or beyond."""
        return self._state == _STOP_REACHED

    def take_headers(self) -> list[BatchHeader]:
        """The headers of the batches walked over since the last call."""
        return [BatchHeader(*fields) for fields in self._scanner.take_headers()]

    def read(self, pieces: Iterable[Buffer]) -> Iterator[pa.RecordBatch]:
        """See RecordDecoder.decode."""
        rest = bytearray()
        for piece in pieces:
            with memoryview(piece) as whole, whole.cast("B") as view:
                # A batch that the last piece cut is completed first, with no more bytes than it lacks: all that
                # follows is decoded where it lies, without a copy.
                consumed = 0
                while rest and consumed < len(view):
                    taken = min(_needed(rest), len(view) - consumed)
                    rest += view[consumed : consumed + taken]
                    consumed += taken
                    if len(rest) >= _LEAST_FRAME:
                        yield from self._walk_rest(rest)
                # Whole batches of the piece; what is left is the beginning of one, and is kept.
                if not rest and self._state != _STOP_REACHED:
                    with view[consumed:] as unread:
                        walked = yield from self._walk(unread)
                        rest += unread[walked:]
            if self._state == _STOP_REACHED:
                break
        yield from self._flush()
        if self._state != _STOP_REACHED:
            self._expect_end(rest)

    def _walk_rest(self, rest: bytearray) -> Iterator[pa.RecordBatch]:
        """A batch that pieces have cut, as soon as it is whole or known to be none."""
        walked = yield from self._walk(rest)
        del rest[: len(rest) if self._state == _STOP_REACHED else walked]

    def _walk(self, piece: memoryview | bytearray) -> Generator[pa.RecordBatch, None, int]:
        """The records of all batches that are whole in the piece; returns the bytes of those batches."""
        # Once zeros have begun, they may only go on: preallocated space is never written between.
        if self._in_zeros:
            _expect_zeros(piece, self._position)
            self._position += len(piece)
            return len(piece)
        self._scanner.set_piece(piece, self._position)
        try:
            yield from self._walk_batches()
            walked = self._scanner.place
        finally:
            # Buffers that are not ours, a map of a file among them, can be closed only when nothing refers to them.
            self._scanner.release()
        if self._state == _ZERO_TAIL:
            self._in_zeros, walked = True, len(piece)
        self._position += walked
        return walked

    def _walk_batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                self._state = self._scanner.scan()
                problem = sentence(self._scanner.fault) if self._state == _FAULTY else None
            except BatchCorrupt as error:
                self._state, problem = _FAULTY, str(error)
            if problem is not None:
                yield from self._pass_over(problem)
            # At a piece's end records are given early if they are many enough: whoever waits for them need not wait
            # for another piece.
            elif self._state == _COLUMNS_FULL or self._scanner.pending_bytes >= self._worth_giving:
                yield from self._flush()
            if problem is None and self._state != _COLUMNS_FULL:
                return

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if (taken := self._scanner.columns.take()) is not None:
            yield self._columns.build(taken)

    def _pass_over(self, problem: str) -> Iterator[pa.RecordBatch]:
        """The damaged batch at hand, by the policy; the records before it are given first."""
        position, size, base_offset = self._scanner.batch_at_hand
        # Where the frame itself is damaged there is nothing to skip to, whatever the policy.
        lost = hides_next_batch(self._scanner.fault)
        if lost or self._on_corrupt == "fail":
            yield from self._flush()
            raise BatchCorrupt(
                f"the record batch at byte {position}{'' if lost else f' (offset {base_offset})'} {problem}"
            )
        self.skipped.append(SkippedBatch(position, size, base_offset, problem))
        self._scanner.skip_batch()

    def _expect_end(self, rest: bytearray) -> None:
        """Fewer than 12 zeros may be how a cut-off batch begins; 12 cannot, since no length is 0."""
        if rest and (len(rest) < FRAME_SIZE or any(rest)) and not self._in_zeros:
            raise BatchCorrupt(f"the log ends {len(rest)} bytes into the record batch at byte {self._position}")
        self._in_zeros = self._in_zeros or bool(rest)


def _needed(rest: bytearray) -> int:
    """How many bytes are missing until the batch that ``rest`` begins with can be judged, or is whole."""
    size = first_batch_size(rest)
    return max(size or 0, _LEAST_FRAME) - len(rest)


def _expect_zeros(piece: memoryview | bytearray, position: int) -> None:
    if bytes(piece) != bytes(len(piece)):
        raise BatchCorrupt(f"the log goes on at byte {position} or later, behind zeros that end it")


# By the kernel's numbers of its faults, whose two operands are put in; 0 is no fault.
_SENTENCES: Final = (
    "",
    "has the impossible length {0}",
    "has the unknown magic {0}",
    "has {0} bytes, and max_batch_bytes allows {1}",
    "has {0} bytes, fewer than its header",
    "has offsets {0} + {1}",
    "has {0} records for {1} offsets",
    "has the unknown compression type {0}",
    "begins at offset {0}, not after offset {1} of the batch before it",
    "is damaged: its CRC is {0:08x}, and {1:08x} was written",
    "has {0} records in only {1} bytes",
    "has a record, number {0} of {1}, that does not agree with its size",
    "has a record, number {0}, whose offset delta {1} is not between its neighbours' or outside of the batch",
    "has a record, number {0} of {1}, with malformed headers",
    "has {0} bytes left after its {1} records",
    "is a message whose parts do not agree with its {0} bytes",
    "has an inner message, number {0}, that is malformed, compressed, or not of magic {1}",
    "has an inner message, number {0}, that is damaged: its CRC does not hold",
    "is a compressed message set without messages",
    "has inner messages at offset {0}, outside of the place that its own offset {1} gives them",
    "begins at offset {0}, and its log ends before offset {1}",
    "has {0} headers or more, and max_batch_bytes leaves room for {1}",
)

# Length, magic, more bytes than allowed: of these the batch's end is not known.
_LAST_FRAMING_FAULT: Final = 3


def sentence(fault: tuple[int, int, int]) -> str:
    """What is wrong, to follow "the record batch at byte ..."."""
    kind, first, second = fault
    return _SENTENCES[kind].format(first, second)


def hides_next_batch(fault: tuple[int, int, int]) -> bool:
    """True where the batch's own frame is damaged, so that nothing says where the next batch begins."""
    return 0 < fault[0] <= _LAST_FRAMING_FAULT
