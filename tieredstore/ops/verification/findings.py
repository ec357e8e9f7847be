"""The findings of a verification, by kind. Each kind has a severity, a meaning for readers, and advice.

``make docs`` writes the table of kinds to ``docs/how-to/verify.md``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import CorruptDataError, ResourceNotFoundError
from tieredstore.model import ByteRange, TopicIdPartition, Uuid


class Severity(enum.StrEnum):
    """The severity of a finding, from the worst to the least."""

    DAMAGE = "damage"
    """Wrong bytes, or half a segment."""

    MISSING = "missing"
    """A segment or object that is absent, although the brokers or other objects refer to it."""

    GAP = "gap"
    """Offsets that are in no segment, although a segment has later offsets."""

    NOTICE = "notice"
    """Something that does not affect readers."""

    @property
    def exit_code(self) -> int:
        """The exit code of a run whose worst finding has this severity."""
        if self is Severity.DAMAGE:
            return CorruptDataError.exit_code
        return 0 if self is Severity.NOTICE else ResourceNotFoundError.exit_code


class FindingKind(enum.StrEnum):
    """The kind of a finding. Reports show the value."""

    MANIFEST_DAMAGED = "manifest-damaged"
    MANIFEST_REFUSED = "manifest-refused"
    METADATA_UNUSABLE = "metadata-unusable"
    METADATA_ABSENT = "metadata-absent"
    EPOCHS_CONTRADICT = "epochs-contradict"
    NUMBERS_CONTRADICT = "numbers-contradict"
    LOG_MISSING = "log-missing"
    INDEXES_MISSING = "indexes-missing"
    LOG_SIZE = "log-size"
    INDEXES_SIZE = "indexes-size"
    UNCOMMITTED = "uncommitted"
    FOREIGN_DIGITS = "foreign-digits"
    GAP = "gap"
    OVERLAP = "overlap"
    COPIED_TWICE = "copied-twice"
    LEFT_BEHIND = "left-behind"
    LEFT_BEHIND_COVERED = "left-behind-covered"
    RECREATED_TOPIC = "recreated-topic"
    UNKNOWN_KEY = "unknown-key"
    WRONG_KEY = "wrong-key"
    INDEXES_DAMAGED = "indexes-damaged"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    LEADER_EPOCH_INDEX = "leader-epoch-index"
    END_OFFSET = "end-offset"
    ENDS_EARLY = "ends-early"
    CHUNK_DAMAGED = "chunk-damaged"
    BATCH_CRC = "batch-crc"
    BATCH_STRUCTURE = "batch-structure"
    BATCH_OFFSETS = "batch-offsets"
    BATCH_EPOCH = "batch-epoch"
    MAX_TIMESTAMP = "max-timestamp"
    TRAILING_ZEROS = "trailing-zeros"
    NOT_IN_BUCKET = "not-in-bucket"
    UNKNOWN_TO_BROKERS = "unknown-to-brokers"
    BROKERS_DIFFER = "brokers-differ"
    BROKERS_RECORD = "brokers-record"
    MANY_MORE = "many-more"

    @property
    def facts(self) -> KindFacts:
        """The kind's severity, meaning and advice."""
        return _FACTS[self]


@dataclass(frozen=True, slots=True)
class KindFacts:
    """Facts that all findings of a kind share."""

    severity: Severity
    meaning: str
    advice: str


COPY_AGAIN: Final = (
    "replace the segment from a backup (mirror --repair), copy it again while a broker has it, or restore an older "
    "version"
)
_KIND: Final = FindingKind
_DAMAGE, _MISSING, _GAP, _NOTICE = Severity.DAMAGE, Severity.MISSING, Severity.GAP, Severity.NOTICE

