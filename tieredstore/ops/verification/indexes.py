"""Checks at level index. Each index of a segment must open, be in order, and agree with the other indexes and the
manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from tieredstore.errors import BatchCorruptError, CorruptDataError, IndexesCorruptError, UnknownKeyError, WrongKeyError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import IndexEntry
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    open_transactions,
    parse_leader_epochs,
    parse_producer_snapshot,
    segment_leader_epochs,
)
from tieredstore.kafka.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    read_offset_index,
    read_time_index,
    read_txn_index,
)
from tieredstore.model import ByteRange, IndexType
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.selection import Subject
from tieredstore.transform.encryption import DataKey, SegmentCipher

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.remote import RemoteStorageManager

_KINDS: Final = {
    IndexType.OFFSET: FindingKind.OFFSET_INDEX,
    IndexType.TIMESTAMP: FindingKind.TIME_INDEX,
    IndexType.PRODUCER_SNAPSHOT: FindingKind.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH: FindingKind.LEADER_EPOCH_INDEX,
    IndexType.TRANSACTION: FindingKind.TRANSACTION_INDEX,
}
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class KnownTransactions:
    """A segment's transactions according to its indexes.

    ``aborted`` are the aborted transactions that end in the segment. ``opened`` maps producer ids to the first offsets
    of transactions that are open at the segment's end.
    """

    aborted: tuple[AbortedTransaction, ...]
    opened: Mapping[int, int]


@dataclass(slots=True)
class CheckedIndexes:
    """The contents of a segment's indexes, and findings about them. The content of an unusable index is None."""

    offsets: OffsetIndex | None = None
    times: TimeIndex | None = None
    aborted: tuple[AbortedTransaction, ...] | None = None
    opened: Mapping[int, int] | None = None
    """First offsets of transactions that are open at the segment's end, by producer id."""
    epochs: LeaderEpochs | None = None
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def transactions(self) -> KnownTransactions | None:
        """The transactions in the transaction index and the producer snapshot; None if the producer snapshot is
        unusable."""
        return None if self.opened is None else KnownTransactions(self.aborted or (), self.opened)


def key_finding(subject: Subject, error: UnknownKeyError | WrongKeyError) -> Finding:
    """Return the finding that no key pair opens the data key. Nothing of such a segment can be read."""
    kind = FindingKind.UNKNOWN_KEY if isinstance(error, UnknownKeyError) else FindingKind.WRONG_KEY
    return subject.finding(kind, str(error), Suffix.MANIFEST)


def check_indexes(manager: RemoteStorageManager, subject: Subject, stored: StoredSegment) -> CheckedIndexes:
    """Check all indexes of a segment with one request. Raise SegmentNotFoundError if the segment was deleted since the
    listing."""
    check = _IndexCheck(subject, stored)
    try:
        streams = manager.fetch_indexes(stored.metadata, IndexType)
        contents = {kind: stream.read() for kind, stream in streams.items()}
    except (UnknownKeyError, WrongKeyError) as error:
        check.result.findings.append(key_finding(subject, error))
        return check.result
    except IndexesCorruptError as error:
        # Open the indexes one by one to find the good ones. A damaged index makes a request for all of them fail.
        contents = check.open_one_by_one(manager, error)
    check.take(contents)
    return check.result


