"""Entries of the commit log, and their JSON: offset windows and the files written for them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter

from tieredstore.backends.base import Prepared
from tieredstore.errors import CommitLogCorruptError, StoreError
from tieredstore.limits import MAX_INT64
from tieredstore.versions import COMMIT, StateKind

EntryKind: TypeAlias = Literal[
    "begin", "batch", "rewrite", "published", "redrive", "finalize", "take-over", "seal", "drop",
    "backfill", "replacing", "replaced",
]  # fmt: skip
"""Kinds of log entries. Only :func:`effects` translates a kind into changes of the state."""

Number: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_INT64)]
_Offset: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT64)]
_EXACT: Final = ConfigDict(extra="forbid")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Offsets ``start`` to ``stop`` (exclusive) of a partition of one topic id. Small and picklable."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    leader_epoch: int = -1
    """Leader epoch of the record before ``stop`` (or a later epoch), -1 if unknown."""

    def __str__(self) -> str:
        """Return the offsets in words, such as ``offsets 0 to 9 of orders-1``."""
        return f"offsets {self.start} to {self.stop - 1} of {self.topic}-{self.partition}"

    @property
    def where(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def is_mark(self) -> bool:
        """True for a mark: an empty offset window that records where a partition begins."""
        return self.start == self.stop

    def overlaps(self, other: WrittenWindow) -> bool:
        """Return True if both have an offset of the same partition."""
        return self.where == other.where and self.start < other.stop and other.start < self.stop

    def without_records(self) -> WrittenWindow:
        """Return the offset window as a WrittenWindow without files. An entry uses it to plan a backfill or to mark
        where a partition begins."""
        return WrittenWindow(
            self.topic, self.topic_id, self.partition, self.start, self.stop, 0, 0, 0, (),
            leader_epoch=self.leader_epoch,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of an offset window. ``kind``: ``data``, ``sidecar`` (metadata that the format cannot hold) or
    ``quarantine``.

    The file's records have offsets from ``first_offset`` to ``last_offset`` and timestamps from ``min_timestamp`` to
    ``max_timestamp`` (all inclusive). Timestamps are in ms since the epoch, -1 if there are no records.
    """

    __pydantic_config__: ClassVar = _EXACT

    kind: str
    key: str
    size: Number
    sha256: str
    first_offset: Number
    last_offset: Number
    records: Number
    min_timestamp: Number
    max_timestamp: Number
    prepared: Annotated[Prepared, PlainValidator(Prepared.from_json)]


