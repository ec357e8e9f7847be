"""Commit log of a pipeline: numbered objects in the output store, each created only if absent. A record counts as
written only if the log names the file that contains it.
"""

from __future__ import annotations

import enum
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
    read_state,
)
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.versions import SNAPSHOT

_logger: Final = logging.getLogger(__name__)

SNAPSHOT_EVERY: Final = 1000
_MOST_BYTES: Final = 256 << 20
_FEW: Final = 8
"""Maximum number of entries that ``CommitLog.entries`` reads one by one. It reads a larger number in parallel."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a pipeline in one partition of one topic id: the next offset to write, and the latest timestamp
    written.
    """

    topic_id: str
    next_offset: int
    max_timestamp: int = -1
    files: int = 0
    records: int = 0
    recent_bytes: int = 0
    recent_offsets: int = 0
    """Sums of bytes and offsets over the latest offset windows, to estimate sizes. Before a new window is added, the
    sums are halved, so that old windows count less and less.
    """
    leader_epoch: int = -1
    """Leader epoch of the record before the next offset, or a later epoch; -1 if unknown."""

    @property
    def position(self) -> Position:
        """The next offset and the leader epoch."""
        return Position(self.next_offset, None if self.leader_epoch < 0 else self.leader_epoch)

    def recent_with(self, window: WrittenWindow) -> tuple[int, int]:
        """Return the new ``recent_bytes`` and ``recent_offsets`` after one more offset window."""
        if window.read_bytes < 0 or window.stop == window.start:
            return self.recent_bytes, self.recent_offsets
        return self.recent_bytes // 2 + window.read_bytes, self.recent_offsets // 2 + window.stop - window.start


@dataclass(frozen=True, slots=True)
class Contents:
    """Number of data files in one directory of a topic, and the number of their records."""

    topic: str
    files: int
    records: int


class Life(enum.StrEnum):
    """The state of a generation (a version of the output), derived from its log. Each transition is one entry, created
    only if absent.

    | state | meaning | entries that end it, with the next state |
    |---|---|---|
    | free | the log has no entry | ``begin``, ``take-over``: following |
    | following | a driver writes new records | ``backfill`` of unwritten offsets: filling; ``seal``, ``drop`` |
    | filling | some windows of a backfill are still unwritten | ``published``: filled; ``seal``, ``drop`` |
    | filled | it holds backfilled offsets and reads no new ones | ``backfill``: filling; ``seal``, ``drop`` |
    | sealed | generation ``other`` continues where this one ends; no driver runs this one | ``drop`` |
    | dropped | its number is used up; the log stays | none: ``drop`` again completes the deletion |

    In all states except free and dropped, another generation may replace files of this generation (``giving_to``).
    """

    FREE = "free"
    FOLLOWING = "following"
    FILLING = "filling"
    FILLED = "filled"
    SEALED = "seal"
    DROPPED = "drop"


