"""Frozen values that all packages share, named after Kafka's own classes."""

from __future__ import annotations

import base64
import binascii
import enum
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Self, TypeAlias, cast

from tieredstore.errors import ConfigError, InvalidRangeError, excerpt

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition number, without a topic id."""

OffsetSpan: TypeAlias = tuple[int, int]
"""Offsets of a partition, half-open, independent of a segment."""

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Kafka's ``isolation.level``."""

DEFAULT_ISOLATION: Final[Isolation] = "read_committed"
"""The default isolation of every reader: it returns no records of aborted or open transactions."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The offset of the first record with the timestamp ``timestamp_ms`` or a later one, as when a consumer seeks by
    time.
    """

    timestamp_ms: int

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """Convert a moment with a time zone. Raise ConfigError for a moment without a time zone."""
        if moment.tzinfo is None:
            raise ConfigError(f"the time {moment.isoformat()} has no time zone")
        return cls(-((EPOCH - moment) // timedelta(milliseconds=1)))


@dataclass(frozen=True, slots=True)
class Last:
    """The offset from which ``count`` records remain up to the end of the log."""

    count: int


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log."""


Place: TypeAlias = int | AtTime | Last | Earliest | Latest
"""A requested start or end of a read. The partition's log then determines its offset. A number is an offset."""

Places: TypeAlias = Place | Mapping[TopicPartition, Place]
"""One place (start or end) for all partitions, or one for each partition."""

_SPELLED: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]").fullmatch
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_TO_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


@dataclass(frozen=True, slots=True, order=True)
class Uuid:
    """Kafka's ``Uuid``: 16 bytes, written as 22 characters of URL-safe base64 without padding."""

    bytes: bytes

    def __post_init__(self) -> None:
        if len(self.bytes) != 16:
            raise ConfigError(f"a Kafka uuid has 16 bytes, not {len(self.bytes)}")

    @classmethod
    def parse(cls, text: str) -> Uuid:
        """Parse 22 characters of URL-safe base64; raise ConfigError for anything else."""
        try:
            raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        # Check the lengths, because base64 texts of other lengths also decode, to another number of bytes.
        if len(text) != 22 or len(raw) != 16:
            raise ConfigError(f"{excerpt(text)!r} is not a Kafka uuid: it must be 22 characters of URL-safe base64")
        return cls(raw)

    @classmethod
    def parse_canonical(cls, text: str) -> Uuid | None:
        """Return the uuid that Kafka writes as ``text``; None if Kafka writes no uuid so.

        Base64 has several spellings of the same 16 bytes: :meth:`parse` accepts all of them, this method only Kafka's.
        """
        # The last character has spare bits, which are 0 in Kafka's spelling, so refuse other values.
        if _SPELLED(text) is None:
            return None
        return cls(binascii.a2b_base64(text.encode("ascii").translate(_TO_STANDARD) + b"=="))

    @classmethod
    def random(cls) -> Uuid:
        """Make a random (version 4) uuid whose text does not start with ``-``, like Kafka's ``randomUuid``."""
        while True:
            raw = bytearray(os.urandom(16))
            # Set the bits for version 4 and for the variant of RFC 9562.
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            uuid = cls(bytes(raw))
            # If the id begins with a dash, draw again, as Kafka does, because the id would look like a command's
            # option.
            if not str(uuid).startswith("-"):
                return uuid

    def __hash__(self) -> int:
        return hash(self.bytes)

    def __str__(self) -> str:
        return binascii.b2a_base64(self.bytes, newline=False).translate(_TO_URL_SAFE)[:22].decode("ascii")


@dataclass(frozen=True, slots=True)
class TopicId:
    """A topic's id. ``is_real`` is True if the id identifies one incarnation of the topic.

    Kafka's own id is real. An id that a layout derives from the topic's name is not: all incarnations have the same.
    """

    value: Uuid
    is_real: bool = True

    @classmethod
    def of(cls, value: Uuid, derived: Uuid | None) -> TopicId:
        """Wrap an id. The id is not real if it equals ``derived``, the id that the layout makes from the topic's
        name.
        """
        return cls(value, is_real=value != derived)

    def contradicts(self, other: TopicId) -> bool:
        """Return True if the two ids certainly belong to different incarnations of a topic."""
        return self.is_real and other.is_real and self.value != other.value


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """One partition of one incarnation of a topic."""

    topic_id: Uuid
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} ({self.topic_id})"


