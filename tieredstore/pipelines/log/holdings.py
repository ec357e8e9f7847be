"""The windows that a generation has written: which of them it still holds, and which another one holds in its place."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from tieredstore.pipelines.log.committed import Committed
from tieredstore.pipelines.log.entries import WrittenWindow

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.log.commit_log import CommitLog
    from tieredstore.pipelines.log.entries import Entry, OutputFile


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
            if entry.kind == "drop":
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
        for window in entry.windows:
            if entry.kind == "batch" and window.start < window.stop:
                self._windows.setdefault(window.where, []).append(window)
            elif entry.kind == "replaced":
                for start in self._starts(window):
                    self._given[window.where, start] = entry.other
            elif entry.kind == "redrive":
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
