"""One segment, looked into as deep as was asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import epochs_fit
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import CorruptData, InvalidKey, ObjectNotFound, SegmentNotFound, UnknownKey, WrongKey
from tieredstore.format.keys import Suffix, object_key
from tieredstore.ops.verification.findings import Finding, FindingKind, Severity
from tieredstore.ops.verification.indexes import KnownTransactions, check_indexes, key_finding
from tieredstore.ops.verification.listed import check_index_sizes, check_manifest, check_presence, size_findings
from tieredstore.ops.verification.log_data import check_data, check_pointers
from tieredstore.ops.verification.subject import Extent, Level, Subject

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectInfo, ObjectStore
    from tieredstore.format.manifest_rules import ManifestRules
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What came of one segment.

    ``stored`` is None without a manifest that can be read; ``last_offset`` is that of the last batch, where the log was
    read up to there; ``is_gone``: the segment was deleted while it was looked at.
    """

    subject: Subject
    findings: tuple[Finding, ...] = ()
    stored: StoredSegment | None = None
    last_offset: int | None = None
    is_gone: bool = False
    transactions: KnownTransactions | None = None
    """At level data, if its indexes can be used."""
    is_read: bool = False
    """Whether all of its log was read."""

    @property
    def extent(self) -> Extent | None:
        """What the segment is said to hold, None where nobody says."""
        if self.subject.sound is not None:
            return self.subject.sound.extent
        if self.stored is None:
            return None
        metadata = self.stored.metadata
        end = metadata.end_offset
        # What the log says goes before a number that nothing guards; where compaction took the end both are right.
        is_wrong = end < 0 or any(finding.kind is FindingKind.END_OFFSET for finding in self.findings)
        if is_wrong and self.last_offset is not None:
            end = max(self.last_offset, metadata.start_offset)
        return Extent(end, metadata.segment_leader_epochs if epochs_fit(metadata) else ())

    @property
    def log_size(self) -> int:
        """Bytes of the log, 0 where nobody says."""
        if self.subject.sound is not None:
            return self.subject.sound.log_size
        return 0 if self.stored is None else self.stored.metadata.segment_size_in_bytes

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the segment by itself."""
        return self.stored is not None and all(finding.severity is Severity.NOTICE for finding in self.findings)


class SegmentCheck:
    """Checks the segments of one store, several at once. ``manager`` is needed below level listing."""

    def __init__(self, store: ObjectStore, rules: ManifestRules, manager: RemoteStorageManager | None) -> None:
        self._store = store
        self._rules = rules
        self._manager = manager

    def check(self, subject: Subject) -> SegmentResult:
        """All levels up to the subject's."""
        try:
            return self._check(subject)
        # Retention deletes all the time; what went between listing and reading is not damage.
        except SegmentNotFound:
            return SegmentResult(subject, is_gone=True)

    def _check(self, subject: Subject) -> SegmentResult:
        findings = list(check_presence(subject))
        is_committed = subject.objects.find(Suffix.MANIFEST) is not None
        if is_committed and subject.objects.missing:
            subject = self._looked_at_again(subject)
            findings = list(check_presence(subject))
        if subject.level is None or not is_committed:
            return SegmentResult(subject, tuple(findings))
        stored, more = check_manifest(self._store, subject, self._rules)
        if stored is not None:
            subject, sizes = self._check_sizes(subject, stored)
            more += sizes
            if subject.level is Level.LISTING:
                more += check_index_sizes(subject, stored.manifest)
        findings += more
        if stored is None or subject.level is Level.LISTING:
            return SegmentResult(subject, tuple(findings), stored)
        deeper = self._deeper(subject, stored, {finding.kind for finding in findings})
        return dataclasses.replace(deeper, findings=(*findings, *deeper.findings))

    def _check_sizes(self, subject: Subject, stored: StoredSegment) -> tuple[Subject, list[Finding]]:
        sizes = stored.manifest.chunk_index.stored_size, stored.manifest.segment_indexes.total_size
        wrong = list(size_findings(subject, *sizes))
        if wrong:
            subject = self._looked_at_again(subject)
            wrong = list(size_findings(subject, *sizes))
        return subject, wrong

    def _looked_at_again(self, subject: Subject) -> Subject:
        """The objects as they are now: a listing takes a while, in which copies are committed."""
        prefix, path = subject.prefix, subject.objects.main_path
        infos: list[tuple[Suffix, ObjectInfo]] = []
        for suffix in Suffix:
            try:
                infos.append((suffix, self._store.head(object_key(prefix, path, suffix))))
            # InvalidKey: a special file of a folder, which no reader opens.
            except (ObjectNotFound, InvalidKey) as error:
                if suffix is Suffix.MANIFEST:
                    raise SegmentNotFound(f"{path} was deleted while it was listed") from error
        objects = subject.objects
        fresh = SegmentObjects(objects.segment_id, objects.start_offset, tuple(infos), path)
        return dataclasses.replace(subject, objects=fresh)

    def _deeper(self, subject: Subject, stored: StoredSegment, known: set[FindingKind]) -> SegmentResult:
        """Levels index and data; what is missing or of a wrong size was told of and is not read."""
        manager = self._manager
        assert manager is not None
        # A manager looks for the key that it would write.
        if known & {FindingKind.FOREIGN_DIGITS, FindingKind.INDEXES_MISSING, FindingKind.INDEXES_SIZE}:
            return SegmentResult(subject, (), stored)
        indexes = check_indexes(manager, subject, stored)
        findings = indexes.findings
        is_closed = any(finding.kind in _CLOSED for finding in findings)
        if is_closed or known & {FindingKind.LOG_MISSING, FindingKind.LOG_SIZE}:
            return SegmentResult(subject, tuple(findings), stored)
        last_offset, is_read = None, False
        try:
            if subject.level is Level.DATA:
                log = check_data(manager, subject, stored, indexes)
                is_read = True
                findings, last_offset = findings + log.findings, log.last_offset
            elif indexes.offsets is not None:
                log = check_pointers(manager, subject, stored, indexes.offsets)
                findings, last_offset = findings + log.findings, log.last_offset
        except (UnknownKey, WrongKey) as error:
            findings.append(key_finding(subject, error))
        except CorruptData as error:
            findings.append(subject.finding(FindingKind.CHUNK_DAMAGED, str(error), Suffix.LOG))
        transactions = indexes.transactions if subject.level is Level.DATA else None
        return SegmentResult(subject, tuple(findings), stored, last_offset, transactions=transactions, is_read=is_read)


_CLOSED = (FindingKind.UNKNOWN_KEY, FindingKind.WRONG_KEY)
