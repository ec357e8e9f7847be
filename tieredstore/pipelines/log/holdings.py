"""Files and offset windows of a generation (a version of the output) and of its family: the generations to which log
entries link it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from tieredstore.backends.base import Prepared
from tieredstore.pipelines.log.commit_log import CommitLog, Life, LogState
from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow, effects

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.log.entries import BatchWindow
    from tieredstore.pipelines.log.successes import Statement

_NOTHING: Final = Prepared("", 0, "", "")


@dataclass(slots=True)
class CommittedFile:
    """A file and its offset window."""

    file: OutputFile
    window: WrittenWindow


@dataclass(slots=True)
class Committed:
    """Committed files of a log by key. ``going`` has the keys of files that the last entry deletes; these files may
    still exist."""

    files: dict[str, CommittedFile] = field(default_factory=dict[str, CommittedFile])
    going: set[str] = field(default_factory=set[str])
    topics: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, log: CommitLog) -> Self:
        """Read the log to its end, and return the files of all its entries. A dropped generation of the output has no
        files.

        Leave out data about uploads, which is needed only to publish and commit. This halves the memory for an output
        of many files.
        """
        log.read()
        committed = cls()
        for entry in log.entries():
            committed.take(_without_prepared(entry))
        if log.state.life is Life.DROPPED:
            committed.files.clear()
        return committed

    def take(self, entry: Entry) -> None:
        """Apply an entry."""
        for window in entry.windows:
            self.topics.add(window.topic)
            self.files |= {file.key: CommittedFile(file, window) for file in window.files}
        does = effects(entry)
        if does.gives:
            self.going |= set(entry.removed)
        elif entry.files or does.releases is not None:
            self.going = set(entry.removed)
        for key in entry.removed:
            self.files.pop(key, None)

    def overlapping_keys(self, where: TopicPartition, first: int, last: int | None) -> list[str]:
        """Return the keys of a partition's data files that overlap the offsets ``first`` to ``last`` (None: to the
        end)."""
        return sorted(
            key
            for key, one in self.files.items()
            if one.file.kind == "data"
            and one.window.where == where
            and one.file.last_offset >= first
            and (last is None or one.file.first_offset <= last)
        )


def _without_prepared(entry: Entry) -> Entry:
    windows = (
        replace(window, files=tuple(replace(file, prepared=_NOTHING) for file in window.files))
        for window in entry.windows
    )
    return replace(entry, windows=tuple(windows))


@dataclass(slots=True)
class Holding:
    """An offset window and the files that hold its records now. ``given_to`` is the generation that has replaced the
    window, or -1.
    """

    window: WrittenWindow
    given_to: int = -1

    @property
    def is_held(self) -> bool:
        """True if no other generation of the output has replaced the offset window."""
        return self.given_to < 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """All offset windows of a generation (a version of the output) by partition, in order of offsets. A dropped
    generation has no windows."""

    windows: dict[TopicPartition, list[Holding]]

    @classmethod
    def of(cls, log: CommitLog, redriven: Iterable[Entry] = ()) -> Self:
        """Apply the log's entries, then the entries in ``redriven``, and return the resulting offset windows. The
        entries in ``redriven`` are from later generations of the output, which moved messages from this generation's
        quarantine to data files.
        """
        holdings, committed = cls({}), Committed()
        for entry in itertools.chain(log.entries(), redriven):
            does = effects(entry)
            if does.ends == "drop":
                return cls({})
            committed.take(entry)
            for window in does.writes:
                if window.start < window.stop:
                    holdings.windows.setdefault(window.where, []).append(Holding(window))
            for window in does.gives:
                for one in holdings.between(window.where, window.start, window.stop):
                    one.given_to = entry.other
            for window in does.redrives:
                # This window can be smaller than the written window.
                for one in holdings.between(window.where, window.start, window.stop):
                    one.window = replace(one.window, filtered=one.window.filtered + window.filtered)
        holdings._take_files(committed)
        return holdings

    def _take_files(self, committed: Committed) -> None:
        """Give each offset window the files that hold its records now."""
        files: defaultdict[TopicPartition, list[OutputFile]] = defaultdict(list)
        for committed_file in committed.files.values():
            files[committed_file.window.where].append(committed_file.file)
        for where, windows in self.windows.items():
            files[where].sort(key=lambda file: (file.first_offset, file.key))
            for one in windows:
                first, behind = (
                    bisect.bisect_left(files[where], at, key=lambda file: file.first_offset)
                    for at in (one.window.start, one.window.stop)
                )
                inside = tuple(files[where][first:behind])
                one.window = replace(
                    one.window,
                    files=inside,
                    records=sum(file.records for file in inside if file.kind == "data"),
                    quarantined=sum(file.records for file in inside if file.kind == "quarantine"),
                )

    def between(self, where: TopicPartition, start: int, stop: int) -> Iterator[Holding]:
        """Yield the offset windows of a partition that overlap the offsets ``start`` to ``stop`` (exclusive)."""
        windows = self.windows.get(where, [])
        first = bisect.bisect_right(windows, start, key=lambda one: one.window.stop)
        behind = bisect.bisect_left(windows, stop, key=lambda one: one.window.start)
        yield from windows[first:behind]

    def iterate_held(self) -> Iterator[WrittenWindow]:
        """Yield all offset windows that no other generation has replaced, sorted by partition and offset."""
        for _, windows in sorted(self.windows.items()):
            yield from (one.window for one in windows if one.is_held)


class Family:
    """A generation (a version of the output) and all generations linked to it by log entries, directly or through
    others. Not thread-safe.

    The caller reads and writes the log of the generation itself. This class reads the logs of the other generations.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._others: dict[int, CommitLog] | None = None

    def refresh(self) -> bool:
        """Read new entries of the linked generations' logs. Return False if there are no linked generations."""
        known, waiting = self._others or {}, set(self._log.state.linked)
        others: dict[int, CommitLog] = {}
        while waiting:
            generation = waiting.pop()
            if generation == self._log.generation or generation in others:
                continue
            others[generation] = log = known.get(generation) or self._log.of_generation(generation)
            waiting |= log.read().linked
        self._others = others
        return bool(others)

    def states(self) -> list[LogState]:
        """Return the states of this generation's log and of linked logs, as of the last refresh. Dropped generations of
        the output are left out.
        """
        return [
            self._log.state,
            *(log.state for log in self.read_others().values() if log.state.life is not Life.DROPPED),
        ]

    def has_said(self, statement: Statement) -> bool:
        """Return True if a generation of this family wrote the statement (a generation's counts in a ``_SUCCESS``)."""
        ours = {self._log.generation, *self.read_others()}
        return statement.pipeline == self._log.pipeline and statement.generation in ours

    def is_own(self, statement: Statement) -> bool:
        """Return True if the generation itself wrote the statement."""
        return (statement.pipeline, statement.generation) == (self._log.pipeline, self._log.generation)

    @property
    def finalized(self) -> set[str]:
        """Directories that this generation of the output or a linked generation has finalized."""
        return set[str]().union(*(state.finalized for state in self.states()))

    @property
    def withheld(self) -> set[str]:
        """Directories that must have no ``_SUCCESS`` now because a generation of the family is replacing their
        files.
        """
        return set[str]().union(*(state.withheld for state in self.states()))

    def find_unpublished(self) -> list[WrittenWindow]:
        """Return the offset windows whose files may still be invisible, as of the last refresh."""
        logs = [self._log, *self.read_others().values()]
        last = [log.entry(log.state.unpublished) for log in logs if log.state.unpublished >= 0]
        return [window for entry in last for window in entry.windows]

    def read_predecessors(self) -> dict[int, CommitLog]:
        """Return the logs of the generations that this generation continues, oldest first. Dropped generations are left
        out."""
        chain: dict[int, CommitLog] = {}
        number, known = self._log.generation, self.read_others()
        while before := [
            other for other, log in known.items() if (log.state.life, log.state.other) == (Life.SEALED, number)
        ]:
            number = before[0]
            chain = {number: known[number], **chain}
        return chain

    def find_redriven(self) -> list[Entry]:
        """Return, in order, the entries by which later generations of the output moved quarantined messages into files.

        The entries may also concern messages that another generation quarantined. So callers compare the entries'
        offsets with the windows of this generation. Entries of dropped generations have no offset windows, because
        their files are deleted.
        """
        entries: list[Entry] = []
        seen, log = {self._log.generation}, self._log
        while log.state.closed and (number := log.state.other) not in seen and number in self.read_others():
            seen.add(number)
            log = self.read_others()[number]
            filed = (entry for entry in log.entries() if effects(entry).redrives)
            entries += [replace(one, windows=()) if log.state.life is Life.DROPPED else one for one in filed]
        return entries

    def holder(self, window: BatchWindow, *, but: Collection[int] = ()) -> tuple[int, BatchWindow] | None:
        """Find the first offsets in ``window`` for which some generation still has files. Return the generation's
        number, and the range of these offsets.

        Skip generations in ``but``. Dropped generations have no files.
        """
        logs = [log for log in (self._log, *self.read_others().values()) if log.generation not in but]
        pieces = sorted(
            (max(window.start, one.window.start), min(window.stop, one.window.stop), log.generation)
            for log in logs
            for one in Holdings.of(log).between(window.where, window.start, window.stop)
            if one.is_held
        )
        if not pieces:
            return None
        first, behind, holder = pieces[0]
        for start, stop, number in pieces[1:]:
            if (number, start) == (holder, behind):
                behind = stop
        return holder, replace(window, start=first, stop=behind)

    def count_contents(self, paths: Sequence[str], *, without: LogState | None = None) -> dict[str, tuple[int, int]]:
        """Return the numbers of files and records in and below each directory. ``without`` leaves out one
        generation.
        """
        held: dict[str, tuple[int, int]] = dict.fromkeys(paths, (0, 0))
        for state in (state for state in self.states() if state is not without):
            for inner, one in state.directories.items():
                for above in with_those_above([inner]):
                    if above in held:
                        files, records = held[above]
                        held[above] = files + one.files, records + one.records
        return held

    def read_others(self) -> dict[int, CommitLog]:
        """Return the logs of the linked generations of the output, as of the last refresh."""
        if self._others is None:
            self.refresh()
        return self._others or {}


def with_those_above(paths: Iterable[str]) -> set[str]:
    """Return the directories and all directories above them."""
    found: set[str] = set()
    for path in paths:
        above = path
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


def directories_of(windows: Iterable[WrittenWindow]) -> set[str]:
    """Return the directories of the windows' data files, and all directories above them."""
    return with_those_above({file.key.rpartition("/")[0] for window in windows for file in window.data_files})
