"""What entries of a log add up to: the files that are there, and the windows that a generation holds or has given."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from tieredstore.backends.base import Prepared
from tieredstore.pipelines.log.commit_log import CommitLog, Life
from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow, effects

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition

_NOTHING: Final = Prepared("", 0, "", "")


@dataclass(slots=True)
class CommittedFile:
    """A file, the window that it is of, and the number of the entry."""

    file: OutputFile
    window: WrittenWindow
    number: int


@dataclass(slots=True)
class Committed:
    """Files by their keys. ``going``: those that the last entry deletes, which may still be there."""

    files: dict[str, CommittedFile] = field(default_factory=dict[str, CommittedFile])
    going: set[str] = field(default_factory=set[str])
    topics: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, log: CommitLog, *, prepared: bool = True) -> Self:
        """By all entries of the log, which is read to its end; none once it is dropped.

        Without ``prepared`` files do not tell what the store had prepared, which is half of what an output of many
        takes in memory, and of use only to who publishes or commits them.
        """
        log.read()
        committed = cls()
        for entry in log.entries():
            committed.take(entry if prepared else _without_prepared(entry))
        if log.state.life is Life.DROPPED:
            committed.files.clear()
        return committed

    def take(self, entry: Entry) -> None:
        """Go on by one entry."""
        for window in entry.windows:
            self.topics.add(window.topic)
            self.files |= {file.key: CommittedFile(file, window, entry.number) for file in window.files}
        does = effects(entry)
        if does.gives:
            self.going |= set(entry.removed)
        elif entry.files or does.releases is not None:
            self.going = set(entry.removed)
        for key in entry.removed:
            self.files.pop(key, None)


def _without_prepared(entry: Entry) -> Entry:
    windows = (
        replace(window, files=tuple(replace(file, prepared=_NOTHING) for file in window.files))
        for window in entry.windows
    )
    return replace(entry, windows=tuple(windows))


@dataclass(frozen=True, slots=True)
class Holding:
    """A window with the files that hold its records now; ``given_to`` is the generation that replaced it, or -1."""

    window: WrittenWindow
    given_to: int = -1

    @property
    def is_held(self) -> bool:
        """Whether the generation has not given it away."""
        return self.given_to < 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """By partition all windows of a generation, ascending; none of a generation that was dropped."""

    windows: Mapping[TopicPartition, list[Holding]]

    @classmethod
    def of(cls, log: CommitLog, redriven: Iterable[Entry] = ()) -> Self:
        """Fold all entries of the log; ``redriven`` are those by which later generations filed bad messages."""
        fold = _Fold()
        for entry in log.entries():
            if effects(entry).ends == "drop":
                return cls({})
            fold.take(entry)
        for entry in redriven:
            fold.take(entry)
        return cls(fold.holdings())

    def between(self, where: TopicPartition, start: int, stop: int) -> Iterator[Holding]:
        """The windows of a partition that reach into the offsets ``start`` up to ``stop`` (half-open)."""
        windows = self.windows.get(where, [])
        for one in windows[bisect.bisect_right(windows, start, key=lambda one: one.window.stop) :]:
            if one.window.start >= stop:
                break
            yield one

    def held(self) -> Iterator[WrittenWindow]:
        """All windows that the generation still holds, by partition and offset."""
        for _, windows in sorted(self.windows.items()):
            yield from (one.window for one in windows if one.is_held)


class _Fold:
    """Entries of a log, one after the other."""

    def __init__(self) -> None:
        self._committed = Committed()
        self._windows: dict[TopicPartition, list[WrittenWindow]] = {}
        self._given: dict[tuple[TopicPartition, int], int] = {}
        self._filtered: Counter[tuple[TopicPartition, int]] = Counter()

    def take(self, entry: Entry) -> None:
        self._committed.take(entry)
        does = effects(entry)
        for window in does.writes:
            if window.start < window.stop:
                self._windows.setdefault(window.where, []).append(window)
        for window in does.gives:
            for start in self._starts(window):
                self._given[window.where, start] = entry.other
        for window in does.redrives:
            for start in self._starts(window):
                self._filtered[window.where, start] += window.filtered

    def _starts(self, window: WrittenWindow) -> list[int]:
        """Where windows begin that this one reaches into: ``redrive`` names parts of windows."""
        windows = self._windows.get(window.where, [])
        first = bisect.bisect_right(windows, window.start, key=lambda one: one.stop)
        behind = bisect.bisect_left(windows, window.stop, key=lambda one: one.start)
        return [one.start for one in windows[first:behind]]

    def holdings(self) -> dict[TopicPartition, list[Holding]]:
        files: dict[TopicPartition, list[tuple[int, str, OutputFile]]] = {}
        for key, one in self._committed.files.items():
            files.setdefault(one.window.where, []).append((one.file.first_offset, key, one.file))
        for inside in files.values():
            inside.sort(key=lambda one: one[:2])
        return {
            where: [self._holding(window, files.get(where, [])) for window in windows]
            for where, windows in self._windows.items()
        }

    def _holding(self, window: WrittenWindow, files: list[tuple[int, str, OutputFile]]) -> Holding:
        first, behind = (bisect.bisect_left(files, at, key=lambda one: one[0]) for at in (window.start, window.stop))
        inside = tuple(file for _, _, file in files[first:behind])
        now = replace(
            window,
            files=inside,
            records=sum(file.records for file in inside if file.kind == "data"),
            filtered=window.filtered + self._filtered[window.where, window.start],
            quarantined=sum(file.records for file in inside if file.kind == "quarantine"),
        )
        return Holding(now, self._given.get((window.where, window.start), -1))