@dataclass(frozen=True, slots=True, order=True)
class RemoteLogSegmentId:
    """The id of one attempt to copy a segment: each further attempt has another ``id``."""

    topic_id_partition: TopicIdPartition
    id: Uuid

    def __hash__(self) -> int:
        # Hash only one field, because ids are unique. A catalog computes a hundred thousand hashes, so each should be
        # cheap.
        return hash(self.id.bytes)


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """The metadata of a segment (Kafka's class of this name).

    ``end_offset``, ``max_timestamp_ms``, ``broker_id`` and ``event_timestamp_ms`` are -1 if unknown.
    ``segment_leader_epochs`` are ``(epoch, start offset)`` pairs in ascending order of epochs. ``txn_idx_empty`` is
    None for brokers before Kafka 4.0: they do not write it.
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    segment_size_in_bytes: int
    max_timestamp_ms: int = -1
    broker_id: int = -1
    event_timestamp_ms: int = -1
    segment_leader_epochs: tuple[tuple[int, int], ...] = ()
    txn_idx_empty: bool | None = None
    custom_metadata: bytes | None = None

    def __hash__(self) -> int:
        return hash(self.remote_log_segment_id.id.bytes)

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return self.remote_log_segment_id.topic_id_partition

    def __str__(self) -> str:
        partition, segment_id = self.topic_id_partition, self.remote_log_segment_id.id
        return f"{partition.topic}-{partition.partition} at offset {self.start_offset} (segment {segment_id})"


class _PositionalReader(io.RawIOBase):
    """Reader with a position of its own, so that several readers can share an open file's descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = str(path)
        self._descriptor = descriptor
        self._position = 0

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that stays open, so that it is readable even after another process deletes the file.

    ``path`` is the path by which the file was opened. The owner closes the file after the last read. Thread-safe.
    """

    path: Path
    descriptor: int

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return a reader with its own position; closing it leaves the descriptor open."""
        if mode != "rb":
            raise ValueError(f"an open file can only be read again, not opened in the mode {mode!r}")
        return cast("BinaryIO", io.BufferedReader(_PositionalReader(self.path, self.descriptor)))

    def read_bytes(self) -> bytes:
        """Return the whole content of the file."""
        size = os.fstat(self.descriptor).st_size
        # Read without a reader object, which costs more than reading a small file. Usually this single call is enough.
        content = os.pread(self.descriptor, size + 1, 0)
        if len(content) == size:
            return content
        with self.open() as reader:
            return reader.read()

    def __str__(self) -> str:
        return str(self.path)


SegmentFile: TypeAlias = Path | OpenFile
"""A file of a segment, given by its name or as an open file."""


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of one closed segment (Kafka's class of this name).

    ``leader_epoch_index`` is the text of the leader-epoch checkpoint, without the epochs that begin after the segment.
    """

    log_segment: SegmentFile
    offset_index: SegmentFile
    time_index: SegmentFile
    transaction_index: SegmentFile | None
    producer_snapshot_index: SegmentFile
    leader_epoch_index: bytes


class IndexType(enum.Enum):
    """Kafka's ``RemoteStorageManager.IndexType``; the value is the name that commands and messages use."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    LEADER_EPOCH = "leader-epoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A half-open range of bytes: it includes ``start``, but not ``stop``. RemoteStorageManager converts Kafka's
    inclusive ends.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise InvalidRangeError(f"bytes {self.start}:{self.stop} are not a range")

    def __len__(self) -> int:
        return self.stop - self.start


Properties = Mapping[str, str]
"""Settings in the form of a properties file: a mapping of names to texts."""

SettingValue: TypeAlias = "str | int | bool | os.PathLike[str] | timedelta | Sequence[str]"
"""The value of a setting in Python. A duration is converted to milliseconds, and a list to its items joined by
commas."""

GivenProperties: TypeAlias = Mapping[str, SettingValue]
"""Settings in the form that a Python program passes: names, and values of several types."""


def name_of(where: TopicPartition) -> str:
    """Return a partition's name for messages."""
    return f"{where[0]}-{where[1]}"


def human_bytes(count: int) -> str:
    """Format ``count`` bytes for a person: ``1.5 MiB``."""
    # GiB is the largest unit, so that large sizes are comparable without conversion.
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def utc_text(time_ms: int) -> str:
    """Format milliseconds since 1970 for a person: ``2026-01-31T08:00:00Z``, or the number beyond Python's dates."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def can_be_topic(name: str) -> bool:
    """Return True if Kafka allows a topic of this name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


_DAY: Final = re.compile(r"(?:19|20)\d{6}", re.ASCII)
_SECONDS_OF_CENTURIES: Final = range(946_684_800, 4_102_444_800)  # the years 2000 to 2099
_BEYOND_LOGS: Final = 10**12
"""An offset that no log reaches: at 100,000 records per second, it takes more than a hundred days. A larger number is
probably a time in milliseconds since 1970.
"""
_WAY_TO_WRITE_A_TIME: Final = "a time is written 2026-01-31T08:00:00Z, or @ and the milliseconds since 1970"
_NAMED: Final = 3


def check_offset(offset: int, ends: Mapping[str, int] | None = None) -> None:
    """Raise ConfigError for an offset that is probably meant as a time, or that is beyond the end of each log in
    ``ends``.

    ``ends`` maps a log's name to its last offset plus 1. The check protects users who write a time as a number. As an
    offset, this number would make a deletion delete all records, and a read return none.
    """
    if offset >= _BEYOND_LOGS:
        raise ConfigError(f"{offset} is not an offset of a log; {hint_of_number(offset) or _WAY_TO_WRITE_A_TIME}")
    if ends and offset > max(ends.values()):
        shown = ", ".join(f"{name} ({end})" for name, end in list(ends.items())[:_NAMED])
        more = f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else ""
        raise ConfigError(
            f"offset {offset} is beyond the end of {shown}{more}; {hint_of_number(offset) or _WAY_TO_WRITE_A_TIME}"
        )


def hint_of_number(offset: int) -> str | None:
    """Return a hint on how to write a time; None unless the number looks like a date, seconds or milliseconds."""
    if _DAY.fullmatch(str(offset)):
        try:
            return f"a day is written {datetime.strptime(str(offset), '%Y%m%d').replace(tzinfo=UTC):%Y-%m-%d}"
        except ValueError:
            return None
    if offset in _SECONDS_OF_CENTURIES:
        return f"a time in seconds since 1970 is written @{offset}000"
    if offset // 1000 in _SECONDS_OF_CENTURIES:
        return f"a time in milliseconds since 1970 is written @{offset}"
    return None
