"""Checks of a log: every byte at level data, samples at level index.

Each chunk must open. Batches must be whole, in order and at the right positions, and agree with the indexes. This
module checks the inside of one segment. Only ``verification`` imports this module. ``verification`` itself checks the
sequence of segments.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.errors import BatchCorruptError, SegmentCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.kafka._runs import BatchRun
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, next_batch_header, walk_batch_headers
from tieredstore.kafka.end_markers import ABORT, MARKER_BYTES, marker_kind
from tieredstore.kafka.indexes import OffsetIndexEntry, read_offset_index, read_time_index
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import ByteRange
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.indexes import CheckedIndexes, end_findings
from tieredstore.ops.verification.selection import MOST_FINDINGS, Subject

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.kafka.indexes import OffsetIndex
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.remote.fetch.stream import SegmentStream


_VIEW_SIZE: Final = HEADER_SIZE + MARKER_BYTES


class LogWalk:
    """Reads the bytes of a log forward. Only :meth:`jump` can go back. Not thread-safe.

    The methods raise the stream's errors. A SegmentCorruptError means that the chunk at :attr:`end` cannot be decrypted
    or decompressed.
    """

    def __init__(self, stream: SegmentStream, size: int) -> None:
        self._stream = stream
        self._size = size
        self.jump(0)

    @property
    def end(self) -> int:
        """The position after the last loaded byte."""
        return self._begin + len(self._chunk)

    def jump(self, position: int) -> None:
        """Continue at any other position."""
        self._stream.seek(position)
        self._chunks = self._stream.chunks()
        self._begin, self._chunk = position, memoryview(b"")
        self._tail = b""

    def skip_to(self, position: int) -> None:
        """Load all chunks up to a position. Each of them is decrypted and decompressed, and so checked."""
        while self.end < position:
            self._load(b"")

    def view(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on. These are at least a batch's header and marker, unless the log ends
        before.

        Readers of batch headers use this method as ``LogView``.
        """
        first = position - self._begin
        if first >= 0 and first + _VIEW_SIZE <= len(self._chunk):
            return self._chunk[first:]
        wanted = min(position + _VIEW_SIZE, self._size)
        self.skip_to(position)
        while self.end < wanted:
            self._load(self._bytes_from(position))
        if position >= self._begin:
            return self._chunk[position - self._begin :]
        return memoryview(self._bytes_from(position, _VIEW_SIZE))

    def peek(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on that are loaded already. The result may be empty."""
        first = position - self._begin
        return self._chunk[first:] if first >= 0 else self._chunk[:0]

    def checksum(self, header: BatchHeader) -> int:
        """Compute the checksum of the batch with this header, which must be the batch that :meth:`view` returned
        last."""
        crc = crc32c.crc32c if header.magic == 2 else zlib.crc32
        position = header.position + (21 if header.magic == 2 else 16)
        stop, value = header.position + header.size_in_bytes, 0
        while position < stop:
            piece = self._piece(position, stop)
            value = crc(piece, value)
            position += len(piece)
        return value

    def _piece(self, start: int, stop: int) -> memoryview:
        """Return one or more bytes from ``start`` up to ``stop``. The bytes are valid until the next load."""
        if start < self._begin:
            return memoryview(self._tail_from(start))[: stop - start]
        self.skip_to(start + 1)
        return self._chunk[start - self._begin : stop - self._begin]

    def _bytes_from(self, position: int, size: int | None = None) -> bytes:
        """Return the loaded bytes from ``position`` on, at most ``size``."""
        kept = self._tail_from(position) if position < self._begin else b""
        first = max(position - self._begin, 0)
        more = None if size is None else first + max(size - len(kept), 0)
        return kept + bytes(self._chunk[first:more])

    def _tail_from(self, position: int) -> bytes:
        """Return the kept bytes from ``position`` up to the loaded chunk."""
        first = len(self._tail) - (self._begin - position)
        # Raise an error, because the caller would otherwise check empty or wrong bytes.
        if first < 0:
            raise AssertionError(f"byte {position} of the log was passed: {len(self._tail)} bytes are kept")
        return self._tail[first:]

    def _load(self, tail: bytes) -> None:
        """Load the next chunk. Keep ``tail``: the bytes before the chunk that are still needed."""
        end = self.end
        # Store the tail first, because the request for the next chunk invalidates the bytes of the present chunk.
        self._tail = tail
        self._begin, self._chunk = end, memoryview(b"")
        self._chunk = next(self._chunks)


class BatchChecks:
    """Checks the batches of a log in order, each while its bytes are still available. Not thread-safe.

    Each fault is reported once: after a fault, the batch is not compared any further. Most fields are expected values,
    which are looked up once for millions of batches. The other fields hold the progress: the findings, the previous
    batch, and the open transactions.
    """

    def __init__(self, subject: Subject, stored: StoredSegment, indexes: CheckedIndexes) -> None:
        self.subject = subject
        self.stored = stored
        self.findings: list[Finding] = []
        self.is_sound = True
        """True if all batches were checked, and none was damaged or misplaced."""
        self._metadata = stored.metadata
        self._chunks = stored.manifest.chunk_index
        self._positions = stored.manifest.chunk_index.positions()
        epochs = indexes.epochs or self._metadata.segment_leader_epochs
        self._epochs = [epoch for epoch, _ in epochs]
        self._epoch_starts = [start for _, start in epochs]
        self._pending: BatchHeader | None = None
        """The latest batch. Its offsets are confirmed by the next batch."""
        self._is_damaged = False
        start = self._metadata.start_offset
        self._offsets = indexes.offsets or read_offset_index(b"", start)
        self._times = indexes.times or read_time_index(b"", start)
        # A ``BatchRun`` is native code that checks nearly all batches, many in one call. It also counts how far the
        # log and the indexes have been compared.
        self._run = BatchRun(start, *self._offsets.columns, *self._times.columns)
        aborted = indexes.aborted or ()
        self._aborted = {(entry.producer_id, entry.last_offset): entry for entry in aborted}
        self._stable = max((entry.last_stable_offset for entry in aborted), default=-1)
        self._known_open = indexes.opened or {}
        self._run.follows_transactions = (
            indexes.aborted is not None or stored.manifest.segment_indexes.transaction is None
        )
        self._opened: dict[int, int] = {}
        """The first offset of each open transaction in this log, by producer id."""
        self._ended: dict[int, int] = {}
        """The offset of each producer's latest marker."""

    @property
    def last_offset(self) -> int:
        """The last offset of the last whole batch; -1 if there is no such batch, or if later batches were skipped."""
        return self._run.last_offset

    def add(self, finding: Finding) -> None:
        """Add a finding. If there are too many findings, keep only the first ones."""
        if len(self.findings) == MOST_FINDINGS:
            finding = self.subject.finding(FindingKind.MANY_MORE, "further findings are not listed", Suffix.LOG)
        if len(self.findings) <= MOST_FINDINGS:
            self.findings.append(finding)

    def report(
        self, kind: FindingKind, detail: str, log_range: ByteRange, offsets: tuple[int, int] | None = None
    ) -> None:
        """Add a finding about a range of the log."""
        self.add(self.subject.finding(kind, detail, Suffix.LOG, self._stored_range(log_range), offsets))

    def _stored_range(self, log_range: ByteRange) -> ByteRange:
        """Return the range in the stored object. In a transformed log, it covers whole chunks."""
        is_transformed = self.stored.manifest.compression or self.stored.manifest.encryption is not None
        if not is_transformed or not len(log_range):
            return log_range
        chunks = self._chunks.chunks_of(log_range)
        return ByteRange(self._positions[chunks.start], self._positions[chunks.stop])

    def take_run(self, log: LogWalk, position: int, last_offset: int) -> tuple[int, int]:
        """Check the loaded batches from ``position`` on, up to the first batch that needs a closer look.

        ``last_offset`` is the last offset of the previous batch. Return the position after the last checked batch, and
        the last offset of that batch.
        """
        before, run = self._pending, self._run
        pending = None
        if before is not None:
            pending = (
                before.position, before.size_in_bytes, before.base_offset, before.last_offset,
                before.max_timestamp, before.partition_leader_epoch,
            )  # fmt: skip
        taken = run.walk(log.peek(position), position, last_offset, pending)
        if taken:
            self._pending = latest = BatchHeader(*run.header)
            self._is_damaged = False
            last_offset = latest.last_offset
        return position + taken, last_offset

    def take(self, header: BatchHeader, log: LogWalk) -> None:
        """Check the next batch."""
        self._settle()
        # Read the marker first, because computing the checksum may load further chunks.
        marker = _marker_of(header, log) if header.is_control else b""
        self._is_damaged = (crc := log.checksum(header)) != header.crc
        if self._is_damaged:
            detail = f"the CRC of the batch at byte {header.position} of the log is {crc:08x}, not {header.crc:08x}"
            self.report(FindingKind.BATCH_CRC, detail, _byte_range(header), _offsets(header))
            # Any number in this header may be wrong, so do not compare later batches with it.
            self._distrust()
            return
        self._run.last_offset = header.last_offset
        if header.base_offset < self._metadata.start_offset:
            self._report_misplaced(header, f"before the segment's first offset, {self._metadata.start_offset}")
            return
        self._run.max_timestamp = max(self._run.max_timestamp, header.max_timestamp)
        self._pending = header
        if header.is_transactional and self._run.follows_transactions:
            self._take_transactional(header, marker)

    def out_of_order(self, header: BatchHeader) -> None:
        """Report the misplaced batch: the batch of ``header``, or the previous batch if it ends after the segment."""
        before, end = self._pending, self._metadata.end_offset
        if before is not None and 0 <= end < before.last_offset:
            self._report_misplaced(before, f"beyond the segment's last offset, {end}")
        elif not self._is_damaged:
            self._report_misplaced(header, f"not after offset {self.last_offset} of the previous batch")

    def note_loss(self) -> None:
        """Note that batches were skipped."""
        self._distrust()
        self._run.last_offset = -1

    def finish(self) -> None:
        """Make the checks that are possible only at the end of the log."""
        self._settle()
        if not self.is_sound:
            return
        run = self._run
        if run.next_entry < len(self._offsets):
            entry = self._offsets[run.next_entry]
            self.index_finding(f"{_show(entry)} leads to no batch that ends at that offset")
        if run.next_time < len(self._times):
            offset = self._times[run.next_time].offset
            self._time_finding(f"it has offset {offset}, but the last batch ends at {self.last_offset}")
        said = self._metadata.max_timestamp_ms
        # If no record has a timestamp, a broker writes the time at which the log was last modified.
        if min(said, run.max_timestamp) >= 0 and run.max_timestamp != said:
            detail = f"the greatest timestamp of the records is {run.max_timestamp}, but the manifest says {said}"
            self.add(self.subject.finding(FindingKind.MAX_TIMESTAMP, detail, Suffix.MANIFEST))
        if not run.follows_transactions:
            return
        if self._aborted:
            offset, producer = min((offset, producer) for producer, offset in self._aborted)
            self._txn_finding(f"no marker at offset {offset} ends a transaction of producer {producer}")
        else:
            self._check_stable()

    def index_finding(self, detail: str) -> None:
        """Report a fault of the offset index. Do not check its other entries, because one finding is enough."""
        self._run.next_entry = len(self._offsets)
        self._add_of_index(FindingKind.OFFSET_INDEX, "offset", detail)

    def _time_finding(self, detail: str) -> None:
        self._run.next_time = len(self._times)
        self._add_of_index(FindingKind.TIME_INDEX, "time", detail)

    def _txn_finding(self, detail: str) -> None:
        self._run.follows_transactions = False
        self._aborted.clear()
        self._add_of_index(FindingKind.TRANSACTION_INDEX, "transaction", detail)

    def _add_of_index(self, kind: FindingKind, name: str, detail: str) -> None:
        self.add(self.subject.finding(kind, f"the {name} index does not match the log: {detail}", Suffix.INDEXES))

    def _report_misplaced(self, header: BatchHeader, why: str) -> None:
        where = (
            f"the batch at byte {header.position} of the log has offsets {header.base_offset} to {header.last_offset}"
        )
        self.report(FindingKind.BATCH_OFFSETS, f"{where}, {why}", _byte_range(header), _offsets(header))
        self._distrust()

    def _distrust(self) -> None:
        """Stop comparing batches with their neighbours and the indexes."""
        self.is_sound = False
        self._pending = None
        self._run.drop_indexes()

    def _check_epoch(self, header: BatchHeader) -> None:
        run = self._run
        if header.base_offset >= run.epoch_stop:
            number = bisect_right(self._epoch_starts, header.base_offset)
            run.epoch = self._epochs[max(number - 1, 0)] if self._epochs else NO_EPOCH
            run.epoch_stop = self._epoch_starts[number] if number < len(self._epochs) else MAX_OFFSET
        epoch = header.partition_leader_epoch
        # Ignore unknown epochs. Batches of old formats have no epoch, and some segments have no epochs in their
        # indexes.
        if epoch != run.epoch and NO_EPOCH not in (epoch, run.epoch):
            detail = (
                f"the batch at byte {header.position} of the log has the leader epoch {epoch}, but {run.epoch} was "
                "in force"
            )
            self.report(FindingKind.BATCH_EPOCH, detail, _byte_range(header), _offsets(header))

    def _settle(self) -> None:
        """Compare the latest batch with the leader epochs and the indexes. The batch's offsets are confirmed by now."""
        if self._pending is None:
            return
        header, run = self._pending, self._run
        self._pending = None
        self._check_epoch(header)
        while run.next_entry < len(self._offsets) and self._hold_against(header, self._offsets[run.next_entry]):
            run.next_entry += 1
        while run.next_time < len(self._times) and (time := self._times[run.next_time]).offset <= header.last_offset:
            run.next_time += 1
            # The time index entry's offset must be in the batch with the greatest timestamp so far.
            if not time.timestamp == run.max_timestamp == header.max_timestamp:
                detail = (
                    f"it has timestamp {time.timestamp} at offset {time.offset}, but the greatest timestamp is "
                    f"{header.max_timestamp} in the batch and {run.max_timestamp} in the log so far"
                )
                self._time_finding(detail)

    def _hold_against(self, header: BatchHeader, entry: OffsetIndexEntry) -> bool:
        """Return True if the entry belongs to this batch. An entry of the offset index has the position and the last
        offset of one append to the log.
        """
        if header.position + header.size_in_bytes <= entry.position:
            return False
        if entry.position > header.position:
            self.index_finding(f"{_show(entry)} leads into a batch")
        elif header.last_offset > entry.offset:
            self.index_finding(f"{_show(entry)} has an offset at which no batch ends")
        return header.last_offset == entry.offset and self._run.next_entry < len(self._offsets)

    def _take_transactional(self, header: BatchHeader, marker: bytes) -> None:
        producer, offset = header.producer_id, header.last_offset
        if not header.is_control:
            self._opened.setdefault(producer, header.base_offset)
            self._run.begin_transaction(producer)
            return
        self._run.end_transactions()
        entry, first = self._aborted.pop((producer, offset), None), self._opened.pop(producer, None)
        before, self._ended[producer] = self._ended.get(producer), offset
        what = f"the transaction of producer {producer} that the marker at offset {offset}"
        if marker_kind(marker) != ABORT:
            if entry is not None:
                self._txn_finding(f"it has {what} commits")
        elif entry is None:
            # Skip a marker without records before it. Such a marker ends nothing, and Kafka does not index it.
            if first is not None:
                self._txn_finding(f"it lacks {what} aborts")
        # Ignore differences that result from other producers' records or from compaction. Such differences do not
        # matter to readers.
        elif first is not None and first < entry.first_offset:
            self._txn_finding(
                f"it gives {entry.first_offset} as the first offset of {what} aborts, but the transaction's first "
                f"record is at {first}"
            )
        elif before is not None and entry.first_offset <= before:
            self._txn_finding(
                f"it gives {entry.first_offset} as the first offset of {what} aborts, but the transaction before it "
                f"ends at {before}"
            )

    def _check_stable(self) -> None:
        """Check the greatest last stable offset in the transaction index, because readers do not look for aborted
        transactions beyond this offset.
        """
        opened = min(self._opened.values(), default=self.last_offset + 1)
        limit = min([opened, *self._known_open.values()])
        if self._stable > limit:
            self._txn_finding(
                f"it has the last stable offset {self._stable}, but according to the log it can be at most {limit}"
            )


def _marker_of(header: BatchHeader, log: LogWalk) -> bytes:
    """Return the first bytes of a control batch's records."""
    return bytes(log.view(header.position)[HEADER_SIZE : min(header.size_in_bytes, HEADER_SIZE + MARKER_BYTES)])


def _show(entry: OffsetIndexEntry) -> str:
    return f"its entry of offset {entry.offset} at byte {entry.position}"


def _byte_range(header: BatchHeader) -> ByteRange:
    return ByteRange(header.position, header.position + header.size_in_bytes)


def _offsets(header: BatchHeader) -> tuple[int, int]:
    return header.base_offset, header.last_offset


@dataclass(frozen=True, slots=True)
class LogResult:
    """The findings in a log. ``last_offset`` is that of the last batch: -1 without a batch, None if unknown."""

    findings: list[Finding]
    last_offset: int | None


def check_data(
    manager: RemoteStorageManager, subject: Subject, stored: StoredSegment, indexes: CheckedIndexes
) -> LogResult:
    """Read and check every byte of the log. Raise SegmentNotFoundError if it was deleted since the listing."""
    checks = BatchChecks(subject, stored, indexes)
    with manager.open(stored.metadata) as stream:
        log = LogWalk(stream, stored.metadata.segment_size_in_bytes)
        zeros = _DataWalk(log, checks, indexes.offsets).run()
    checks.finish()
    if checks.is_sound:
        checks.findings.extend(end_findings(subject, stored.metadata.end_offset, checks.last_offset, zeros))
    return LogResult(checks.findings, checks.last_offset if checks.is_sound else None)


def check_pointers(
    manager: RemoteStorageManager, subject: Subject, stored: StoredSegment, index: OffsetIndex
) -> LogResult:
    """Check that the first, middle and last entry of the offset index lead to batches.

    The check also reads the batches from the index's last entry to the end of the log. The last batch must end where
    the segment ends. The check costs one request for each chunk that is reached, usually three.
    """
    checks = BatchChecks(subject, stored, CheckedIndexes())
    with manager.open(stored.metadata) as stream:
        look = _PointerLook(LogWalk(stream, stored.metadata.segment_size_in_bytes), checks, index)
        for number in sorted({0, len(index) // 2}):
            if number < len(index) - 1:
                look.check_entry(number)
        look.check_end()
    return LogResult(checks.findings, look.last_offset)


def _chunk_finding(checks: BatchChecks, log: LogWalk, error: SegmentCorruptError) -> ByteRange:
    """Report that the next chunk to load does not open. Return the chunk's range in the log."""
    index = checks.stored.manifest.chunk_index
    chunk = index.original_range(index.chunk_at(log.end))
    checks.report(FindingKind.CHUNK_DAMAGED, str(error), chunk)
    return chunk


class _PointerLook:
    """Checks a log at some entries of its offset index."""

    def __init__(self, log: LogWalk, checks: BatchChecks, index: OffsetIndex) -> None:
        self._log = log
        self._checks = checks
        self._index = index
        self._metadata = checks.stored.metadata
        self._size = self._metadata.segment_size_in_bytes
        self.last_offset: int | None = None

    def check_entry(self, number: int) -> None:
        position = self._index[number].position
        self._log.jump(position)
        try:
            self._check_first(number, next(walk_batch_headers(self._log.view, self._size, position), None))
        except BatchCorruptError as error:
            self._checks.index_finding(f"its entry {number} leads to no batch: {error}")
        except SegmentCorruptError as error:
            _chunk_finding(self._checks, self._log, error)

    def check_end(self) -> None:
        """Check the log from the index's last entry on. If the index is empty, check the whole log, which is short."""
        number = len(self._index) - 1
        start = position = self._index[number].position if number >= 0 else 0
        last = -1
        self._log.jump(position)
        try:
            for header in walk_batch_headers(self._log.view, self._size, position):
                if position == start and number >= 0 and not self._check_first(number, header):
                    return
                last, position = header.last_offset, header.position + header.size_in_bytes
        except BatchCorruptError as error:
            if position == start and number >= 0:
                self._checks.index_finding(f"its entry {number} leads to no batch: {error}")
            else:
                self._checks.report(FindingKind.BATCH_STRUCTURE, str(error), ByteRange(position, self._size))
        except SegmentCorruptError as error:
            _chunk_finding(self._checks, self._log, error)
        else:
            self.last_offset = last
            zeros = self._size - position
            for finding in end_findings(self._checks.subject, self._metadata.end_offset, last, zeros):
                self._checks.add(finding)

    def _check_first(self, number: int, header: BatchHeader | None) -> bool:
        """Return True if the batch at an entry's position may contain the entry's offset. Otherwise report the
        entry."""
        entry = self._index[number]
        least = self._index[number - 1].offset + 1 if number else self._index.base_offset
        if header is not None and least <= header.base_offset <= entry.offset:
            return True
        what = "nothing is there" if header is None else f"the batch there begins at offset {header.base_offset}"
        self._checks.index_finding(f"its entry {number} is offset {entry.offset} at byte {entry.position}, but {what}")
        return False


class _DataWalk:
    """Reads a whole log, and continues after damage. ``run`` returns the number of zeros at the end."""

    def __init__(self, log: LogWalk, checks: BatchChecks, index: OffsetIndex | None) -> None:
        self._log = log
        self._checks = checks
        self._size = checks.stored.metadata.segment_size_in_bytes
        self._index = index
        self._reached = 0

    def run(self) -> int:
        position, tried = 0, -1
        while position < self._size:
            try:
                self._take_from(position, is_out_of_order=position == tried > 0)
            except SegmentCorruptError as error:
                position = self._pass_chunk(error)
            except BatchCorruptError as error:
                # Check again without the batches before this point. If the following batches are then readable, they
                # are only misplaced.
                if self._reached != tried:
                    position = tried = self._reached
                    self._log.jump(position)
                else:
                    position = self._pass_batches(tried, error)
            else:
                if zeros := self._size - self._reached:
                    detail = f"the log ends in {zeros} bytes of zeros"
                    self._checks.report(FindingKind.TRAILING_ZEROS, detail, ByteRange(self._reached, self._size))
                return zeros
        return 0

    def _take_from(self, position: int, *, is_out_of_order: bool) -> None:
        """Check all batches from ``position`` on. Where possible, check many in one call; check the others one by
        one."""
        self._reached, last_offset = position, -1
        while True:
            if not is_out_of_order:
                self._reached, last_offset = self._checks.take_run(self._log, self._reached, last_offset)
            header = next_batch_header(self._log.view, self._size, self._reached, last_offset)
            if header is None:
                return
            if is_out_of_order:
                self._checks.out_of_order(header)
                is_out_of_order = False
            self._checks.take(header, self._log)
            self._reached, last_offset = header.position + header.size_in_bytes, header.last_offset

    def _pass_chunk(self, error: SegmentCorruptError) -> int:
        """Report the chunks from here to the next readable batch as unreadable. Return the position of this batch."""
        while True:
            behind = _chunk_finding(self._checks, self._log, error).stop
            try:
                return self._resume(behind)
            except SegmentCorruptError as another:
                error = another

    def _pass_batches(self, position: int, error: BatchCorruptError) -> int:
        """Report bytes that are no batch. Return the position of the next batch."""
        self._checks.report(
            FindingKind.BATCH_STRUCTURE, str(error), ByteRange(position, self._next_batch(position + 1))
        )
        try:
            return self._resume(position + 1)
        except SegmentCorruptError as another:
            return self._pass_chunk(another)

    def _resume(self, position: int) -> int:
        """Open all chunks up to the next position where a batch is known to begin. Return this position."""
        self._checks.note_loss()
        self._log.jump(position)
        resumed = self._next_batch(position)
        self._log.skip_to(resumed)
        self._log.jump(resumed)
        return resumed

    def _next_batch(self, position: int) -> int:
        index = self._index or ()
        number = bisect_left(index, position, key=lambda entry: entry.position)
        return index[number].position if number < len(index) else self._size
