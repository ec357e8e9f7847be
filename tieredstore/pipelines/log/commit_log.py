"""The commit log: objects with dense numbers, each created only if absent. It alone says what is written."""

from __future__ import annotations

import enum
import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import (
    CommitLogCorruptError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
)
from tieredstore.partitions.position import Position
from tieredstore.pipelines.filing.naming import own_folder
from tieredstore.pipelines.log.entries import (
    Effects,
    Entry,
    EntryKind,
    Number,
    OutputFile,
    WrittenWindow,
    effects,
    read_json,
)
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

_logger: Final = logging.getLogger(__name__)

SNAPSHOT_EVERY: Final = 1000
_MOST_BYTES: Final = 256 << 20
_FEW: Final = 8
"""Entries that are read one by one before threads are begun for the others."""
_SNAPSHOT_FORMAT: Final = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one life of a partition is written: the next offset, and the latest time of what was."""

    topic_id: str
    next_offset: int
    max_timestamp: int
    files: int
    records: int
    recent_bytes: int = 0
    recent_offsets: int = 0
    """What the latest windows read, and over how many offsets: each counts half as much as the one behind it."""
    leader_epoch: int = -1
    """That of what lies before the next offset, or a later one; -1 if it is not known."""

    @property
    def position(self) -> Position:
        """The next offset with its epoch."""
        return Position(self.next_offset, None if self.leader_epoch < 0 else self.leader_epoch)

    def recent_with(self, window: WrittenWindow) -> tuple[int, int]:
        """These two with one more window."""
        if window.read_bytes < 0 or window.stop == window.start:
            return self.recent_bytes, self.recent_offsets
        return self.recent_bytes // 2 + window.read_bytes, self.recent_offsets // 2 + window.stop - window.start


@dataclass(frozen=True, slots=True)
class Contents:
    """What a directory of a topic holds: files of records, and these."""

    topic: str
    files: int
    records: int


class Life(enum.StrEnum):
    """What a generation is, by its log. A transition is one entry, created only if absent.

    | life | means | entries that lead out of it |
    |---|---|---|
    | free | there is no entry | ``begin``, ``take-over``: following |
    | following | it goes on with its topics | ``backfill`` of what is not written: filling; ``seal``, ``drop`` |
    | filling | windows of a backfill are to be written, not all are | ``published``: filled; ``seal``, ``drop`` |
    | filled | it holds chosen offsets and does not go on | ``backfill``: filling; ``seal``, ``drop`` |
    | sealed | the generation ``other`` goes on where it ends, and nobody runs it | ``drop`` |
    | dropped | its number is used up; the log stays | none: ``drop`` again completes the deletion |

    In all but the first and the last, files may give way to those of another generation (``giving_to``).
    """

    FREE = "free"
    FOLLOWING = "following"
    FILLING = "filling"
    FILLED = "filled"
    SEALED = "seal"
    DROPPED = "drop"


@dataclass(slots=True)
class LogState:
    """What the entries up to ``number`` say together: a field for each of a snapshot's.

    ``written`` is the last that publishes anything, -1 without any; ``is_published`` if all of that is known to have
    been published. ``other`` is the generation that went before, or of one that is sealed the one that goes on.
    """

    number: int = -1
    written: int = -1
    positions: dict[tuple[str, int], Progress] = field(default_factory=dict[tuple[str, int], Progress])
    is_published: bool = False
    closed: Literal["", "seal", "drop"] = ""
    other: int = -1
    directories: dict[str, Contents] = field(default_factory=dict[str, Contents])
    """By their paths, those that files of records lie in."""
    finalized: set[str] = field(default_factory=set[str])
    """Paths that a ``_SUCCESS`` was written to; files lie in these or below."""
    linked: set[int] = field(default_factory=set[int])
    """Generations that entries name: what they have in a directory counts there with what this one has."""
    giving_to: int = -1
    """The generation that files of this one give way to just now; -1: none."""
    withheld: set[str] = field(default_factory=set[str])
    """Paths that are to have no ``_SUCCESS`` meanwhile."""
    backfill: int = -1
    """The number of the latest entry that says what is to be filled in; -1: there is none."""
    is_filled: bool = True
    """Whether all of that is done."""

    @property
    def life(self) -> Life:
        """What the generation is."""
        if self.closed:
            return Life(self.closed)
        if self.number < 0:
            return Life.FREE
        if self.backfill < 0:
            return Life.FOLLOWING
        return Life.FILLED if self.is_filled else Life.FILLING

    @property
    def unpublished(self) -> int:
        """The entry whose files are perhaps not all visible yet; -1: there is none."""
        return -1 if self.is_published else self.written

    def apply(self, entry: Entry) -> None:
        """Go on by one entry; CommitLogCorruptError for one that does not follow."""
        if entry.number != self.number + 1:
            raise CommitLogCorruptError(
                f"the commit log has entry {entry.number} behind {self.number}: some are missing"
            )
        does, self.number = effects(entry), entry.number
        if entry.other >= 0:
            self.linked.add(entry.other)
        if does.neighbour >= 0:
            self.other = does.neighbour
        self.closed = does.ends or self.closed
        self._move(does)
        if does.jumps:
            self.backfill, self.is_filled = entry.number, False
        if does.publishes:
            self.written, self.is_published = entry.number, False
            self.finalized.update(entry.directories)
        if does.settles:
            self.is_published = self.is_filled = True
        if does.withholds is not None:
            self.giving_to = entry.other
            self.withheld.update(does.withholds)
        if does.releases is not None:
            self.giving_to = -1
            self.withheld.difference_update(does.releases)

    def _move(self, does: Effects) -> None:
        for window in (*does.begins, *does.writes):
            self._advance(window)
        for window in does.adds:
            self._count(window, 1)
        for window in does.gives:
            self._count(window, -1)
        for window in does.jumps:
            self._jump(window)

    def _jump(self, window: WrittenWindow) -> None:
        before = self.positions.get(window.where, Progress(window.topic_id, window.start, -1, 0, 0))
        if before.topic_id != window.topic_id or window.start < before.next_offset:
            raise CommitLogCorruptError(f"entry {self.number} of the commit log backfills what is written before it")
        self.positions[window.where] = replace(before, next_offset=window.start)

    def _advance(self, window: WrittenWindow) -> None:
        before = self.positions.get(window.where, Progress(window.topic_id, window.start, -1, 0, 0))
        if (before.topic_id, before.next_offset) != (window.topic_id, window.start):
            raise CommitLogCorruptError(
                f"entry {self.number} of the commit log goes on with {window.topic}-{window.partition} at offset "
                f"{window.start}, and the entries before it end at {before.next_offset}"
            )
        recent_bytes, recent_offsets = before.recent_with(window)
        is_mark = window.start == window.stop
        self.positions[window.where] = replace(
            before,
            next_offset=window.stop,
            max_timestamp=max(before.max_timestamp, window.max_timestamp),
            recent_bytes=recent_bytes,
            recent_offsets=recent_offsets,
            leader_epoch=max(window.leader_epoch, before.leader_epoch) if is_mark else window.leader_epoch,
        )

    def _count(self, window: WrittenWindow, sign: int) -> None:
        """Files and records of a window come, or go."""
        before = self.positions.get(window.where)
        if before is None:
            raise CommitLogCorruptError(f"entry {self.number} of the commit log redrives what no entry before it has")
        files, records = before.files + sign * len(window.data_files), before.records + sign * window.records
        self.positions[window.where] = replace(before, files=files, records=records)
        for file in window.data_files:
            path = file.key.rpartition("/")[0]
            held = self.directories.get(path, Contents(window.topic, 0, 0))
            now = Contents(window.topic, held.files + sign, held.records + sign * file.records)
            if now.files:
                self.directories[path] = now
            else:
                self.directories.pop(path, None)

    def to_bytes(self) -> bytes:
        """As a snapshot."""
        content = {
            "format": _SNAPSHOT_FORMAT,
            "positions": [[*where, *astuple(one)] for where, one in sorted(self.positions.items())],
            "directories": [[path, *astuple(one)] for path, one in sorted(self.directories.items())],
        }
        for name, of in _SNAPSHOT_NAMES.items():
            value: Any = getattr(self, of)
            content[name] = [*sorted(value)] if of in {"finalized", "linked", "withheld"} else value
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> LogState:
        """What a snapshot says; nothing, if another version wrote it: the entries say all."""
        if read_json(_AnyVersion, data, key).format != _SNAPSHOT_FORMAT:
            return cls()
        stored = read_json(_Snapshot, data, key)
        return cls(
            positions={row[:2]: Progress(*row[2:]) for row in stored.positions},
            directories={row[0]: Contents(*row[1:]) for row in stored.directories},
            **{of: getattr(stored, name) for name, of in _SNAPSHOT_NAMES.items()},
        )


@dataclass(frozen=True, slots=True)
class _AnyVersion:
    format: int


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A state as it is stored; names of earlier versions stay."""

    number: Number
    written: Number
    published: bool
    positions: list[tuple[str, int, str, Number, Number, int, int, int, int, Number]]
    closed: Literal["", "seal", "drop"]
    other: Number
    directories: list[tuple[str, str, int, int]]
    finalized: set[str]
    linked: set[int]
    replacing: Number
    withheld: set[str]
    backfill: Number
    backfilled: bool


