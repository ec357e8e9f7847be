"""Level listing: what a listing and a manifest tell of one segment, held against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.lineage import check_segment, epochs_fit
from tieredstore.catalog.stored import StoredSegment, known_segment, manifest_info
from tieredstore.errors import CorruptData, ManifestCorrupt, ObjectNotFound, SegmentNotFound
from tieredstore.format.json_object import JsonObject
from tieredstore.format.keys import Suffix, main_path
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.format.manifest_rules import ManifestRules
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.kafka.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, TXN_ENTRY_SIZE
from tieredstore.model import ByteRange, IndexType
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.subject import Subject
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text

_ENTRY_SIZES: Final = {
    IndexType.OFFSET: OFFSET_ENTRY_SIZE,
    IndexType.TIMESTAMP: TIME_ENTRY_SIZE,
    IndexType.TRANSACTION: TXN_ENTRY_SIZE,
}
_MISSING: Final = {Suffix.LOG: FindingKind.LOG_MISSING, Suffix.INDEXES: FindingKind.INDEXES_MISSING}
_WRONG_SIZE: Final = {Suffix.LOG: FindingKind.LOG_SIZE, Suffix.INDEXES: FindingKind.INDEXES_SIZE}


def check_presence(subject: Subject) -> Iterator[Finding]:
    """What the keys alone tell."""
    objects = subject.objects
    if objects.find(Suffix.MANIFEST) is None:
        names = ", ".join(f".{suffix.value}" for suffix, _ in objects.objects)
        yield subject.finding(
            FindingKind.UNCOMMITTED, f"there is {names} ({objects.stored_size} bytes) and no manifest"
        )
        return
    for suffix in objects.missing:
        yield subject.finding(_MISSING[suffix], f"the manifest is there, and no .{suffix.value}", suffix)
    if objects.main_path != main_path(objects.segment_id, objects.start_offset):
        yield subject.finding(FindingKind.FOREIGN_DIGITS, "the offset is not written in ASCII digits", Suffix.MANIFEST)


def check_manifest(
    store: ObjectStore, subject: Subject, rules: ManifestRules
) -> tuple[StoredSegment | None, list[Finding]]:
    """The segment with its manifest, which is read by one request, and what is wrong with it.

    None where the manifest is damaged. SegmentNotFound if it was deleted meanwhile.
    """
    objects = subject.objects
    info = manifest_info(objects)
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    # The listing has the size: what cannot be a manifest costs no request.
    if info.size > MAX_MANIFEST_SIZE:
        detail = f"it has {info.size} bytes, more than any manifest"
        return None, [subject.finding(FindingKind.MANIFEST_DAMAGED, detail, Suffix.MANIFEST)]
    try:
        raw = read_manifest_text(store, info.key, name)
        manifest = parse_manifest(raw, name, known_segment(objects), rules)
    except ObjectNotFound as error:
        raise SegmentNotFound(f"{name} was deleted while it was listed") from error
    except ManifestCorrupt as error:
        return None, [subject.finding(FindingKind.MANIFEST_DAMAGED, str(error), Suffix.MANIFEST)]
    except CorruptData as error:
        return None, [subject.finding(FindingKind.MANIFEST_REFUSED, str(error), Suffix.MANIFEST)]
    stored = StoredSegment(objects, manifest)
    return stored, list(_metadata_findings(subject, stored, raw))


def size_findings(subject: Subject, log_size: int, indexes_size: int) -> Iterator[Finding]:
    """Where the listed objects have other sizes than the manifest says."""
    for suffix, expected in ((Suffix.LOG, log_size), (Suffix.INDEXES, indexes_size)):
        info = subject.objects.find(suffix)
        if info is not None and info.size != expected:
            differing = ByteRange(min(info.size, expected), max(info.size, expected))
            detail = f"it has {info.size} bytes, and by its manifest {expected}"
            yield subject.finding(_WRONG_SIZE[suffix], detail, suffix, differing)


def _metadata_findings(subject: Subject, stored: StoredSegment, raw: bytes) -> Iterator[Finding]:
    metadata = stored.manifest.metadata
    if metadata is None:
        if JsonObject.parse(raw).optional("remoteLogSegmentMetadata") is None:
            detail = "the manifest has no remoteLogSegmentMetadata"
            yield subject.finding(FindingKind.METADATA_ABSENT, detail, Suffix.MANIFEST)
        else:
            detail = "the manifest's remoteLogSegmentMetadata lacks a field, or one of them cannot be right"
            yield subject.finding(FindingKind.METADATA_UNUSABLE, detail, Suffix.MANIFEST)
        return
    if not epochs_fit(metadata):
        try:
            check_segment(metadata)
            detail = "the manifest names no leader epochs"
        except CorruptData as error:
            detail = str(error)
        yield subject.finding(FindingKind.EPOCHS_CONTRADICT, detail, Suffix.MANIFEST)
    transactions = stored.manifest.segment_indexes.transaction
    is_empty = transactions is None or transactions.size == 0
    if metadata.txn_idx_empty not in (None, is_empty):
        detail = (
            f"txnIdxEmpty is {metadata.txn_idx_empty}, and the transaction index is {'' if is_empty else 'not '}empty"
        )
        yield subject.finding(FindingKind.NUMBERS_CONTRADICT, detail, Suffix.MANIFEST)


def check_index_sizes(subject: Subject, manifest: SegmentManifest) -> Iterator[Finding]:
    """Indexes whose sizes cannot be those of whole entries."""
    overhead = 0 if manifest.encryption is None else ENCRYPTION_OVERHEAD
    for kind, entry in manifest.segment_indexes.recorded():
        size = max(0, entry.size - overhead)
        if size % _ENTRY_SIZES.get(kind, 1):
            detail = f"the {kind.value} index has {size} bytes, not a multiple of {_ENTRY_SIZES[kind]}"
            yield subject.finding(
                FindingKind.NUMBERS_CONTRADICT,
                detail,
                Suffix.INDEXES,
                ByteRange(entry.position, entry.position + entry.size),
            )
