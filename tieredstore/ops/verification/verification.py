"""Verifies a bucket: lists the segments in key order, checks each segment, and compares the segment with earlier
ones."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.catalog.lineage import Lineage, check_segment, epochs_fit
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.log_sections import position_before
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.problems import UNREADABLE
from tieredstore.catalog.stored import (
    MAX_MANIFESTS_IN_FLIGHT,
    StoredSegment,
    known_segment,
    look_up,
    manifest_info,
    manifest_size,
)
from tieredstore.catalog.watermark import read_watermark
from tieredstore.errors import (
    CorruptDataError,
    ManifestCorruptError,
    ObjectArchivedError,
    ObjectNotFoundError,
    SegmentNotFoundError,
    TieredStoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.format.json_object import JsonObject
from tieredstore.format.keys import Suffix, main_path
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.kafka.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, TXN_ENTRY_SIZE
from tieredstore.model import ByteRange, IndexType, RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.ops.verification.findings import Finding, FindingKind, Severity
from tieredstore.ops.verification.indexes import KnownTransactions, check_indexes, key_finding
from tieredstore.ops.verification.log_data import check_data, check_pointers
from tieredstore.ops.verification.neighbours import Neighbours
from tieredstore.ops.verification.selection import ClaimedOffsets, Level, Selection, SoundSegment, Subject
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.transactions import end_markers, find_open_at_end
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.ops.verification.state import VerifyState
    from tieredstore.remote import RemoteStorageManager

_LOGS_AT_ONCE: Final = 4
"""The default number of logs read in parallel.

A log takes 32 MiB of memory or more, and decoding it keeps all processors busy.
"""

Narrow: TypeAlias = Callable[[Iterator[SegmentObjects]], Iterator[SegmentObjects]]
"""A function that selects some of the listed segments."""

_ALL: Final = Scope()
_AT_LISTING: Final = Selection()


def verify(
    bucket: Bucket,
    scope: Scope = _ALL,
    selection: Selection = _AT_LISTING,
    *,
    parallel: int | None = None,
    stop_offset: int | None = None,
    narrow: Narrow | None = None,
) -> Generator[CheckedSegment]:
    """Check the segments in scope, in key order. The ``selection`` decides which segments are checked, and at what
    level.

    With ``stop_offset``, check only segments of one partition that begin before this offset. ``narrow`` is a function
    that filters the listing, and reads all of it. The levels index and data need the private keys, and bypass all
    caches.

    Nothing is written to the bucket. Memory does not grow with the listing. Errors of the store end the run, except
    that archived objects are findings. With a state, the next run continues.
    """
    count = parallel or (_LOGS_AT_ONCE if selection.level is Level.DATA else READERS)
    with contextlib.ExitStack() as opened:
        manager = None if selection.level is Level.LISTING else opened.enter_context(bucket.open_uncached_manager())
        check = SegmentCheck(manager)
        pool = opened.enter_context(ThreadPool(count, "tieredstore-verify"))
        listed, last = list_segments(bucket.store, bucket.prefix, scope), dict[TopicIdPartition, str]()
        if narrow is not None:
            listed = narrow(_note_last(listed, last))
        subjects = selection.subjects(listed, bucket)
        if narrow is not None:
            # The narrowed listing may lack a partition's last segment.
            subjects = (dataclasses.replace(subject, is_last=_is_in(last, subject)) for subject in subjects)
        results = in_parallel(
            pool,
            check.check,
            _before(subjects, stop_offset),
            at_once=4 * count,
            weigh=lambda subject: manifest_size(subject.objects),
            max_weight=MAX_MANIFESTS_IN_FLIGHT,
        )
        neighbours, readers = Neighbours(), _Readers(bucket, opened)
        is_whole, first = narrow is None, selection.first_offset
        transactions = None if manager is None else OpenTransactions(manager, is_whole=is_whole, first_offset=first)
        for alone, is_last in _with_last(results):
            across = () if transactions is None else transactions.take(alone)
            result = dataclasses.replace(alone, findings=(*alone.findings, *across))
            between = neighbours.take(result.subject, result.claimed)
            # The findings of the last segment include those that are certain only at the end of the listing.
            findings = (*between, *result.findings, *(neighbours.finish() if is_last else ()))
            yield dataclasses.replace(result, findings=tuple(each for each in findings if not readers.refute(each)))
            # Record a sound segment only after the caller took its findings. Then no finding is lost if the process is
            # killed.
            if selection.state is not None:
                _note(selection.state, result, is_sure=transactions is None or transactions.is_sure)


class _Readers:
    """The logs as readers see them. Two unclean elections may make an abandoned leader epoch valid again, and segments
    alone do not show that. Not thread-safe.

    The manager is created for the first finding about an abandoned epoch. ``opened`` closes it.
    """

    def __init__(self, bucket: Bucket, opened: contextlib.ExitStack) -> None:
        self._bucket = bucket
        self._opened = opened
        self._manager: RemoteStorageManager | None = None
        self._partition: TopicIdPartition | None = None
        self._lineage: Lineage | None = None

    def refute(self, finding: Finding) -> bool:
        """Return True if readers get all offsets that the finding says are left behind."""
        if finding.kind is not FindingKind.LEFT_BEHIND or finding.offsets is None:
            return False
        if finding.partition != self._partition:
            self._partition, self._lineage = finding.partition, self._find_lineage(finding.partition)
        first, stop = finding.offsets[0], finding.offsets[1] + 1
        spans = () if self._lineage is None else self._lineage.spans_between(first, stop)
        return sum(span.stop - span.start for span in spans) == stop - first

    def _find_lineage(self, where: TopicIdPartition) -> Lineage | None:
        """Return the log of a partition if the uploader has ever moved its watermark back. Return None if it has not,
        or if the log cannot be read, for example without the keys."""
        try:
            mark = read_watermark(self._bucket.store, self._bucket.prefix, where)
            if mark is None or not mark.moved_back:
                return None
            if self._manager is None:
                self._manager = self._opened.enter_context(self._bucket.open_uncached_manager())
            catalog = load_catalog(self._manager, topic=where.topic, topic_id=where.topic_id, partition=where.partition)
            return catalog.lineage(where.topic, where.partition, where.topic_id)
        except TieredStoreError:
            return None


def _before(subjects: Iterator[Subject], stop_offset: int | None) -> Iterator[Subject]:
    if stop_offset is None:
        return subjects
    return itertools.takewhile(lambda subject: subject.objects.start_offset < stop_offset, subjects)


def _note_last(listed: Iterator[SegmentObjects], last: dict[TopicIdPartition, str]) -> Iterator[SegmentObjects]:
    """Record the path of each partition's last segment that has a manifest."""
    for objects in listed:
        if objects.find(Suffix.MANIFEST) is not None:
            last[objects.segment_id.topic_id_partition] = objects.main_path
        yield objects