_SNAPSHOT_NAMES: Final[Mapping[str, str]] = {
    "number": "number", "written": "written", "published": "is_published", "closed": "closed", "other": "other",
    "finalized": "finalized", "linked": "linked", "replacing": "giving_to", "withheld": "withheld",
    "backfill": "backfill", "backfilled": "is_filled",
}  # fmt: skip
"""Fields of a snapshot, and what they are of a state; positions and directories are rows."""


class CommitLog:
    """The log of one generation of a pipeline, below ``root`` of a store. For one thread.

    ``state`` is what was read of it; ``append`` goes on behind that, or is FencedError if somebody else has.
    """

    def __init__(self, store: ObjectStore, root: str, pipeline: str, generation: int) -> None:
        self.store = store
        self.root, self.pipeline, self.generation = root, pipeline, generation
        self.folder: str = own_folder(root, pipeline, generation)
        self.writer: str = uuid.uuid4().hex
        """Who writes: new in each process that opens the log."""
        self.state = LogState()

    def of_generation(self, generation: int) -> CommitLog:
        """The log of another generation of the same pipeline, not yet read."""
        return CommitLog(self.store, self.root, self.pipeline, generation)

    @property
    def staging_prefix(self) -> str:
        """Where stores that hold nothing back keep what is prepared."""
        return f"{self.folder}staging/"

    def read(self) -> LogState:
        """All that is committed by now: the latest snapshot, and the entries behind it."""
        if self.state.number < 0:
            self.state = self._snapshot()
        for entry in self.entries(self.state.number + 1):
            self.state.apply(entry)
        return self.state

    def entry(self, number: int) -> Entry:
        """One entry; CommitLogCorruptError for one that is not what was written, or too large."""
        key = self._key(number)
        data = self.store.get_small(key, _MOST_BYTES)
        if data is None:
            raise CommitLogCorruptError(f"{key} has more than {_MOST_BYTES} bytes, and is no entry of a commit log")
        entry = Entry.from_bytes(data, key)
        if entry.number != number:
            raise CommitLogCorruptError(f"{key} says that it is entry {entry.number}")
        return entry

    def entries(self, first: int = 0) -> Iterator[Entry]:
        """From ``first`` on, in their order. Many are asked for at once: a log that is long is a request for each."""
        listed = self.store.list(f"{self.folder}commits/", self._key(first - 1) if first else None)
        numbers = (_number_of(info.key) for info in listed)
        some = list(islice(numbers, _FEW))
        yield from map(self.entry, some)
        if len(some) == _FEW:
            with ThreadPool(READERS, "tieredstore-entries") as pool:
                yield from in_parallel(pool, self.entry, numbers, at_once=2 * READERS)

    def append(
        self,
        kind: EntryKind,
        fingerprint: str,
        windows: Sequence[WrittenWindow] = (),
        *,
        removed: Sequence[str] = (),
        other: int = -1,
        directories: Sequence[str] = (),
    ) -> Entry:
        """Commit. FencedError if another driver has written an entry meanwhile: then nothing of this is committed.

        StoreUnavailableError says nothing of whether it is: who reads the log again finds out. What is returned is
        another entry of this same writer if one that had been given up came to the store after all: that one stands.
        """
        entry = Entry(
            self.state.number + 1, kind, self.writer, fingerprint,
            tuple(windows), tuple(removed), other, tuple(directories),
        )  # fmt: skip
        try:
            self.store.put(self._key(entry.number), entry.to_bytes(), if_absent=True)
        except PreconditionFailedError as refusal:
            # The create may have won, and lost its answer.
            entry = self.entry(entry.number)
            if entry.writer != self.writer:
                raise self._make_fenced(entry.number) from refusal
        self.state.apply(entry)
        if entry.number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self._write_snapshot()
        return entry

    def catch_up(self) -> None:
        """Go on behind what this writer has committed by now, answered or not; FencedError if another one has."""
        for info in self.store.list(f"{self.folder}commits/", self._key(self.state.number)):
            entry = self.entry(_number_of(info.key))
            if entry.writer != self.writer:
                raise self._make_fenced(entry.number)
            self.state.apply(entry)

    def check_alone(self) -> None:
        """FencedError if there is an entry behind the last one that this log knows: another driver works by now."""
        try:
            self.store.head(self._key(self.state.number + 1))
        except ObjectNotFoundError:
            return
        raise self._make_fenced(self.state.number + 1)

    def _make_fenced(self, number: int) -> FencedError:
        return FencedError(
            f"another process has written entry {number} of {self.folder}commits/: it runs this pipeline by now, and "
            "this one ends; run one of them only"
        )

    def _key(self, number: int) -> str:
        return f"{self.folder}commits/{max(number, 0):020}.json" if number >= 0 else f"{self.folder}commits/"

    def _write_snapshot(self) -> None:
        try:
            self.store.put(f"{self.folder}snapshots/{self.state.number:020}.json", self.state.to_bytes())
        except StoreError as error:
            # It only spares reading: the entries say the same.
            _logger.warning("the snapshot of the commit log at entry %d was not written: %s", self.state.number, error)

    def _snapshot(self) -> LogState:
        *_, last = ("", *(info.key for info in self.store.list(f"{self.folder}snapshots/")))
        return LogState.from_bytes(self.store.get(last), last) if last else LogState()


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that changed what a listing shows, or will in a moment: it is the last, and not wholly published yet.

    ``kind`` ``drop``: all files of the generation go. ``directories`` are those that are complete from now on
    (``finalize``), that are not for as long as files of them give way to another generation's (``replacing`` to
    ``replaced``), or whose ``_SUCCESS`` is replaced, since late records were filed there.
    """

    number: int
    kind: EntryKind
    added: tuple[OutputFile, ...]
    removed: tuple[str, ...]
    directories: tuple[str, ...] = ()


def changes_since(log: CommitLog, number: int) -> Iterator[Change]:
    """Those behind entry ``number`` (-1: all), in their order. Bad messages, which no reader sees, are left out."""
    for entry in log.entries(number + 1):
        does = effects(entry)
        added = tuple(file for file in entry.files if file.kind != "quarantine") if does.publishes else ()
        removed = tuple(key for key in entry.removed if "/quarantine/" not in key)
        if added or removed or does.ends == "drop" or entry.directories:
            yield Change(entry.number, entry.kind, added, removed, entry.directories)


def _number_of(key: str) -> int:
    digits = key.rpartition("/")[2].removesuffix(".json")
    if not (key.endswith(".json") and len(digits) == 20 and digits.isascii() and digits.isdigit()):
        raise CommitLogCorruptError(f"{key} lies among the entries of a commit log, and is none")
    return int(digits)
