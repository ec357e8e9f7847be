"""The commit log: objects with dense numbers, each created only if absent. It alone says what is written."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from typing import Any, Final

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import CommitLogCorrupt, Fenced, ObjectNotFound, PreconditionFailed, StoreError
from tieredstore.partitions.position import Position
from tieredstore.pipelines.filing.naming import own_folder
from tieredstore.pipelines.log.entries import Entry, EntryKind, WrittenWindow, loaded_object
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


@dataclass(slots=True)
class LogState:
    """What the entries up to ``number`` say together.

    ``written`` is the last that has files, or says that directories are complete; -1 without any. ``is_published`` if
    all of that is known to have been published. ``closed`` is how the log has ended,
    ``seal`` or ``drop``; empty while it goes on. ``other`` is the generation that went before, or of one that is sealed
    the one that goes on; -1 for none.
    """

    number: int = -1
    written: int = -1
    positions: dict[tuple[str, int], Progress] = field(default_factory=dict[tuple[str, int], Progress])
    is_published: bool = False
    closed: str = ""
    other: int = -1
    directories: dict[str, Contents] = field(default_factory=dict[str, Contents])
    """By their paths, those that files of records lie in."""
    finalized: set[str] = field(default_factory=set[str])
    """Paths that a ``_SUCCESS`` was written to; files lie in these or below."""
    linked: set[int] = field(default_factory=set[int])
    """Generations that entries name: what they have in a directory counts there with what this one has."""
    replacing: int = -1
    """The generation that files of this one give way to just now; -1: none."""
    withheld: set[str] = field(default_factory=set[str])
    """Paths that are to have no ``_SUCCESS`` meanwhile."""
    backfill: int = -1
    """The number of the latest entry of that kind; -1: the generation is none of a backfill."""
    is_backfilled: bool = True
    """Whether all is done that it says."""

    def apply(self, entry: Entry) -> None:
        """Go on by one entry; CommitLogCorrupt for one that does not follow."""
        if entry.number != self.number + 1:
            raise CommitLogCorrupt(f"the commit log has entry {entry.number} behind {self.number}: some are missing")
        self.number = entry.number
        if entry.other >= 0:
            self.linked.add(entry.other)
        if entry.kind in {"take-over", "seal"}:
            self.other = entry.other
        match entry.kind:
            case "published":
                self.is_published = self.is_backfilled = True
            case "seal" | "drop":
                self.closed = entry.kind
            case "begin" | "take-over":
                self._count_all(entry)
            case "backfill" | "replacing" | "replaced":
                self._apply_backfill(entry)
            case "batch" | "redrive" | "rewrite" | "finalize":
                self._write(entry)

    def _apply_backfill(self, entry: Entry) -> None:
        if entry.kind == "backfill":
            self._backfill(entry)
        elif entry.kind == "replacing":
            self.replacing = entry.other
            self.withheld.update(entry.directories)
        else:
            self._replace(entry)

    def _backfill(self, entry: Entry) -> None:
        self.backfill, self.is_backfilled = entry.number, False
        for window in entry.windows:
            before = self.positions.get(window.where, Progress(window.topic_id, window.start, -1, 0, 0))
            if before.topic_id != window.topic_id or window.start < before.next_offset:
                raise CommitLogCorrupt(f"entry {entry.number} of the commit log backfills what is written before it")
            self.positions[window.where] = replace(before, next_offset=window.start)

    def _replace(self, entry: Entry) -> None:
        """Files of these windows go; with the last of them it is over."""
        for window in entry.windows:
            self._add(window, -1)
        if entry.directories or not entry.windows:
            self.replacing = -1
            self.withheld.difference_update(entry.directories)

    def _write(self, entry: Entry) -> None:
        self.written, self.is_published = entry.number, False
        self.finalized.update(entry.directories)
        if entry.kind == "batch":
            self._count_all(entry)
        elif entry.kind == "redrive":
            for window in entry.windows:
                self._add(window)
        # A rewrite has the windows of the entry before it, which count already; who finalizes has none.

    def _count_all(self, entry: Entry) -> None:
        for window in entry.windows:
            self._count(window)

    def _add(self, window: WrittenWindow, sign: int = 1) -> None:
        """Records of a window that was written before come, or go: it moves nothing on."""
        before = self.positions.get(window.where)
        if before is None:
            raise CommitLogCorrupt(f"entry {self.number} of the commit log redrives what no entry before it has")
        files, records = sign * len(window.data_files), sign * window.records
        self.positions[window.where] = replace(before, files=before.files + files, records=before.records + records)
        self._count_files(window, sign)

    def _count(self, window: WrittenWindow) -> None:
        before = self.positions.get(window.where)
        if before is not None and (before.topic_id, before.next_offset) != (window.topic_id, window.start):
            raise CommitLogCorrupt(
                f"entry {self.number} of the commit log goes on with {window.topic}-{window.partition} at offset "
                f"{window.start}, and the entries before it end at {before.next_offset}"
            )
        before = before or Progress(window.topic_id, window.start, -1, 0, 0)
        self.positions[window.where] = Progress(
            window.topic_id,
            window.stop,
            max(before.max_timestamp, window.max_timestamp),
            before.files + len(window.data_files),
            before.records + window.records,
            *before.recent_with(window),
            window.leader_epoch if window.start < window.stop else max(window.leader_epoch, before.leader_epoch),
        )
        self._count_files(window)

    def _count_files(self, window: WrittenWindow, sign: int = 1) -> None:
        for file in window.data_files:
            path = file.key.rpartition("/")[0]
            held = self.directories.get(path, Contents(window.topic, 0, 0))
            now = Contents(window.topic, held.files + sign, held.records + sign * file.records)
            if now.files:
                self.directories[path] = now
            else:
                self.directories.pop(path, None)


class CommitLog:
    """The log of one generation of a pipeline, below ``root`` of a store. For one thread.

    ``state`` is what was read of it; ``append`` goes on behind that, or is Fenced if somebody else has.
    """

    def __init__(self, store: ObjectStore, root: str, pipeline: str, generation: int) -> None:
        self.store = store
        self._of = root, pipeline
        self.folder = own_folder(root, pipeline, generation)
        self.writer = uuid.uuid4().hex
        """Who writes: new in each process that opens the log."""
        self.state = LogState()

    def of_generation(self, generation: int) -> CommitLog:
        """The log of another generation of the same pipeline, not yet read."""
        return CommitLog(self.store, *self._of, generation)

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
        """One entry; CommitLogCorrupt for one that is not what was written, or too large."""
        key = self._key(number)
        data = self.store.get_small(key, _MOST_BYTES)
        if data is None:
            raise CommitLogCorrupt(f"{key} has more than {_MOST_BYTES} bytes, and is no entry of a commit log")
        entry = Entry.from_bytes(data, key)
        if entry.number != number:
            raise CommitLogCorrupt(f"{key} says that it is entry {entry.number}")
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
        """Commit. Fenced if another driver has written an entry meanwhile: then nothing of this is committed.

        StoreUnavailable says nothing of whether it is: who reads the log again finds out. What is returned is another
        entry of this same writer if one that had been given up came to the store after all: that one stands.
        """
        entry = Entry(
            self.state.number + 1, kind, self.writer, fingerprint,
            tuple(windows), tuple(removed), other, tuple(directories),
        )  # fmt: skip
        try:
            self.store.put(self._key(entry.number), entry.to_bytes(), if_absent=True)
        except PreconditionFailed as refusal:
            # The create may have won, and lost its answer.
            entry = self.entry(entry.number)
            if entry.writer != self.writer:
                raise self._fenced(entry.number) from refusal
        self.state.apply(entry)
        if entry.number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            self._write_snapshot()
        return entry

    def catch_up(self) -> None:
        """Go on behind what this writer has committed by now, answered or not; Fenced if another one has."""
        for info in self.store.list(f"{self.folder}commits/", self._key(self.state.number)):
            entry = self.entry(_number_of(info.key))
            if entry.writer != self.writer:
                raise self._fenced(entry.number)
            self.state.apply(entry)

    def check_alone(self) -> None:
        """Fenced if there is an entry behind the last one that this log knows: another driver works by now."""
        try:
            self.store.head(self._key(self.state.number + 1))
        except ObjectNotFound:
            return
        raise self._fenced(self.state.number + 1)

    def _fenced(self, number: int) -> Fenced:
        return Fenced(
            f"another process has written entry {number} of {self.folder}commits/: it runs this pipeline by now, and "
            "this one ends; run one of them only"
        )

    def _key(self, number: int) -> str:
        return f"{self.folder}commits/{max(number, 0):020}.json" if number >= 0 else f"{self.folder}commits/"

    def _write_snapshot(self) -> None:
        state = self.state
        rows = [[*where, *astuple(one)] for where, one in sorted(state.positions.items())]
        content: dict[str, object] = {"format": _SNAPSHOT_FORMAT, "number": state.number, "written": state.written}
        content |= {"published": state.is_published, "positions": rows}
        content |= {"closed": state.closed, "other": state.other, "finalized": sorted(state.finalized)}
        held = sorted(state.directories.items())
        content["directories"] = [[path, one.topic, one.files, one.records] for path, one in held]
        content |= {"linked": sorted(state.linked), "replacing": state.replacing, "withheld": sorted(state.withheld)}
        content |= {"backfill": state.backfill, "backfilled": state.is_backfilled}
        try:
            self.store.put(f"{self.folder}snapshots/{state.number:020}.json", json.dumps(content).encode())
        except StoreError as error:
            # It only spares reading: the entries say the same.
            _logger.warning("the snapshot of the commit log at entry %d was not written: %s", state.number, error)

    def _snapshot(self) -> LogState:
        last = None
        for info in self.store.list(f"{self.folder}snapshots/"):
            last = info.key
        if last is None:
            return LogState()
        content = loaded_object(self.store.get(last), last)
        if content.get("format") != _SNAPSHOT_FORMAT:
            # Of another version, which knew less: the entries say all.
            return LogState()
        try:
            rows: list[Any] = content["positions"]
            positions = {(str(row[0]), int(row[1])): Progress(str(row[2]), *map(int, row[3:10])) for row in rows}
            published = content.get("published") is True
            ends = str(content.get("closed", "")), int(content.get("other", -1))
            held: list[Any] = content["directories"]
            directories = {str(row[0]): Contents(str(row[1]), *map(int, row[2:4])) for row in held}
            return LogState(
                int(content["number"]), int(content["written"]), positions, published, *ends,
                directories, set(map(str, content["finalized"])),
                set(map(int, content["linked"])), int(content["replacing"]), set(map(str, content["withheld"])),
                int(content["backfill"]), content["backfilled"] is True,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CommitLogCorrupt(f"{last} is no snapshot of a commit log") from error


def _number_of(key: str) -> int:
    digits = key.rpartition("/")[2].removesuffix(".json")
    if not (key.endswith(".json") and len(digits) == 20 and digits.isascii() and digits.isdigit()):
        raise CommitLogCorrupt(f"{key} lies among the entries of a commit log, and is none")
    return int(digits)
