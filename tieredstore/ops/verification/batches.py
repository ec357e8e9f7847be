"""The batches of one log as they come by: in bounds, in order, whole, and as the indexes say."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import NO_EPOCH
from tieredstore.format.keys import Suffix
from tieredstore.kafka._runs import BatchRun
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader
from tieredstore.kafka.end_markers import ABORT, MARKER_BYTES, marker_kind
from tieredstore.kafka.indexes import OffsetIndexEntry, read_offset_index, read_time_index
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import ByteRange
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.indexes import CheckedIndexes
from tieredstore.ops.verification.subject import MOST_FINDINGS, Subject

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.ops.verification.log_walk import LogWalk


class BatchChecks:
    """Takes the headers of a log's batches in order, each while its bytes can still be walked over. For one thread.

    One cause is told once: what is compared with a batch that is not as it should be is left out.
    """

    def __init__(self, subject: Subject, stored: StoredSegment, indexes: CheckedIndexes) -> None:
        self.subject = subject
        self.stored = stored
        self.findings: list[Finding] = []
        self.is_sound = True
        """Whether all batches were taken, and none was damaged or in the wrong place."""
        self._metadata = stored.metadata
        self._chunks = stored.manifest.chunk_index
        self._positions = stored.manifest.chunk_index.positions()
        epochs = indexes.epochs or self._metadata.segment_leader_epochs
        self._epochs = [epoch for epoch, _ in epochs]
        self._epoch_starts = [start for _, start in epochs]
        self._pending: BatchHeader | None = None
        """The latest batch: the next one tells whether its offsets are right."""
        self._is_damaged = False
        start = self._metadata.start_offset
        self._offsets = indexes.offsets or read_offset_index(b"", start)
        self._times = indexes.times or read_time_index(b"", start)
        # How far the log and its indexes are seen, here as there: nearly all batches are taken by runs.
        self._run = BatchRun(start, *self._offsets.columns, *self._times.columns)
        aborted = indexes.aborted or ()
        self._aborted = {(entry.producer_id, entry.last_offset): entry for entry in aborted}
        self._stable = max((entry.last_stable_offset for entry in aborted), default=-1)
        self._known_open = indexes.opened or {}
        self._run.follows_transactions = (
            indexes.aborted is not None or stored.manifest.segment_indexes.transaction is None
        )
        self._opened: dict[int, int] = {}
        """Producers whose transactions are open, and the first offset of each in this log."""
        self._ended: dict[int, int] = {}
        """The latest marker of each producer."""

    @property
    def last_offset(self) -> int:
        """That of the last batch that was whole; -1 if there was none, or if some were passed over since."""
        return self._run.last_offset

    def add(self, finding: Finding) -> None:
        """One more; of many only the first are kept."""
        if len(self.findings) == MOST_FINDINGS:
            finding = self.subject.finding(FindingKind.MANY_MORE, "there are more, which are not listed", Suffix.LOG)
        if len(self.findings) <= MOST_FINDINGS:
            self.findings.append(finding)

    def report(
        self, kind: FindingKind, detail: str, log_range: ByteRange, offsets: tuple[int, int] | None = None
    ) -> None:
        """A finding about bytes of the log."""
        self.add(self.subject.finding(kind, detail, Suffix.LOG, self._stored_range(log_range), offsets))

    def _stored_range(self, log_range: ByteRange) -> ByteRange:
        """Where bytes of the log lie in its object: where chunks are transformed, all of the chunks that hold them."""
        is_transformed = self.stored.manifest.compression or self.stored.manifest.encryption is not None
        if not is_transformed or not len(log_range):
            return log_range
        chunks = self._chunks.chunks_of(log_range)
        return ByteRange(self._positions[chunks.start], self._positions[chunks.stop])

    def take_run(self, log: LogWalk, position: int, last_offset: int) -> tuple[int, int]:
        """Take the batches from ``position`` on that are loaded, up to the first that needs a closer look.

        ``last_offset`` is that of the batch before; where they end, and the last offset there.
        """
        before, run = self._pending, self._run
        pending = None
        if before is not None:
            pending = (
                before.position, before.size_in_bytes, before.base_offset, before.last_offset,
                before.max_timestamp, before.partition_leader_epoch,
            )  # fmt: skip
        taken = run.walk(log.loaded(position), position, last_offset, pending)
        if taken:
            self._pending = latest = BatchHeader(*run.header)
            self._is_damaged = False
            last_offset = latest.last_offset
        return position + taken, last_offset

    def take(self, header: BatchHeader, log: LogWalk) -> None:
        """The next batch."""
        self._settle()
        # Before the checksum, which may pass beyond the chunk that the batch begins in.
        marker = _marker_of(header, log) if header.is_control else b""
        self._is_damaged = (crc := log.checksum(header)) != header.crc
        if self._is_damaged:
            detail = f"the CRC of the batch at byte {header.position} of the log is {crc:08x}, not {header.crc:08x}"
            self.report(FindingKind.BATCH_CRC, detail, _extent(header), _offsets(header))
            # Any number of its header may be a wrong one.
            self._distrust()
            return
        self._run.last_offset = header.last_offset
        if header.base_offset < self._metadata.start_offset:
            self._misplaced(header, f"before the segment's first offset, {self._metadata.start_offset}")
            return
        self._run.max_timestamp = max(self._run.max_timestamp, header.max_timestamp)
        self._pending = header
        if header.is_transactional and self._run.follows_transactions:
            self._take_transactional(header, marker)

    def out_of_order(self, header: BatchHeader) -> None:
        """The batch that is taken next does not begin behind the one before it."""
        before, end = self._pending, self._metadata.end_offset
        if before is not None and 0 <= end < before.last_offset:
            self._misplaced(before, f"behind the segment's last offset, {end}")
        elif not self._is_damaged:
            self._misplaced(header, f"not behind offset {self.last_offset} of the batch before it")

    def lost(self) -> None:
        """Batches were passed over."""
        self._distrust()
        self._run.last_offset = -1

    def finish(self) -> None:
        """The log's end was reached."""
        self._settle()
        if not self.is_sound:
            return
        run = self._run
        if run.next_entry < len(self._offsets):
            entry = self._offsets[run.next_entry]
            self.index_finding(f"{_shown(entry)} leads to no batch that ends at that offset")
        if run.next_time < len(self._times):
            offset = self._times[run.next_time].offset
            self._time_finding(f"it has offset {offset}, and the last batch ends at {self.last_offset}")
        said = self._metadata.max_timestamp_ms
        if said >= 0 and run.max_timestamp != said:
            detail = f"the greatest timestamp of the records is {run.max_timestamp}, and the manifest says {said}"
            self.add(self.subject.finding(FindingKind.MAX_TIMESTAMP, detail, Suffix.MANIFEST))
        if not run.follows_transactions:
            return
        if self._aborted:
            offset, producer = min((offset, producer) for producer, offset in self._aborted)
            self._txn_finding(f"no marker at offset {offset} ends a transaction of producer {producer}")
        else:
            self._check_stable()

    def index_finding(self, detail: str) -> None:
        """What is wrong with the offset index; one wrong entry is all that needs to be known."""
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
        self.add(self.subject.finding(kind, f"the {name} index is not that of the log: {detail}", Suffix.INDEXES))

    def _misplaced(self, header: BatchHeader, why: str) -> None:
        where = (
            f"the batch at byte {header.position} of the log has offsets {header.base_offset} to {header.last_offset}"
        )
        self.report(FindingKind.BATCH_OFFSETS, f"{where}, {why}", _extent(header), _offsets(header))
        self._distrust()

    def _distrust(self) -> None:
        """From here on only what a batch says of itself is checked."""
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
        # Batches of old formats name none; nor do the indexes of some segments.
        if epoch != run.epoch and NO_EPOCH not in (epoch, run.epoch):
            detail = f"the batch at byte {header.position} of the log is of leader epoch {epoch}, not {run.epoch}"
            self.report(FindingKind.BATCH_EPOCH, detail, _extent(header), _offsets(header))

    def _settle(self) -> None:
        """The latest batch is where it belongs: hold it against its epoch, and the indexes against it."""
        if self._pending is None:
            return
        header, run = self._pending, self._run
        self._pending = None
        self._check_epoch(header)
        while run.next_entry < len(self._offsets) and self._hold_against(header, self._offsets[run.next_entry]):
            run.next_entry += 1
        while run.next_time < len(self._times) and (time := self._times[run.next_time]).offset <= header.last_offset:
            run.next_time += 1
            # The batch that has the greatest timestamp so far is the one that holds the entry's offset.
            if not time.timestamp == run.max_timestamp == header.max_timestamp:
                detail = f"it has timestamp {time.timestamp} at offset {time.offset}, not {run.max_timestamp}"
                self._time_finding(detail)

    def _hold_against(self, header: BatchHeader, entry: OffsetIndexEntry) -> bool:
        """Whether it is the batch's own; an entry has the last offset of what was appended together, and where that
        begins."""
        if header.position + header.size_in_bytes <= entry.position:
            return False
        if entry.position > header.position:
            self.index_finding(f"{_shown(entry)} leads into a batch")
        elif header.last_offset > entry.offset:
            self.index_finding(f"{_shown(entry)} has an offset at which no batch ends")
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
        what = f"the transaction of producer {producer} that offset {offset}"
        if marker_kind(marker) != ABORT:
            if entry is not None:
                self._txn_finding(f"it has {what} commits")
        elif entry is None:
            # A marker without records before it ends nothing, and Kafka does not list it.
            if first is not None:
                self._txn_finding(f"it lacks {what} aborts")
        # Offsets of others between the two ends, or taken by compaction, change nothing for readers.
        elif first is not None and first < entry.first_offset:
            self._txn_finding(f"it has {what} aborts begin at {entry.first_offset}, behind its records at {first}")
        elif before is not None and entry.first_offset <= before:
            self._txn_finding(f"it has {what} aborts begin at {entry.first_offset}, before the one that {before} ends")

    def _check_stable(self) -> None:
        """Readers look no further for outcomes than the last stable offset of an entry."""
        opened = min(self._opened.values(), default=self.last_offset + 1)
        limit = min([opened, *self._known_open.values()])
        if self._stable > limit:
            self._txn_finding(f"it has the last stable offset {self._stable}, and at its end that is {limit} at most")


def _marker_of(header: BatchHeader, log: LogWalk) -> bytes:
    """What the records of a control batch begin with."""
    stop = min(header.size_in_bytes, HEADER_SIZE + MARKER_BYTES)
    return bytes(log.view(header.position)[HEADER_SIZE:stop])


def _shown(entry: OffsetIndexEntry) -> str:
    return f"its entry of offset {entry.offset} at byte {entry.position}"


def _extent(header: BatchHeader) -> ByteRange:
    return ByteRange(header.position, header.position + header.size_in_bytes)


def _offsets(header: BatchHeader) -> tuple[int, int]:
    return header.base_offset, header.last_offset
