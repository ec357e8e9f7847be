"""The findings of a verification, by kind. Each kind has a severity, a meaning for readers, and advice.

``make docs`` writes the table of kinds to ``docs/how-to/verify.md``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Self

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


_REPLACE: Final = (
    "replace the segment from a backup (mirror --repair), copy it again while a broker has it, or restore an older "
    "version"
)
_DAMAGE, _MISSING, _GAP, _NOTICE = Severity.DAMAGE, Severity.MISSING, Severity.GAP, Severity.NOTICE


class FindingKind(enum.StrEnum):
    """The kind of a finding: its name in reports, its severity, its meaning for readers, and advice."""

    severity: Severity
    meaning: str
    advice: str

    def __new__(cls, name: str, severity: Severity, meaning: str, advice: str = _REPLACE) -> Self:
        """Make a kind, whose value is the name alone."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.severity, kind.meaning, kind.advice = severity, meaning, advice
        return kind

    MANIFEST_DAMAGED = "manifest-damaged", _DAMAGE, "the segment cannot be read"
    MANIFEST_REFUSED = (
        "manifest-refused",
        _DAMAGE,
        "readers refuse the segment: the manifest belongs to another segment, or breaks a rule of the settings",
    )
    METADATA_UNUSABLE = (
        "metadata-unusable",
        _DAMAGE,
        "the segment is readable, but readers work out its offsets and times from its log, with a few requests",
        "compare with an older version of the manifest; readers do not need this part",
    )
    METADATA_ABSENT = (
        "metadata-absent",
        _NOTICE,
        "some writers leave the segment's metadata out; readers work out offsets and times from the log",
        "nothing; level index checks for a gap before the next segment",
    )
    EPOCHS_CONTRADICT = (
        "epochs-contradict",
        _DAMAGE,
        "the manifest's leader epochs do not fit the segment; readers take the epochs of the leader-epoch index",
        "compare with an older version of the manifest",
    )
    NUMBERS_CONTRADICT = (
        "numbers-contradict",
        _DAMAGE,
        "one number of the manifest is wrong; the bytes that the number points to cannot be read",
    )
    LOG_MISSING = "log-missing", _DAMAGE, "the segment's records are lost; reading fails"
    INDEXES_MISSING = (
        "indexes-missing",
        _DAMAGE,
        "look-ups by offset and time fail, and brokers serve nothing of the segment",
    )
    LOG_SIZE = "log-size", _DAMAGE, "records at the end, or from some offset on, cannot be read"
    INDEXES_SIZE = "indexes-size", _DAMAGE, "some of the indexes cannot be read; brokers serve nothing of the segment"
    UNCOMMITTED = (
        "uncommitted",
        _NOTICE,
        "no reader sees these objects: a copy in progress, or the remains of a failed copy or deletion",
        "leave the objects to gc, unless the records are in no other segment",
    )
    FOREIGN_DIGITS = (
        "foreign-digits",
        _MISSING,
        "the key has non-ASCII digits of a JVM's locale: readers in other locales look for another key",
        "give the three objects their ASCII keys, the manifest last",
    )
    GAP = (
        "gap",
        _GAP,
        "readers of these offsets stop with DataLossError or, if configured so, skip the offsets",
        "copy the missing segment while a broker has it",
    )
    OVERLAP = (
        "overlap",
        _NOTICE,
        "two leaders copied some offsets; leader epochs decide which copy is read",
        "nothing: Kafka does this",
    )
    COPIED_TWICE = (
        "copied-twice",
        _NOTICE,
        "the same offsets are stored twice, which only costs space",
        "delete one copy by its segment id",
    )
    LEFT_BEHIND = (
        "left-behind",
        _GAP,
        "these offsets are only in a segment of an abandoned leader epoch: readers do not get them",
        "an unclean election lost the offsets; `tieredstore fetch` can still read the segment",
    )
    LEFT_BEHIND_COVERED = (
        "left-behind-covered",
        _NOTICE,
        "the segment belongs to an abandoned leader epoch; readers take the segment of the newer epoch",
        "nothing; brokers delete the segment with its epoch",
    )
    RECREATED_TOPIC = (
        "recreated-topic",
        _NOTICE,
        "segments of several topics with one name; readers take the latest topic, or that of --topic-id",
        "delete the segments of the older topic once they are not needed",
    )
    UNKNOWN_KEY = (
        "unknown-key",
        _DAMAGE,
        "the segment cannot be read without the key pair",
        "add the key pair to encryption.key.pairs (keys list shows its id)",
    )
    WRONG_KEY = (
        "wrong-key",
        _DAMAGE,
        "the key pair of this id does not decrypt the data key: it is another pair, or the data key is damaged",
        "find the key pair that encrypted the data key, or an older version of the manifest",
    )
    INDEXES_DAMAGED = "indexes-damaged", _DAMAGE, "an index cannot be decrypted; brokers serve nothing of the segment"
    OFFSET_INDEX = (
        "offset-index",
        _DAMAGE,
        "reading from an offset within the segment fails, or begins at the wrong place",
    )
    TIME_INDEX = "time-index", _DAMAGE, "look-ups by time fail, or give a wrong offset"
    TRANSACTION_INDEX = "transaction-index", _DAMAGE, "readers of committed records fail, or get aborted records"
    PRODUCER_SNAPSHOT = (
        "producer-snapshot",
        _DAMAGE,
        "readers of committed records fail, or miss open transactions; a broker that loads the snapshot fails too",
    )
    LEADER_EPOCH_INDEX = (
        "leader-epoch-index",
        _DAMAGE,
        "readers may choose the wrong segments; a broker that rebuilds its leader epochs fails",
    )
    END_OFFSET = (
        "end-offset",
        _DAMAGE,
        (
            "the manifest's end offset is not that of the last record: readers may skip records of this segment or of "
            "the next"
        ),
        "compare with an older version of the manifest, or copy the segment again",
    )
    ENDS_EARLY = (
        "ends-early",
        _NOTICE,
        "the last records end before the segment does, for example after compaction",
        "nothing",
    )
    CHUNK_DAMAGED = "chunk-damaged", _DAMAGE, "the records of the chunk cannot be read"
    BATCH_CRC = "batch-crc", _DAMAGE, "the batch's CRC does not match: readers fail there, or skip the batch"
    BATCH_STRUCTURE = "batch-structure", _DAMAGE, "a batch is not whole: later batches cannot be read in order"
    BATCH_OFFSETS = (
        "batch-offsets",
        _DAMAGE,
        "the batch's offsets are wrong: readers fail there, or get records twice or not at all",
    )
    BATCH_EPOCH = "batch-epoch", _DAMAGE, "the batch's leader epoch was not in force: readers show a wrong epoch"
    MAX_TIMESTAMP = (
        "max-timestamp",
        _DAMAGE,
        (
            "the manifest's greatest timestamp is not that of the records: look-ups by time skip the segment, and "
            "retention deletes it too early or too late"
        ),
        "compare with an older version of the manifest",
    )
    TRAILING_ZEROS = (
        "trailing-zeros",
        _NOTICE,
        (
            "the log ends in zeros, as a preallocated log does; readers stop there, and fail if the manifest claims "
            "more records"
        ),
        "nothing, if this is the segment's only finding",
    )
    ARCHIVED = (
        "archived",
        _MISSING,
        "the object was not checked: it is in an archive storage class, where readers cannot read it",
        "restore the object from the archive, verify again, and end the rule that archives segments",
    )
    NOT_IN_BUCKET = (
        "not-in-bucket",
        _MISSING,
        "the brokers list the segment, and their consumers fail there",
        "restore the segment, or wait until retention deletes it",
    )
    UNKNOWN_TO_BROKERS = (
        "unknown-to-brokers",
        _NOTICE,
        "the brokers do not list the segment: their consumers do not get it, and retention does not delete it",
        "keep the segment if it was copied without a broker; otherwise a deletion left it behind",
    )
    BROKERS_DIFFER = (
        "brokers-differ",
        _DAMAGE,
        "the brokers' metadata and the manifest contradict each other",
        "verify at level data to find out which is right",
    )
    BROKERS_RECORD = (
        "brokers-record",
        _DAMAGE,
        "a record of the metadata topic is not Kafka's; a broker would stop at it",
        "examine the record of the metadata topic at that offset",
    )
    MANY_MORE = (
        "many-more",
        _DAMAGE,
        "one object has more findings than are listed",
        "do the same as for the listed findings",
    )


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