class _IndexCheck:
    def __init__(self, subject: Subject, stored: StoredSegment) -> None:
        self._subject = subject
        self._stored = stored
        self._metadata = stored.metadata
        self._entries = dict(stored.manifest.segment_indexes.entries())
        self.result = CheckedIndexes()

    def open_one_by_one(self, manager: RemoteStorageManager, why: CorruptDataError) -> dict[IndexType, bytes]:
        """Return the indexes that can be decrypted. Report each of the other indexes."""
        encryption, ring = self._stored.manifest.encryption, manager.key_ring
        info = self._subject.objects.find(Suffix.INDEXES)
        total = self._stored.manifest.segment_indexes.total_size
        if encryption is None or ring is None or info is None or info.size < total:
            self.result.findings.append(self._subject.finding(FindingKind.INDEXES_DAMAGED, str(why), Suffix.INDEXES))
            return {}
        cipher = SegmentCipher(DataKey(ring.unwrap(encryption.key_id, encryption.wrapped), encryption.aad))
        stored, contents = manager.store.get(info.key, 0, total), dict[IndexType, bytes]()
        for kind, entry in self._entries.items():
            unit = stored[entry.position : entry.position + entry.size]
            try:
                contents[kind] = cipher.open(unit) if unit else b""
            except CorruptDataError as error:
                detail = f"the {kind.value} index cannot be decrypted: {error}"
                self._report(FindingKind.INDEXES_DAMAGED, detail, entry)
        return contents

    def take(self, contents: dict[IndexType, bytes]) -> None:
        result, start = self.result, self._metadata.start_offset
        result.offsets = self._parse(contents, IndexType.OFFSET, lambda raw: read_offset_index(raw, start))
        result.times = self._parse(contents, IndexType.TIMESTAMP, lambda raw: read_time_index(raw, start))
        result.epochs = self._parse(
            contents, IndexType.LEADER_EPOCH, lambda raw: parse_leader_epochs(raw) if raw else ()
        )
        result.aborted = self._parse(contents, IndexType.TRANSACTION, lambda raw: read_txn_index(raw, start))
        snapshot = self._parse(contents, IndexType.PRODUCER_SNAPSHOT, parse_producer_snapshot)
        if snapshot is not None:
            result.opened = open_transactions(snapshot)
        end = self._metadata.end_offset
        if snapshot and end >= 0 and (last := max(state.last_offset for state in snapshot)) > end:
            self._contradiction(
                IndexType.PRODUCER_SNAPSHOT, f"it has a batch that ends at offset {last}, but the segment ends at {end}"
            )
        if result.offsets is not None and not self._check_offsets(result.offsets):
            result.offsets = None
        if result.times and end >= 0 and (last := result.times[-1].offset) > end:
            self._contradiction(IndexType.TIMESTAMP, f"it has offset {last}, but the segment ends at {end}")
            result.times = None
        self._check_aborted(result.aborted or (), end)
        if result.epochs is not None:
            self._check_epochs(result.epochs, end)

    def _check_offsets(self, index: OffsetIndex) -> bool:
        """Return True if all entries point into the log."""
        size, end = self._metadata.segment_size_in_bytes, self._metadata.end_offset
        if not len(index):
            return True
        last = index[-1]
        if last.position >= size:
            self._contradiction(IndexType.OFFSET, f"it points to byte {last.position}, but the log has {size} bytes")
            return False
        if 0 <= end < last.offset:
            self._contradiction(IndexType.OFFSET, f"it has offset {last.offset}, but the segment ends at {end}")
            return False
        return True

    def _check_aborted(self, aborted: tuple[AbortedTransaction, ...], end: int) -> None:
        start = self._metadata.start_offset
        for entry in aborted:
            if entry.last_offset < start or 0 <= end < entry.last_offset:
                detail = f"it has a marker at offset {entry.last_offset}, but the segment has offsets {start} to {end}"
                self._contradiction(IndexType.TRANSACTION, detail)
                return

    def _check_epochs(self, history: LeaderEpochs, end: int) -> None:
        said, start = self._metadata.segment_leader_epochs, self._metadata.start_offset
        if not history:
            if said:
                self._contradiction(
                    IndexType.LEADER_EPOCH, f"it is empty, but the manifest names the epochs {said[:3]}"
                )
            return
        if 0 <= end < history[-1][1]:
            self._contradiction(
                IndexType.LEADER_EPOCH,
                f"epoch {history[-1][0]} begins at {history[-1][1]}, but the segment ends at {end}",
            )
        elif end >= 0 and said and (indexed := segment_leader_epochs(history, start, end)) != said:
            self._contradiction(
                IndexType.LEADER_EPOCH,
                f"it has the epochs {indexed[:3]} for the segment, but the manifest has {said[:3]}",
            )

    def _parse(
        self, contents: dict[IndexType, bytes], kind: IndexType, parse: Callable[[bytes], _Parsed]
    ) -> _Parsed | None:
        if kind not in contents:
            return None
        try:
            return parse(contents[kind])
        except BatchCorruptError as error:
            self._report(_KINDS[kind], str(error), self._entries[kind])
            return None

    def _contradiction(self, kind: IndexType, detail: str) -> None:
        self._report(_KINDS[kind], f"the {kind.value} index does not fit: {detail}", self._entries[kind])

    def _report(self, kind: FindingKind, detail: str, entry: IndexEntry) -> None:
        place = ByteRange(entry.position, entry.position + entry.size)
        self.result.findings.append(self._subject.finding(kind, detail, Suffix.INDEXES, place))


def end_findings(subject: Subject, said: int, last: int, zeros: int) -> Iterator[Finding]:
    """Yield a finding if the manifest's end offset (``said``) is not the offset of the log's last record (``last``).

    ``last`` is -1 for a log without batches. ``zeros`` is the number of bytes after the last batch. Compaction may
    remove the last records of a segment. But readers take zeros for a lost disk page, and after the last segment, only
    the manifest claims that the offsets exist.
    """
    if said < 0 or last == said:
        return
    following = subject.next_start
    if last > said:
        detail = f"the records end at offset {last}, but the manifest says {said}"
        yield subject.finding(FindingKind.END_OFFSET, detail, Suffix.MANIFEST, offsets=(said + 1, last))
    elif following is not None and last < following <= said:
        detail = f"the manifest says {said}, but the records end at {last}, and the next segment begins at {following}"
        yield subject.finding(FindingKind.END_OFFSET, detail, Suffix.MANIFEST, offsets=(last + 1, said))
    elif subject.is_last and last >= 0 and not zeros:
        detail = f"the manifest says {said}, but the records end at {last}, and no segment follows"
        yield subject.finding(FindingKind.END_OFFSET, detail, Suffix.MANIFEST, offsets=(last + 1, said))
    else:
        first = max(last + 1, subject.objects.start_offset)
        if zeros:
            detail = f"the log has only zeros from offset {first} on, but the manifest says {said}"
            yield subject.finding(FindingKind.BATCH_STRUCTURE, detail, Suffix.LOG, offsets=(first, said))
            return
        detail = f"offsets {first} to {said} have no batch"
        yield subject.finding(FindingKind.ENDS_EARLY, detail, Suffix.LOG, offsets=(first, said))