@dataclass(slots=True)
class LogState:
    """The state of a log after entry ``number``. A snapshot stores each field.

    - ``written``: number of the last entry that publishes files or ``_SUCCESS`` marks, or -1
    - ``is_published``: True if the log records that everything up to ``written`` is published
    - ``other``: the generation before this one; in a sealed log, the generation that continues this one
    """

    number: int = -1
    written: int = -1
    positions: dict[tuple[str, int], Progress] = field(default_factory=dict[tuple[str, int], Progress])
    is_published: bool = False
    closed: Literal["", "seal", "drop"] = ""
    other: int = -1
    directories: dict[str, Contents] = field(default_factory=dict[str, Contents])
    """Directories that hold data files, by path."""
    finalized: set[str] = field(default_factory=set[str])
    """Paths of directories that a ``_SUCCESS`` object marks as complete. The mark covers files in the directory and
    below it."""
    linked: set[int] = field(default_factory=set[int])
    """Other generations of the output that this log's entries name. The counts in a ``_SUCCESS`` include files of these
    generations."""
    giving_to: int = -1
    """Generation (a version of the output) that is now replacing files of this one, or -1."""
    withheld: set[str] = field(default_factory=set[str])
    """Paths of directories that must have no ``_SUCCESS`` while another generation replaces their files."""
    backfill: int = -1
    """Number of the latest ``backfill`` entry, or -1."""
    is_filled: bool = True
    """True if the latest backfill is complete, or if there is none."""

    @property
    def life(self) -> Life:
        """The state of this generation (a version of the output)."""
        if self.closed:
            return Life(self.closed)
        if self.number < 0:
            return Life.FREE
        if self.backfill < 0:
            return Life.FOLLOWING
        return Life.FILLED if self.is_filled else Life.FILLING

    @property
    def unpublished(self) -> int:
        """Number of the last entry that publishes files, if some of the files may still be invisible; otherwise -1. A
        dropped generation publishes nothing any more."""
        return -1 if self.is_published or self.closed == "drop" else self.written

    def apply(self, entry: Entry) -> None:
        """Apply an entry; raise CommitLogCorruptError if it does not continue this state."""
        if entry.number != self.number + 1:
            raise CommitLogCorruptError(
                f"the commit log has entry {entry.number} right after entry {self.number}: entries are missing"
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
        before = self.positions.get(window.where, Progress(window.topic_id, window.start))
        if before.topic_id != window.topic_id or window.start < before.next_offset:
            raise CommitLogCorruptError(
                f"entry {self.number} of the commit log backfills offsets that an earlier entry wrote"
            )
        self.positions[window.where] = replace(before, next_offset=window.start)

    def _advance(self, window: WrittenWindow) -> None:
        before = self.positions.get(window.where, Progress(window.topic_id, window.start))
        if (before.topic_id, before.next_offset) != (window.topic_id, window.start):
            raise CommitLogCorruptError(
                f"entry {self.number} of the commit log continues {window.topic}-{window.partition} at offset "
                f"{window.start}, but the earlier entries end at {before.next_offset}"
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
        """Add an offset window's files and records to the counts; with ``sign`` -1, subtract them."""
        before = self.positions.get(window.where)
        if before is None:
            raise CommitLogCorruptError(
                f"entry {self.number} of the commit log changes files of a partition that no earlier entry names"
            )
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
        """Encode as a snapshot."""
        content = {
            "positions": [[*where, *astuple(one)] for where, one in sorted(self.positions.items())],
            "directories": [[path, *astuple(one)] for path, one in sorted(self.directories.items())],
        }
        for name, of in _SNAPSHOT_NAMES.items():
            value: Any = getattr(self, of)
            content[name] = [*sorted(value)] if of in {"finalized", "linked", "withheld"} else value
        return SNAPSHOT.to_bytes(content)

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> LogState:
        """Decode a snapshot. Raise CommitLogCorruptError if it is damaged, NewerVersionError if a later release wrote
        it.
        """
        stored = read_state(SNAPSHOT, _Snapshot, data, key)
        return cls(
            positions={row[:2]: Progress(*row[2:]) for row in stored.positions},
            directories={row[0]: Contents(*row[1:]) for row in stored.directories},
            **{of: getattr(stored, name) for name, of in _SNAPSHOT_NAMES.items()},
        )


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The JSON of a snapshot of the commit log's state. Its field names never change, so some of them differ from the
    names in LogState."""

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
"""Fields of _Snapshot, each with the name of the LogState field that has the same content."""


class CommitLog:
    """The commit log of one generation (a version of the output) of a pipeline, in ``store`` below ``root``. Not
    thread-safe.

    ``state`` covers the entries read so far. ``append`` writes the next entry, or raises FencedError if another writer
    has already written it.
    """

    def __init__(self, store: ObjectStore, root: str, pipeline: str, generation: int) -> None:
        self.store = store
        self.root, self.pipeline, self.generation = root, pipeline, generation
        self.folder: str = own_folder(root, pipeline, generation)
        self.writer: str = uuid.uuid4().hex
        """Random id of this CommitLog object, which is in each entry that the object writes."""
        self.state = LogState()

    def of_generation(self, generation: int) -> CommitLog:
        """Return the log of another generation of the same pipeline. The returned object has not read any entries
        yet."""
        return CommitLog(self.store, self.root, self.pipeline, generation)

    def read(self) -> LogState:
        """Apply all new entries. The first read starts from the latest snapshot."""
        if self.state.number < 0:
            self.state = self._snapshot()
        for entry in self.entries(self.state.number + 1):
            self.state.apply(entry)
        return self.state

    def entry(self, number: int) -> Entry:
        """Return an entry; raise CommitLogCorruptError if it is damaged or too large."""
        key = self._key(number)
        data = self.store.get_small(key, _MOST_BYTES)
        if data is None:
            raise CommitLogCorruptError(
                f"{key} has more than {_MOST_BYTES} bytes, too many for an entry of a commit log"
            )
        entry = Entry.from_bytes(data, key)
        if entry.number != number:
            raise CommitLogCorruptError(f"{key} contains entry {entry.number}, which belongs under another key")
        return entry

    def entries(self, first: int = 0) -> Iterator[Entry]:
        """Yield entries from ``first`` on, in order. Many entries are fetched in parallel, since each costs a
        request. Raise CommitLogCorruptError if an entry is missing.
        """
        numbers = self._numbers(first)
        some = list(islice(numbers, _FEW))
        yield from map(self.entry, some)
        if len(some) == _FEW:
            with ThreadPool(READERS, "tieredstore-entries") as pool:
                yield from in_parallel(pool, self.entry, numbers, at_once=2 * READERS)

    def read_replacement(self, by: int) -> list[Entry]:
        """Return the entries about the latest replacement of files by the generation ``by``: ``replacing``, then all
        ``replaced``."""
        entries: list[Entry] = []
        for entry in (entry for entry in self.entries() if entry.other == by):
            does = effects(entry)
            if does.withholds is not None:
                entries = [entry]
            elif does.gives or does.releases is not None:
                entries.append(entry)
        return entries

    def _numbers(self, first: int) -> Iterator[int]:
        listed = self.store.list(f"{self.folder}commits/", self._key(first - 1) if first else None)
        expected = first
        for number in (_number_of(info.key) for info in listed):
            # A listing during an append may have the later of two new entries, but not the earlier one.
            for unlisted in range(expected, number):
                self._check_present(unlisted, number)
                yield unlisted
            yield number
            expected = number + 1

    def _check_present(self, number: int, later: int) -> None:
        try:
            self.store.head(self._key(number))
        except ObjectNotFoundError as error:
            raise CommitLogCorruptError(
                f"{self.folder}commits/ has entry {later}, but not entry {number}: entries are missing"
            ) from error

    def times(self, first: int = 0) -> dict[int, int | None]:
        """Return the times when the entries from ``first`` on were committed, in ms by the store's clock; None if
        unknown."""
        listed = self.store.list(f"{self.folder}commits/", self._key(first - 1) if first else None)
        return {_number_of(info.key): info.modified_ms for info in listed}

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
        """Commit an entry. Raise FencedError, and commit nothing, if another driver has written an entry with the same
        number.

        After StoreUnavailableError the entry may or may not be committed, so read the log again to find out. If the
        response to an earlier request was lost, this writer may already have created an entry with this number.
        ``append`` then returns that entry.
        """
        entry = Entry(
            self.state.number + 1, kind, self.writer, fingerprint,
            tuple(windows), tuple(removed), other, tuple(directories),
        )  # fmt: skip
        try:
            self.store.put(self._key(entry.number), entry.to_bytes(), if_absent=True)
        except PreconditionFailedError as refusal:
            # Read the entry that has this number. This writer may have created it by an earlier request without a
            # response.
            entry = self.entry(entry.number)
            if entry.writer != self.writer:
                raise self._make_fenced(entry.number) from refusal
        self.state.apply(entry)
        if entry.number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self._write_snapshot()
        return entry

    def catch_up(self) -> None:
        """Apply new entries that this writer has committed, even those without a response from the store. Raise
        FencedError if another writer has committed an entry.
        """
        for info in self.store.list(f"{self.folder}commits/", self._key(self.state.number)):
            entry = self.entry(_number_of(info.key))
            if entry.writer != self.writer:
                raise self._make_fenced(entry.number)
            self.state.apply(entry)

    def check_alone(self) -> None:
        """Raise FencedError if the log has an entry after ``state``, because only another driver can have written that
        entry."""
        try:
            self.store.head(self._key(self.state.number + 1))
        except ObjectNotFoundError:
            return
        raise self._make_fenced(self.state.number + 1)

    def _make_fenced(self, number: int) -> FencedError:
        return FencedError(
            f"another process has written entry {number} of {self.folder}commits/: it runs this pipeline now, so this "
            "process ends; run only one of them"
        )

    def _key(self, number: int) -> str:
        return f"{self.folder}commits/{number:020}.json" if number >= 0 else f"{self.folder}commits/"

    def _write_snapshot(self) -> None:
        try:
            self.store.put(f"{self.folder}snapshots/{self.state.number:020}.json", self.state.to_bytes())
        except StoreError as error:
            # Only warn. Without the snapshot, the state is read from the entries, which only takes longer.
            _logger.warning("the snapshot of the commit log at entry %d was not written: %s", self.state.number, error)

    def _snapshot(self) -> LogState:
        *_, last = ("", *(info.key for info in self.store.list(f"{self.folder}snapshots/")))
        return LogState.from_bytes(self.store.get(last), last) if last else LogState()


@dataclass(frozen=True, slots=True)
class Change:
    """A committed change to the output's files or ``_SUCCESS`` marks. The latest change may not yet be fully visible in
    the store.

    ``kind`` ``drop`` deletes all files of the generation (a version of the output). ``directories`` depends on
    ``kind``:

    - ``finalize``: directories that become complete
    - ``replacing``, ``replaced``: directories that are incomplete between these two entries
    - other kinds: directories whose ``_SUCCESS`` is rewritten because they got late records
    """

    number: int
    kind: EntryKind
    added: tuple[OutputFile, ...]
    removed: tuple[str, ...]
    directories: tuple[str, ...] = ()
    committed_ms: int | None = field(default=None, compare=False)
    """Time when the entry was committed, by the store's clock; None if unknown."""


def changes_since(log: CommitLog, number: int) -> Iterator[Change]:
    """Yield the changes to the output after entry ``number`` (-1: all), in order. Leave out files with bad messages,
    because readers do not see these files.
    """
    times = log.times(number + 1)
    for entry in log.entries(number + 1):
        does = effects(entry)
        added = tuple(file for file in entry.files if file.kind != "quarantine") if does.publishes else ()
        removed = tuple(key for key in entry.removed if "/quarantine/" not in key)
        if added or removed or does.ends == "drop" or entry.directories:
            yield Change(entry.number, entry.kind, added, removed, entry.directories, times.get(entry.number))


def _number_of(key: str) -> int:
    digits = key.rpartition("/")[2].removesuffix(".json")
    if not (key.endswith(".json") and len(digits) == 20 and digits.isascii() and digits.isdigit()):
        raise CommitLogCorruptError(f"{key} is in the folder of a commit log, but is not an entry")
    return int(digits)