def _is_in(last: Mapping[TopicIdPartition, str], subject: Subject) -> bool:
    objects = subject.objects
    return last.get(objects.segment_id.topic_id_partition) == objects.main_path


def _with_last(results: Iterator[CheckedSegment]) -> Iterator[tuple[CheckedSegment, bool]]:
    """Yield each result with a flag, which is True for the last result only."""
    following = next(results, None)
    while (result := following) is not None:
        following = next(results, None)
        yield result, following is None


def _note(state: VerifyState, result: CheckedSegment, *, is_sure: bool) -> None:
    subject, level, claimed = result.subject, result.subject.level, result.claimed
    # If only a part of the partition is listed, a log that ends early may have lost its end. A later run may know.
    is_open = not subject.is_last and subject.next_start is None and FindingKind.ENDS_EARLY in {
        finding.kind for finding in result.findings
    }  # fmt: skip
    if result.is_sound and is_sure and not is_open and level is not None and claimed is not None:
        state.keep(subject.objects, level, SoundSegment(claimed, result.log_size))
    elif level is not None:
        state.forget(subject.objects)


class OpenTransactions:
    """Checks transactions that are open at a segment's end. The next segment must end or continue each of them.

    Call :meth:`take` with one segment after the other, in key order. If ``is_whole`` is False, partitions may have
    earlier segments. Before ``first_offset``, only the last segment is taken. Not thread-safe.
    """

    def __init__(self, manager: RemoteStorageManager, *, is_whole: bool, first_offset: int) -> None:
        self._manager = manager
        self._is_whole = is_whole
        self._first_offset = first_offset
        self._partition: TopicIdPartition | None = None
        self._before: RemoteLogSegmentMetadata | None = None
        self._claimed = ClaimedOffsets(-1)
        self._opened: Mapping[int, int] | None = None
        """First offsets, by producer id, of transactions open at the end of the previous segment; None if not
        read yet."""
        self.is_sure = True
        """False if the segment taken last was not compared with the previous one, because that one is unreadable or was
        not taken."""

    def take(self, result: CheckedSegment) -> Iterator[Finding]:
        """Yield findings about a segment that was checked at level data. Yield nothing if it does not continue the
        previous segment's log."""
        objects = result.subject.objects
        if objects.find(Suffix.MANIFEST) is None:
            return  # no reader sees these objects
        if (partition := objects.segment_id.topic_id_partition) != self._partition:
            self._partition, self._before, self.is_sure = partition, None, self._is_whole
        else:
            self.is_sure = self._before is not None
        metadata, claimed = _metadata_of(result), result.claimed
        if metadata is None or claimed is None or claimed.end < 0:
            self._before = None
            return
        if self._before is not None and self._before.start_offset <= metadata.start_offset:
            # Do not move the end of the log. This segment is a copy, or belongs to an older leader epoch.
            if claimed.end <= self._claimed.end or _last_epoch(claimed) < _last_epoch(self._claimed):
                return
            known = result.transactions
            if known is not None and result.is_sound and self._goes_on(claimed, metadata):
                yield from self._check(result.subject, metadata, known)
            else:
                self._opened = None if known is None else known.opened
        else:
            self._opened = None if result.transactions is None else result.transactions.opened
        self._before, self._claimed = metadata, claimed

    def _goes_on(self, claimed: ClaimedOffsets, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return True if this segment continues the earlier segments. There must be no gap before it, and its newer
        leader epochs must begin after the last offset of the earlier segments."""
        assert self._before is not None
        is_alone = self._before.start_offset < self._first_offset
        if is_alone and claimed.epochs and claimed.epochs[0][0] != _last_epoch(self._claimed):
            # The epoch of the segment before may be abandoned. Only segments that were not taken would show that.
            return False
        reach = self._claimed.end
        newer = [start for epoch, start in claimed.epochs if epoch > _last_epoch(self._claimed)]
        return metadata.start_offset <= reach + 1 and all(start > reach for start in newer)

    def _check(
        self, subject: Subject, metadata: RemoteLogSegmentMetadata, known: KnownTransactions
    ) -> Iterator[Finding]:
        assert self._before is not None
        reach, pending = self._claimed.end, dict[int, int]()
        try:
            opened = find_open_at_end(self._manager, self._before) if self._opened is None else self._opened
            ended = {
                entry.producer_id: entry for entry in known.aborted if entry.first_offset <= reach < entry.last_offset
            }
            for producer, entry in ended.items():
                if entry.first_offset != (first := opened.get(producer)):
                    began = "no transaction is open" if first is None else f"it began at {first}"
                    yield _finding(subject, producer, entry.last_offset, f"begins at {entry.first_offset}", began)
            # Leave out transactions that are still open in this segment's producer snapshot. The segment has no marker
            # for them.
            pending = {
                producer: first
                for producer, first in opened.items()
                if producer not in ended and known.opened.get(producer) != first
            }
            position = position_before(self._manager, metadata, reach + 1) if pending else 0
            for marker in end_markers(self._manager, metadata, reach + 1, pending, position) if pending else ():
                first = pending.pop(marker.producer_id)
                if marker.aborts:
                    yield _finding(
                        subject,
                        marker.producer_id,
                        marker.offset,
                        "has no entry that begins before this segment",
                        f"it began at {first}",
                    )
                if not pending:
                    break
        # Ignore the error, because the previous segment has been deleted, or its damage, archive or key was reported.
        except SegmentNotFoundError:
            pending = {}
        except UNREADABLE:
            pending, self.is_sure = {}, False
        for producer, first in pending.items():
            detail = f"the producer snapshot lacks the transaction of producer {producer} that began at offset {first}"
            yield subject.finding(FindingKind.PRODUCER_SNAPSHOT, detail, Suffix.INDEXES)
        self._opened = {**known.opened, **pending}


def _finding(subject: Subject, producer: int, marker: int, index: str, before: str) -> Finding:
    detail = (
        f"the transaction index does not match the log: producer {producer} aborted a transaction at offset {marker}; "
        f"in the index the transaction {index}, but in the earlier segments {before}"
    )
    return subject.finding(FindingKind.TRANSACTION_INDEX, detail, Suffix.INDEXES)


def _last_epoch(claimed: ClaimedOffsets) -> int:
    return claimed.epochs[-1][0] if claimed.epochs else -1


def _metadata_of(result: CheckedSegment) -> RemoteLogSegmentMetadata | None:
    """Return the segment's metadata from its manifest or from an earlier check; None if unknown."""
    if result.stored is not None:
        return result.stored.metadata
    sound = result.subject.sound
    objects = result.subject.objects
    if sound is None:
        return None
    return RemoteLogSegmentMetadata(objects.segment_id, objects.start_offset, sound.claimed.end, sound.log_size)


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """A checked segment, and the findings about it. :func:`verify` adds findings about how the segment follows earlier
    segments.

    ``stored`` is None without a readable manifest. ``last_offset`` is the last batch's last offset, if the log was read
    up to its end. ``is_gone`` is true if the segment was deleted during the run.
    """

    subject: Subject
    findings: tuple[Finding, ...] = ()
    stored: StoredSegment | None = None
    last_offset: int | None = None
    is_gone: bool = False
    transactions: KnownTransactions | None = None
    """The segment's transactions, at level data and if its indexes are usable."""
    has_indexes: bool = False
    """True if the indexes were read."""
    is_read: bool = False
    """True if all of the log was read."""

    @property
    def claimed(self) -> ClaimedOffsets | None:
        """The segment's offsets by its manifest; None if unknown."""
        if self.subject.sound is not None:
            return self.subject.sound.claimed
        if self.stored is None:
            return None
        metadata = self.stored.metadata
        end = metadata.end_offset
        # Trust the log more than the manifest's end offset, which no checksum protects. If compaction removed the last
        # records, the two offsets differ although both are right.
        is_wrong = end < 0 or any(finding.kind is FindingKind.END_OFFSET for finding in self.findings)
        if is_wrong and self.last_offset is not None:
            end = max(self.last_offset, metadata.start_offset)
        return ClaimedOffsets(end, metadata.segment_leader_epochs if epochs_fit(metadata) else ())

    @property
    def log_size(self) -> int:
        """The size of the log; 0 if unknown."""
        if self.subject.sound is not None:
            return self.subject.sound.log_size
        return 0 if self.stored is None else self.stored.metadata.segment_size_in_bytes

    @property
    def is_sound(self) -> bool:
        """True if the check of this segment alone found no fault."""
        return self.stored is not None and all(finding.kind.severity is Severity.NOTICE for finding in self.findings)


class SegmentCheck:
    """Checks segments, several in parallel. The levels index and data need a ``manager`` of their bucket."""

    def __init__(self, manager: RemoteStorageManager | None) -> None:
        self._manager = manager

    def check(self, subject: Subject) -> CheckedSegment:
        """Check a segment at the level ``subject.level``."""
        try:
            return self._check(subject)
        # Retention may delete a segment after the listing, so its absence is no damage.
        except SegmentNotFoundError:
            return CheckedSegment(subject, is_gone=True)

    def _check(self, subject: Subject) -> CheckedSegment:
        findings = list(check_presence(subject))
        is_committed = subject.objects.find(Suffix.MANIFEST) is not None
        if is_committed and subject.objects.missing:
            subject = self._look_again(subject)
            findings = list(check_presence(subject))
        if subject.level is None or not is_committed:
            return CheckedSegment(subject, tuple(findings))
        stored, more = check_manifest(subject)
        if stored is not None:
            subject, sizes = self._check_sizes(subject, stored)
            more += sizes
            if subject.level is Level.LISTING:
                more += check_index_sizes(subject, stored.manifest)
        findings += more
        if stored is None or subject.level is Level.LISTING:
            return CheckedSegment(subject, tuple(findings), stored)
        deeper = self._deeper(subject, stored, {finding.kind for finding in findings})
        return dataclasses.replace(deeper, findings=(*findings, *deeper.findings))

    def _check_sizes(self, subject: Subject, stored: StoredSegment) -> tuple[Subject, list[Finding]]:
        wrong = list(size_findings(subject, stored.sizes))
        if wrong:
            subject = self._look_again(subject)
            wrong = list(size_findings(subject, stored.sizes))
        return subject, wrong

    def _look_again(self, subject: Subject) -> Subject:
        """Look up the objects again, because the segment may have been committed during the long listing."""
        objects = subject.objects
        found = look_up(subject.bucket.store, subject.bucket.prefix, objects.main_path)
        if Suffix.MANIFEST not in found:
            raise SegmentNotFoundError(f"{objects.main_path} was deleted while it was listed")
        return dataclasses.replace(subject, objects=dataclasses.replace(objects, objects=tuple(found.items())))

    def _deeper(self, subject: Subject, stored: StoredSegment, known: set[FindingKind]) -> CheckedSegment:
        """Check at the levels index and data. Do not read objects that are missing or have a wrong size."""
        manager = self._manager
        assert manager is not None
        # Skip the further checks, because the manager would request keys or bytes that do not exist.
        if known & {FindingKind.FOREIGN_DIGITS, FindingKind.INDEXES_MISSING, FindingKind.INDEXES_SIZE}:
            return CheckedSegment(subject, (), stored)
        try:
            indexes = check_indexes(manager, subject, stored)
        except ObjectArchivedError as error:
            return CheckedSegment(subject, (subject.finding(FindingKind.ARCHIVED, str(error), Suffix.INDEXES),), stored)
        findings = indexes.findings
        is_closed = any(finding.kind in _CLOSED for finding in findings)
        if is_closed or known & {FindingKind.LOG_MISSING, FindingKind.LOG_SIZE}:
            return CheckedSegment(subject, tuple(findings), stored, has_indexes=not is_closed)
        last_offset, is_read = None, False
        try:
            if subject.level is Level.DATA:
                log = check_data(manager, subject, stored, indexes)
                is_read = True
                findings, last_offset = findings + log.findings, log.last_offset
            elif indexes.offsets is not None:
                log = check_pointers(manager, subject, stored, indexes.offsets)
                findings, last_offset = findings + log.findings, log.last_offset
        except (UnknownKeyError, WrongKeyError) as error:
            findings.append(key_finding(subject, error))
        except ObjectArchivedError as error:
            findings.append(subject.finding(FindingKind.ARCHIVED, str(error), Suffix.LOG))
        except CorruptDataError as error:
            findings.append(subject.finding(FindingKind.CHUNK_DAMAGED, str(error), Suffix.LOG))
        transactions = indexes.transactions if subject.level is Level.DATA else None
        return CheckedSegment(
            subject, tuple(findings), stored, last_offset,
            transactions=transactions, has_indexes=True, is_read=is_read,
        )  # fmt: skip


_CLOSED = (FindingKind.UNKNOWN_KEY, FindingKind.WRONG_KEY)


_ENTRY_SIZES: Final = {
    IndexType.OFFSET: OFFSET_ENTRY_SIZE,
    IndexType.TIMESTAMP: TIME_ENTRY_SIZE,
    IndexType.TRANSACTION: TXN_ENTRY_SIZE,
}
_MISSING: Final = {Suffix.LOG: FindingKind.LOG_MISSING, Suffix.INDEXES: FindingKind.INDEXES_MISSING}
_WRONG_SIZE: Final = {Suffix.LOG: FindingKind.LOG_SIZE, Suffix.INDEXES: FindingKind.INDEXES_SIZE}


def check_presence(subject: Subject) -> Iterator[Finding]:
    """Yield the findings that need no request, such as missing objects."""
    objects = subject.objects
    if objects.find(Suffix.MANIFEST) is None:
        names = ", ".join(f".{suffix.value}" for suffix, _ in objects.objects)
        yield subject.finding(
            FindingKind.UNCOMMITTED, f"the segment has {names} ({objects.stored_size} bytes), but no manifest"
        )
        return
    for suffix in objects.missing:
        yield subject.finding(_MISSING[suffix], f"the manifest exists, but not the .{suffix.value}", suffix)
    if objects.main_path != main_path(objects.segment_id, objects.start_offset):
        yield subject.finding(FindingKind.FOREIGN_DIGITS, "the offset is not written in ASCII digits", Suffix.MANIFEST)


def check_manifest(subject: Subject) -> tuple[StoredSegment | None, list[Finding]]:
    """Read the segment's manifest with one request. Return the segment and the findings.

    The segment is None if the manifest is damaged. Raise SegmentNotFoundError if it was deleted since the listing.
    """
    objects = subject.objects
    info = manifest_info(objects)
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    # Report the damage without a request. The listing shows that the object is too large for a manifest.
    if info.size > MAX_MANIFEST_SIZE:
        detail = f"it has {info.size} bytes, more than any manifest"
        return None, [subject.finding(FindingKind.MANIFEST_DAMAGED, detail, Suffix.MANIFEST)]
    try:
        raw = read_manifest_text(subject.bucket.store, info.key, name)
        manifest = parse_manifest(raw, name, known_segment(objects), subject.bucket.manifest_rules)
    except ObjectNotFoundError as error:
        raise SegmentNotFoundError(f"{name} was deleted while it was listed") from error
    except ManifestCorruptError as error:
        return None, [subject.finding(FindingKind.MANIFEST_DAMAGED, str(error), Suffix.MANIFEST)]
    except ObjectArchivedError as error:
        return None, [subject.finding(FindingKind.ARCHIVED, str(error), Suffix.MANIFEST)]
    except CorruptDataError as error:
        return None, [subject.finding(FindingKind.MANIFEST_REFUSED, str(error), Suffix.MANIFEST)]
    stored = StoredSegment(objects, manifest)
    return stored, list(_metadata_findings(subject, stored, raw))


def size_findings(subject: Subject, sizes: Mapping[Suffix, int]) -> Iterator[Finding]:
    """Yield a finding for each listed object whose size differs from the size in the manifest."""
    for suffix, expected in sizes.items():
        info = subject.objects.find(suffix)
        if info is not None and info.size != expected:
            differing = ByteRange(min(info.size, expected), max(info.size, expected))
            detail = f"it has {info.size} bytes, but its manifest says {expected}"
            yield subject.finding(_WRONG_SIZE[suffix], detail, suffix, differing)


def _metadata_findings(subject: Subject, stored: StoredSegment, raw: bytes) -> Iterator[Finding]:
    metadata = stored.manifest.metadata
    if metadata is None:
        if JsonObject.parse(raw).optional("remoteLogSegmentMetadata") is None:
            detail = "the manifest has no remoteLogSegmentMetadata"
            yield subject.finding(FindingKind.METADATA_ABSENT, detail, Suffix.MANIFEST)
        else:
            detail = "the manifest's remoteLogSegmentMetadata lacks a field, or has an impossible value"
            yield subject.finding(FindingKind.METADATA_UNUSABLE, detail, Suffix.MANIFEST)
        return
    if not epochs_fit(metadata):
        try:
            check_segment(metadata)
            detail = "the manifest names no leader epochs"
        except CorruptDataError as error:
            detail = str(error)
        yield subject.finding(FindingKind.EPOCHS_CONTRADICT, detail, Suffix.MANIFEST)
    transactions = stored.manifest.segment_indexes.transaction
    is_empty = transactions is None or transactions.size == 0
    if metadata.txn_idx_empty not in (None, is_empty):
        detail = (
            f"txnIdxEmpty is {metadata.txn_idx_empty}, but the transaction index is {'' if is_empty else 'not '}empty"
        )
        yield subject.finding(FindingKind.NUMBERS_CONTRADICT, detail, Suffix.MANIFEST)


def check_index_sizes(subject: Subject, manifest: SegmentManifest) -> Iterator[Finding]:
    """Yield a finding for each index whose size is not a multiple of its entry size."""
    overhead = 0 if manifest.encryption is None else ENCRYPTION_OVERHEAD
    for kind, entry in manifest.segment_indexes.entries():
        size = max(0, entry.size - overhead)
        if size % _ENTRY_SIZES.get(kind, 1):
            detail = f"the {kind.value} index has {size} bytes, not a multiple of {_ENTRY_SIZES[kind]}"
            yield subject.finding(
                FindingKind.NUMBERS_CONTRADICT,
                detail,
                Suffix.INDEXES,
                ByteRange(entry.position, entry.position + entry.size),
            )