@dataclass(frozen=True, slots=True)
class WrittenWindow:
    """A written offset window. Each record of the window is in a data file, or a transformer dropped it, or it is
    quarantined as a bad message.
    """

    __pydantic_config__: ClassVar = _EXACT

    topic: str
    topic_id: str
    partition: Number
    start: _Offset
    stop: _Offset
    records: Number
    filtered: Number
    quarantined: Number
    files: tuple[OutputFile, ...]
    read_bytes: Number = -1
    """Bytes of all keys and values read for the offset window; -1 if unknown."""
    leader_epoch: Number = -1
    """Leader epoch of the record before ``stop`` (or a later epoch), -1 if unknown."""

    @property
    def where(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def window(self) -> BatchWindow:
        """The offset window without the files."""
        return BatchWindow(self.topic, self.topic_id, self.partition, self.start, self.stop)

    @property
    def data_files(self) -> list[OutputFile]:
        """The data files, without sidecars and quarantined messages."""
        return [file for file in self.files if file.kind == "data"]

    @property
    def max_timestamp(self) -> int:
        """The latest timestamp of the window's records; -1 if there are none."""
        return max((file.max_timestamp for file in self.files), default=-1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the commit log. ``writer`` is the id of the driver that wrote it."""

    __pydantic_config__: ClassVar = _EXACT

    number: Number
    kind: EntryKind
    writer: str
    fingerprint: str
    windows: tuple[WrittenWindow, ...]
    removed: tuple[str, ...] = ()
    """Keys of files to delete after the files of the offset windows are published."""
    other: Number = -1
    """Number of another generation (a version of the output), or -1. Its role depends on ``kind``:

    - ``seal``: the generation that continues this one
    - ``take-over``: the previous generation
    - ``backfill``: the generation whose files are replaced
    - ``replacing``, ``replaced``: the generation that replaces this one
    - ``redrive`` after a take-over: the generation that quarantined the messages
    """
    directories: tuple[str, ...] = ()
    """Directories, oldest first. Their role depends on ``kind``:

    - ``finalize``: directories that get a ``_SUCCESS``
    - ``replacing``: directories without ``_SUCCESS`` until a ``replaced`` entry names them
    - other kinds: directories whose ``_SUCCESS`` is rewritten
    """

    @property
    def files(self) -> list[OutputFile]:
        """Files of all offset windows."""
        return [file for window in self.windows for file in window.files]

    def to_bytes(self) -> bytes:
        """Encode the entry for the store; equal entries always give equal bytes."""
        content: dict[str, Any] = asdict(self)
        for window in content["windows"]:
            if window["leader_epoch"] < 0:
                del window["leader_epoch"]
        # Leave these three fields out if they are empty, because most entries do not have them.
        for name, nothing in (("removed", ()), ("directories", ()), ("other", -1)):
            if content[name] == nothing:
                del content[name]
        return COMMIT.to_bytes(content)

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Decode the bytes of ``to_bytes``. Raise NewerVersionError for bytes of a later release, CommitLogCorruptError
        for any other bytes.
        """
        entry = read_state(COMMIT, cls, data, key)
        for window in entry.windows:
            if window.start > window.stop:
                raise CommitLogCorruptError(
                    f"{key} has a window that ends before its start: {window.start} to {window.stop}"
                )
        return entry


@dataclass(frozen=True, slots=True)
class Effects:
    """Changes that a log entry makes to the state of the log. Fields that do not apply are empty."""

    begins: Sequence[WrittenWindow] = ()
    """Empty offset windows that mark where partitions begin."""
    writes: Sequence[WrittenWindow] = ()
    """Written offset windows. The next window of a partition begins at the ``stop`` of its written window."""
    redrives: Sequence[WrittenWindow] = ()
    """Offset windows whose quarantined messages were parsed again. The new files with these messages belong to this
    generation."""
    jumps: Sequence[WrittenWindow] = ()
    """Planned offset windows of a backfill. The next window of a partition must begin at the ``start`` of its planned
    window."""
    gives: Sequence[WrittenWindow] = ()
    """Offset windows that the generation ``other`` has replaced. The driver deletes this generation's files of these
    windows.
    """
    publishes: bool = False
    """True if the driver must publish files or write ``_SUCCESS`` marks before it commits another entry."""
    settles: bool = False
    """True if the entry records that all files of earlier entries are published, and that the latest backfill is
    complete."""
    withholds: Sequence[str] | None = None
    """Directories that must have no ``_SUCCESS`` while the generation ``other`` replaces files; None if the entry does
    not change these directories."""
    releases: Sequence[str] | None = None
    """Directories that may have a ``_SUCCESS`` again after a replacement; None if the entry does not change these
    directories."""
    neighbour: int = -1
    """Number of the previous generation, or of the generation that continues this one; -1 if the entry names
    neither."""
    ends: Literal["", "seal", "drop"] = ""
    """The way in which the entry ends the log: ``seal`` or ``drop``. Empty if the entry does not end the log."""

    @property
    def adds(self) -> Sequence[WrittenWindow]:
        """Offset windows whose data files are added to the output."""
        return self.writes or self.redrives


def effects(entry: Entry) -> Effects:  # noqa: C901  one case per kind
    """Return the effects of an entry. For every kind of entry, the driver deletes the files in ``removed`` after it has
    published the new files.

    | kind | when it is committed |
    |---|---|
    | ``begin`` | a driver starts; it marks where partitions new to the log begin |
    | ``take-over`` | first entry of a log that continues a sealed generation |
    | ``batch`` | windows were written |
    | ``rewrite`` | the store had dropped prepared files of the previous entry, so its windows were written again |
    | ``published`` | all files of earlier entries are visible; files that vanish later are not written again |
    | ``redrive`` | quarantined messages were parsed again |
    | ``finalize`` | directories of a past period are complete |
    | ``backfill`` | before any of the planned windows is written |
    | ``replacing`` | in the log of the replaced generation, before any of its files is deleted |
    | ``replaced`` | in the same log: before files of its windows are deleted, and without windows after all deletions |
    | ``seal``, ``drop`` | the log ends |
    """
    windows, paths = entry.windows, entry.directories
    match entry.kind:
        case "begin":
            return Effects(begins=windows)
        case "take-over":
            return Effects(begins=windows, neighbour=entry.other)
        case "batch":
            return Effects(writes=windows, publishes=True)
        case "redrive":
            return Effects(redrives=windows, publishes=True)
        case "rewrite" | "finalize":
            return Effects(publishes=True)
        case "published":
            return Effects(settles=True)
        case "backfill":
            return Effects(jumps=windows)
        case "replacing":
            return Effects(withholds=paths)
        case "replaced":
            return Effects(gives=windows, releases=paths if paths or not windows else None)
        case "seal":
            return Effects(neighbour=entry.other, ends="seal")
        case "drop":
            return Effects(ends="drop")


def read_state(state: StateKind, kind: type[Value], data: bytes | None, key: str) -> Value:
    """Decode a stored object's bytes to an object of the class ``kind``.

    Raise NewerVersionError if a later release wrote the bytes, CommitLogCorruptError if they are invalid.
    """
    try:
        adapter = cast("TypeAdapter[Value]", _adapter(cast("Hashable", kind)))
        return state.parse(adapter, data, key, CommitLogCorruptError)
    except StoreError as error:
        raise CommitLogCorruptError(f"{key}: {error}") from error


@functools.cache
def _adapter(kind: type[object]) -> TypeAdapter[object]:
    return TypeAdapter(kind)