_FACTS: Final[Mapping[FindingKind, KindFacts]] = {
    _KIND.MANIFEST_DAMAGED: KindFacts(_DAMAGE, "the segment cannot be read", COPY_AGAIN),
    _KIND.MANIFEST_REFUSED: KindFacts(
        _DAMAGE,
        "readers refuse the segment: the manifest belongs to another segment, or breaks a rule of the settings",
        COPY_AGAIN,
    ),
    _KIND.METADATA_UNUSABLE: KindFacts(
        _DAMAGE,
        "the segment is readable, but readers work out its offsets and times from its log, with a few requests",
        "compare with an older version of the manifest; readers do not need this part",
    ),
    _KIND.METADATA_ABSENT: KindFacts(
        _NOTICE,
        "some writers leave the segment's metadata out; readers work out offsets and times from the log",
        "nothing; level index checks for a gap before the next segment",
    ),
    _KIND.EPOCHS_CONTRADICT: KindFacts(
        _DAMAGE,
        "the manifest's leader epochs do not fit the segment; readers take the epochs of the leader-epoch index",
        "compare with an older version of the manifest",
    ),
    _KIND.NUMBERS_CONTRADICT: KindFacts(
        _DAMAGE, "one number of the manifest is wrong; the bytes that the number points to cannot be read", COPY_AGAIN
    ),
    _KIND.LOG_MISSING: KindFacts(_DAMAGE, "the segment's records are lost; reading fails", COPY_AGAIN),
    _KIND.INDEXES_MISSING: KindFacts(
        _DAMAGE, "look-ups by offset and time fail, and brokers serve nothing of the segment", COPY_AGAIN
    ),
    _KIND.LOG_SIZE: KindFacts(_DAMAGE, "records at the end, or from some offset on, cannot be read", COPY_AGAIN),
    _KIND.INDEXES_SIZE: KindFacts(
        _DAMAGE, "some of the indexes cannot be read; brokers serve nothing of the segment", COPY_AGAIN
    ),
    _KIND.UNCOMMITTED: KindFacts(
        _NOTICE,
        "no reader sees these objects: a copy in progress, or the remains of a failed copy or deletion",
        "leave the objects to gc, unless the records are in no other segment",
    ),
    _KIND.FOREIGN_DIGITS: KindFacts(
        _MISSING,
        "the key has non-ASCII digits of a JVM's locale: readers in other locales look for another key",
        "give the three objects their ASCII keys, the manifest last",
    ),
    _KIND.GAP: KindFacts(
        _GAP,
        "readers of these offsets stop with DataLossError or, if configured so, skip the offsets",
        "copy the missing segment while a broker has it",
    ),
    _KIND.OVERLAP: KindFacts(
        _NOTICE, "two leaders copied some offsets; leader epochs decide which copy is read", "nothing: Kafka does this"
    ),
    _KIND.COPIED_TWICE: KindFacts(
        _NOTICE, "the same offsets are stored twice, which only costs space", "delete one copy by its segment id"
    ),
    _KIND.LEFT_BEHIND: KindFacts(
        _GAP,
        "these offsets are only in a segment of an abandoned leader epoch: readers do not get them",
        "an unclean election lost the offsets; `tieredstore fetch` can still read the segment",
    ),
    _KIND.LEFT_BEHIND_COVERED: KindFacts(
        _NOTICE,
        "the segment belongs to an abandoned leader epoch; readers take the segment of the newer epoch",
        "nothing; brokers delete the segment with its epoch",
    ),
    _KIND.RECREATED_TOPIC: KindFacts(
        _NOTICE,
        "segments of several topics with one name; readers take the latest topic, or that of --topic-id",
        "delete the segments of the older topic once they are not needed",
    ),
    _KIND.UNKNOWN_KEY: KindFacts(
        _DAMAGE,
        "the segment cannot be read without the key pair",
        "add the key pair to encryption.key.pairs (keys list shows its id)",
    ),
    _KIND.WRONG_KEY: KindFacts(
        _DAMAGE,
        "the key pair of this id does not decrypt the data key: it is another pair, or the data key is damaged",
        "find the key pair that encrypted the data key, or an older version of the manifest",
    ),
    _KIND.INDEXES_DAMAGED: KindFacts(
        _DAMAGE, "an index cannot be decrypted; brokers serve nothing of the segment", COPY_AGAIN
    ),
    _KIND.OFFSET_INDEX: KindFacts(
        _DAMAGE, "reading from an offset within the segment fails, or begins at the wrong place", COPY_AGAIN
    ),
    _KIND.TIME_INDEX: KindFacts(_DAMAGE, "look-ups by time fail, or give a wrong offset", COPY_AGAIN),
    _KIND.TRANSACTION_INDEX: KindFacts(
        _DAMAGE, "readers of committed records fail, or get aborted records", COPY_AGAIN
    ),
    _KIND.PRODUCER_SNAPSHOT: KindFacts(
        _DAMAGE,
        "readers of committed records fail, or miss open transactions; a broker that loads the snapshot fails too",
        COPY_AGAIN,
    ),
    _KIND.LEADER_EPOCH_INDEX: KindFacts(
        _DAMAGE,
        "readers may choose the wrong segments; a broker that rebuilds its leader epochs fails",
        COPY_AGAIN,
    ),
    _KIND.END_OFFSET: KindFacts(
        _DAMAGE,
        "the manifest's end offset is not that of the last record: readers may skip records of this segment or of the "
        "next",
        "compare with an older version of the manifest, or copy the segment again",
    ),
    _KIND.ENDS_EARLY: KindFacts(
        _NOTICE, "the last records end before the segment does, for example after compaction", "nothing"
    ),
    _KIND.CHUNK_DAMAGED: KindFacts(_DAMAGE, "the records of the chunk cannot be read", COPY_AGAIN),
    _KIND.BATCH_CRC: KindFacts(
        _DAMAGE, "the batch's CRC does not match: readers fail there, or skip the batch", COPY_AGAIN
    ),
    _KIND.BATCH_STRUCTURE: KindFacts(
        _DAMAGE, "a batch is not whole: later batches cannot be read in order", COPY_AGAIN
    ),
    _KIND.BATCH_OFFSETS: KindFacts(
        _DAMAGE, "the batch's offsets are wrong: readers fail there, or get records twice or not at all", COPY_AGAIN
    ),
    _KIND.BATCH_EPOCH: KindFacts(
        _DAMAGE, "the batch's leader epoch was not in force: readers show a wrong epoch", COPY_AGAIN
    ),
    _KIND.MAX_TIMESTAMP: KindFacts(
        _DAMAGE,
        "the manifest's greatest timestamp is not that of the records: look-ups by time skip the segment, and "
        "retention deletes it too early or too late",
        "compare with an older version of the manifest",
    ),
    _KIND.TRAILING_ZEROS: KindFacts(
        _NOTICE,
        "the log ends in zeros, as a preallocated log does; readers stop there, and fail if the manifest claims more "
        "records",
        "nothing, if this is the segment's only finding",
    ),
    _KIND.NOT_IN_BUCKET: KindFacts(
        _MISSING,
        "the brokers list the segment, and their consumers fail there",
        "restore the segment, or wait until retention deletes it",
    ),
    _KIND.UNKNOWN_TO_BROKERS: KindFacts(
        _NOTICE,
        "the brokers do not list the segment: their consumers do not get it, and retention does not delete it",
        "keep the segment if it was copied without a broker; otherwise a deletion left it behind",
    ),
    _KIND.BROKERS_DIFFER: KindFacts(
        _DAMAGE,
        "the brokers' metadata and the manifest contradict each other",
        "verify at level data to find out which is right",
    ),
    _KIND.BROKERS_RECORD: KindFacts(
        _DAMAGE,
        "a record of the metadata topic is not Kafka's; a broker would stop at it",
        "examine the record of the metadata topic at that offset",
    ),
    _KIND.MANY_MORE: KindFacts(
        _DAMAGE, "one object has more findings than are listed", "do the same as for the listed findings"
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a verification.

    ``object_key`` is the key as messages show it. ``byte_range`` is within that object as stored. ``offsets`` are the
    first and last offset concerned.
    """

    kind: FindingKind
    partition: TopicIdPartition
    detail: str
    start_offset: int | None = None
    segment_id: Uuid | None = None
    object_key: str | None = None
    byte_range: ByteRange | None = None
    offsets: tuple[int, int] | None = None

    @property
    def severity(self) -> Severity:
        """The severity of the finding."""
        return self.kind.facts.severity

    @property
    def meaning(self) -> str:
        """The meaning of the finding for readers."""
        return self.kind.facts.meaning

    @property
    def advice(self) -> str:
        """The advice on how to resolve the finding."""
        return self.kind.facts.advice


_FIELDS: Final[Mapping[str, tuple[type[str | int], Callable[[Finding], str | int | None]]]] = {
    "severity": (str, lambda finding: finding.severity.value),
    "kind": (str, lambda finding: finding.kind.value),
    "topic": (str, lambda finding: finding.partition.topic),
    "topic_id": (str, lambda finding: str(finding.partition.topic_id)),
    "partition": (int, lambda finding: finding.partition.partition),
    "base_offset": (int, lambda finding: finding.start_offset),
    "segment_id": (str, lambda finding: None if finding.segment_id is None else str(finding.segment_id)),
    "object": (str, lambda finding: finding.object_key),
    "first_byte": (int, lambda finding: None if finding.byte_range is None else finding.byte_range.start),
    "stop_byte": (int, lambda finding: None if finding.byte_range is None else finding.byte_range.stop),
    "first_offset": (int, lambda finding: finding.offsets and finding.offsets[0]),
    "last_offset": (int, lambda finding: finding.offsets and finding.offsets[1]),
    "detail": (str, lambda finding: finding.detail),
    "meaning": (str, lambda finding: finding.meaning),
    "advice": (str, lambda finding: finding.advice),
}
"""The fields of a finding's row: the type of each value (or None), and how to get it."""

ROW_COLUMNS: Final[Mapping[str, type[str | int]]] = {name: kind for name, (kind, _) in _FIELDS.items()}
"""The columns of a finding's row, with their types."""


def finding_row(finding: Finding) -> dict[str, str | int | None]:
    """Return a finding as a row, for JSON and tables."""
    return {name: value_of(finding) for name, (_, value_of) in _FIELDS.items()}
