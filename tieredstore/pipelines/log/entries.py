"""The commits of a pipeline: windows of offsets and the files that hold them, as values and as JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from tieredstore.backends.base import Prepared
from tieredstore.errors import CommitLogCorruptError, StoreError
from tieredstore.limits import MAX_INT64

EntryKind: TypeAlias = Literal[
    "begin", "batch", "rewrite", "published", "redrive", "finalize", "take-over", "seal", "drop",
    "backfill", "replacing", "replaced",
]  # fmt: skip
""":func:`effects` is the only place that distinguishes kinds."""

Number: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_INT64)]
_Offset: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT64)]
_EXACT: Final = ConfigDict(extra="forbid")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets ``start`` up to ``stop`` (half-open) of one life of a partition. Small and picklable."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    leader_epoch: int = -1
    """Epoch of the records before ``stop``, or a later one; -1 if unknown."""

    @property
    def where(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def is_mark(self) -> bool:
        """True if it has no offsets and only marks where a partition begins."""
        return self.start == self.stop

    def without_records(self) -> WrittenWindow:
        """Return the form to commit when nothing of it was written: a mark, or the plan of a backfill."""
        return WrittenWindow(
            self.topic, self.topic_id, self.partition, self.start, self.stop, 0, 0, 0, (),
            leader_epoch=self.leader_epoch,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a window. ``kind``: ``data``, ``sidecar`` (metadata that a format cannot hold) or ``quarantine``.

    Offsets are those of its records, the last one inclusive; times in ms since the epoch, -1 without records.
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
    """A window (``start`` up to ``stop``, half-open) of one life of a partition, completely filed or quarantined."""

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
    """Bytes of keys and values read; -1 if unknown."""
    leader_epoch: Number = -1
    """Epoch of the records before ``stop``, or a later one; -1 if unknown."""

    @property
    def where(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def window(self) -> Window:
        """Its offsets alone."""
        return Window(self.topic, self.topic_id, self.partition, self.start, self.stop)

    @property
    def data_files(self) -> list[OutputFile]:
        """Files of records, without sidecars and bad messages."""
        return [file for file in self.files if file.kind == "data"]

    @property
    def max_timestamp(self) -> int:
        """The latest time of its records, -1 without any."""
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
    """Keys of files to delete once those of the windows are published."""
    other: Number = -1
    """The other generation: the one that continues (``seal``), the previous one (``take-over``), the one replaced
    (``backfill``), the one that replaces this one (``replacing``, ``replaced``), or the one that quarantined the
    messages (``redrive`` after a take-over); otherwise -1.
    """
    directories: tuple[str, ...] = ()
    """Paths whose ``_SUCCESS`` is written, oldest first; for ``replacing`` those without one until ``replaced``
    names them again; for any other kind those whose ``_SUCCESS`` is rewritten.
    """
    format: Literal[1] = 1

    @property
    def files(self) -> list[OutputFile]:
        """Files of all windows."""
        return [file for window in self.windows for file in window.files]

    def to_bytes(self) -> bytes:
        """Encode for the store; equal entries always give equal bytes."""
        content: dict[str, Any] = asdict(self)
        for window in content["windows"]:
            if window["leader_epoch"] < 0:
                del window["leader_epoch"]
        # Most entries have none of these, and earlier versions do not know them.
        for name, nothing in (("removed", ()), ("directories", ()), ("other", -1)):
            if content[name] == nothing:
                del content[name]
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Decode the bytes of ``to_bytes``; raise CommitLogCorruptError for anything else."""
        entry = read_json(cls, data, key)
        for window in entry.windows:
            if window.start > window.stop:
                raise CommitLogCorruptError(f"{key} has a window from {window.start} to {window.stop}")
        return entry


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of an entry; fields that do not apply are empty."""

    begins: Sequence[WrittenWindow] = ()
    """Windows without offsets that mark where partitions begin."""
    writes: Sequence[WrittenWindow] = ()
    """Written windows: their partitions continue after them."""
    redrives: Sequence[WrittenWindow] = ()
    """Windows whose bad messages were parsed again: their files are added to those of the generations."""
    jumps: Sequence[WrittenWindow] = ()
    """Windows still to write: their partitions continue at their starts."""
    gives: Sequence[WrittenWindow] = ()
    """Windows that the generation ``other`` holds from now on; their files are deleted."""
    publishes: bool = False
    """True if its files become visible, and its directories complete, before another entry follows."""
    settles: bool = False
    """True if it records that all earlier entries are published, and a backfill is complete."""
    withholds: Sequence[str] | None = None
    """Directories without ``_SUCCESS`` while the generation ``other`` replaces files; None: no replacement."""
    releases: Sequence[str] | None = None
    """Directories that may have ``_SUCCESS`` again because the replacement is over. None: it is not."""
    neighbour: int = -1
    """The previous generation, or the one that continues."""
    ends: Literal["", "seal", "drop"] = ""
    """How the entry ends the log."""

    @property
    def adds(self) -> Sequence[WrittenWindow]:
        """Windows whose files count from now on."""
        return self.writes or self.redrives


def effects(entry: Entry) -> Effects:  # noqa: C901  a row for each kind
    """Return the effects of an entry. Whatever its kind, its ``removed`` keys are deleted once its files are published.

    | kind | when |
    |---|---|
    | ``begin`` | a driver takes over and marks where partitions begin that are new to the log |
    | ``take-over`` | the first entry of a log that continues a sealed generation |
    | ``batch`` | windows were written |
    | ``rewrite`` | the previous entry's windows once more: the store had dropped prepared files |
    | ``published`` | all files of earlier entries were visible: files missing later are not written again |
    | ``redrive`` | quarantined messages were parsed again |
    | ``finalize`` | directories whose time is over are complete |
    | ``backfill`` | windows are to be written, from their starts to their stops, and none is yet |
    | ``replacing`` | in the log of the replaced generation: before any file is deleted |
    | ``replaced`` | there too: windows whose files are deleted; the last one has directories or no windows |
    | ``seal``, ``drop`` | they end a log |
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


def read_json(kind: type[Value], data: bytes, key: str) -> Value:
    """Decode a value of ``kind`` from an object's bytes; raise CommitLogCorruptError for anything else."""
    try:
        return cast("Value", _adapter(cast("Hashable", kind)).validate_json(data, strict=True))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CommitLogCorruptError(
            f"{key} has an unknown form: {where and f'{where}: '}{fault['msg']}; did a later version write it?"
        ) from None
    except StoreError as error:
        raise CommitLogCorruptError(f"{key}: {error}") from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[object]:
    return TypeAdapter(kind)
