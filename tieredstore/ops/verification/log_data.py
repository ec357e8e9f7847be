"""Level data, and the looks into a log that level index takes: chunks open, batches are whole and in their places."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import BatchCorrupt, SegmentCorrupt
from tieredstore.kafka.batches import BatchHeader, next_batch_header, walk_batch_headers
from tieredstore.model import ByteRange
from tieredstore.ops.verification.batches import BatchChecks
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.indexes import CheckedIndexes, end_findings
from tieredstore.ops.verification.log_walk import LogWalk
from tieredstore.ops.verification.subject import Subject

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.kafka.indexes import OffsetIndex
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class LogResult:
    """What was found in a log; ``last_offset`` is that of its last batch (-1: it has none), None if not known."""

    findings: list[Finding]
    last_offset: int | None


def check_data(
    manager: RemoteStorageManager, subject: Subject, stored: StoredSegment, indexes: CheckedIndexes
) -> LogResult:
    """Every byte of the log is read once. SegmentNotFound if it was deleted meanwhile."""
    checks = BatchChecks(subject, stored, indexes)
    with manager.open(stored.metadata) as stream:
        log = LogWalk(stream, stored.metadata.segment_size_in_bytes)
        _DataWalk(log, checks, indexes.offsets).run()
    checks.finish()
    if checks.is_sound:
        checks.findings.extend(end_findings(subject, stored.metadata.end_offset, checks.last_offset))
    return LogResult(checks.findings, checks.last_offset if checks.is_sound else None)


def check_pointers(
    manager: RemoteStorageManager, subject: Subject, stored: StoredSegment, index: OffsetIndex
) -> LogResult:
    """Whether the first, the middle and the last entry of the offset index lead to batches, and whether the batches
    from the last one on end where the segment does. A request for each chunk that is reached: three, mostly."""
    checks = BatchChecks(subject, stored, CheckedIndexes())
    with manager.open(stored.metadata) as stream:
        look = _PointerLook(LogWalk(stream, stored.metadata.segment_size_in_bytes), checks, index)
        for number in sorted({0, len(index) // 2}):
            if number < len(index) - 1:
                look.check_entry(number)
        look.check_end()
    return LogResult(checks.findings, look.last_offset)


def _chunk_finding(checks: BatchChecks, log: LogWalk, error: SegmentCorrupt) -> ByteRange:
    """Tell of the chunk that does not open, which is the one that was to be loaded next; which bytes it has."""
    index = checks.stored.manifest.chunk_index
    chunk = index.original_range(index.chunk_at(log.end))
    checks.report(FindingKind.CHUNK_DAMAGED, str(error), chunk)
    return chunk


class _PointerLook:
    """Looks at some places of a log."""

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
        except BatchCorrupt as error:
            self._checks.index_finding(f"its entry {number} leads to no batch: {error}")
        except SegmentCorrupt as error:
            _chunk_finding(self._checks, self._log, error)

    def check_end(self) -> None:
        """From the last entry on, else all of the log, which is as short as an index interval then."""
        number = len(self._index) - 1
        start = position = self._index[number].position if number >= 0 else 0
        last = -1
        self._log.jump(position)
        try:
            for header in walk_batch_headers(self._log.view, self._size, position):
                if position == start and number >= 0 and not self._check_first(number, header):
                    return
                last, position = header.last_offset, header.position + header.size_in_bytes
        except BatchCorrupt as error:
            if position == start and number >= 0:
                self._checks.index_finding(f"its entry {number} leads to no batch: {error}")
            else:
                self._checks.report(FindingKind.BATCH_STRUCTURE, str(error), ByteRange(position, self._size))
        except SegmentCorrupt as error:
            _chunk_finding(self._checks, self._log, error)
        else:
            self.last_offset = last
            for finding in end_findings(self._checks.subject, self._metadata.end_offset, last):
                self._checks.add(finding)

    def _check_first(self, number: int, header: BatchHeader | None) -> bool:
        """Whether the batch that an entry leads to can be the entry's."""
        entry = self._index[number]
        least = self._index[number - 1].offset + 1 if number else self._index.base_offset
        if header is not None and least <= header.base_offset <= entry.offset:
            return True
        what = "nothing is there" if header is None else f"the batch there begins at offset {header.base_offset}"
        self._checks.index_finding(f"its entry {number} is offset {entry.offset} at byte {entry.position}, and {what}")
        return False


class _DataWalk:
    """Walks over all of a log, and past what is damaged of it."""

    def __init__(self, log: LogWalk, checks: BatchChecks, index: OffsetIndex | None) -> None:
        self._log = log
        self._checks = checks
        self._size = checks.stored.metadata.segment_size_in_bytes
        self._index = index
        self._reached = 0

    def run(self) -> None:
        position, tried = 0, -1
        while position < self._size:
            try:
                self._take_from(position, is_out_of_order=position == tried > 0)
            except SegmentCorrupt as error:
                position = self._pass_chunk(error)
            except BatchCorrupt as error:
                # Tried again without the batches before it: what can be read then is only in the wrong place.
                if self._reached != tried:
                    position = tried = self._reached
                    self._log.jump(position)
                else:
                    position = self._pass_batches(tried, error)
            else:
                if (reached := self._reached) < self._size:
                    detail = f"the log ends in {self._size - reached} bytes of zeros"
                    self._checks.report(FindingKind.TRAILING_ZEROS, detail, ByteRange(reached, self._size))
                return

    def _take_from(self, position: int, *, is_out_of_order: bool) -> None:
        """All batches from there on: in runs, and between them one by one what a run stops at."""
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

    def _pass_chunk(self, error: SegmentCorrupt) -> int:
        """Where to go on behind a chunk that does not open; those up to there are opened too."""
        while True:
            behind = _chunk_finding(self._checks, self._log, error).stop
            try:
                return self._resume(behind)
            except SegmentCorrupt as another:
                error = another

    def _pass_batches(self, position: int, error: BatchCorrupt) -> int:
        """Where to go on behind what is no batch."""
        self._checks.report(
            FindingKind.BATCH_STRUCTURE, str(error), ByteRange(position, self._next_batch(position + 1))
        )
        try:
            return self._resume(position + 1)
        except SegmentCorrupt as another:
            return self._pass_chunk(another)

    def _resume(self, position: int) -> int:
        """Open all up to the next place where a batch is known to begin."""
        self._checks.lost()
        self._log.jump(position)
        resumed = self._next_batch(position)
        self._log.skip_to(resumed)
        self._log.jump(resumed)
        return resumed

    def _next_batch(self, position: int) -> int:
        index = self._index or ()
        number = bisect_left(index, position, key=lambda entry: entry.position)
        return index[number].position if number < len(index) else self._size
