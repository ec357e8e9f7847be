"""The generations of a pipeline whose files count together: one goes on where another ended, or takes its place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tieredstore.pipelines.log.commit_log import CommitLog, Life, LogState
from tieredstore.pipelines.log.entries import Entry, effects
from tieredstore.pipelines.log.holdings import Holdings

if TYPE_CHECKING:
    from tieredstore.pipelines.log.entries import Window
    from tieredstore.pipelines.log.successes import Statement


class Family:
    """A generation, all that its log names, and all that theirs do. For one thread; the own log is its owner's."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._others: dict[int, CommitLog] | None = None

    def refresh(self) -> bool:
        """Read what the others have written since; False where there are none."""
        self._others = self._read(self._others or {})
        return bool(self._others)

    def states(self) -> list[LogState]:
        """What the own log says, and those of the others that were not dropped; as of the last look at these."""
        return [self._log.state, *(log.state for log in self._known().values() if log.state.life is not Life.DROPPED)]

    def has_said(self, statement: Statement) -> bool:
        """Whether it was one of these that wrote what a ``_SUCCESS`` says."""
        ours = {self._log.generation, *self._known()}
        return statement.pipeline == self._log.pipeline and statement.generation in ours

    @property
    def has_dropped(self) -> bool:
        """Whether one of the others was dropped."""
        return any(log.state.life is Life.DROPPED for log in self._known().values())

    @property
    def finalized(self) -> set[str]:
        """Directories that one of them has finalized."""
        return set[str]().union(*(state.finalized for state in self.states()))

    @property
    def withheld(self) -> set[str]:
        """Directories that are to have no ``_SUCCESS`` now, since files in them give way to others."""
        return set[str]().union(*(state.withheld for state in self.states()))

    def taken_over(self) -> dict[int, CommitLog]:
        """The logs behind whose ends the own one goes on, the oldest first; not those that were dropped."""
        chain: dict[int, CommitLog] = {}
        number, known = self._log.generation, self._known()
        while before := [
            other for other, log in known.items() if (log.state.life, log.state.other) == (Life.SEALED, number)
        ]:
            number = before[0]
            chain = {number: known[number], **chain}
        return chain

    def redriven(self) -> list[Entry]:
        """The entries by which generations behind the own one have filed bad messages, in their order.

        They tell by their offsets whether these were the own one's; files of those that were dropped are gone.
        """
        entries: list[Entry] = []
        seen, log = {self._log.generation}, self._log
        while log.state.closed and (number := log.state.other) not in seen and number in self._known():
            seen.add(number)
            log = self._known()[number]
            filed = (entry for entry in log.entries() if effects(entry).redrives)
            entries += [replace(one, windows=()) if log.state.life is Life.DROPPED else one for one in filed]
        return entries

    def holder(self, window: Window, *, but: Collection[int] = ()) -> tuple[int, Window] | None:
        """Which of these generations holds the first offsets of a window that any of them does, and these.

        ``but`` are passed over; those that were dropped hold nothing.
        """
        logs = [log for log in (self._log, *self._known().values()) if log.generation not in but]
        pieces = sorted(
            (max(window.start, one.window.start), min(window.stop, one.window.stop), log.generation)
            for log in logs
            for one in Holdings.of(log).between((window.topic, window.partition), window.start, window.stop)
            if one.is_held
        )
        if not pieces:
            return None
        first, behind, holder = pieces[0]
        for start, stop, number in pieces[1:]:
            if (number, start) == (holder, behind):
                behind = stop
        return holder, replace(window, start=first, stop=behind)

    def held(self, paths: Sequence[str], *, without: LogState | None = None) -> dict[str, tuple[int, int]]:
        """Files and records in each of these directories and below; ``without`` one generation's."""
        held: dict[str, tuple[int, int]] = dict.fromkeys(paths, (0, 0))
        for state in (state for state in self.states() if state is not without):
            for inner, one in state.directories.items():
                for above in with_those_above(inner):
                    if above in held:
                        files, records = held[above]
                        held[above] = files + one.files, records + one.records
        return held

    def _known(self) -> dict[int, CommitLog]:
        if self._others is None:
            self._others = self._read({})
        return self._others

    def _read(self, known: dict[int, CommitLog]) -> dict[int, CommitLog]:
        others: dict[int, CommitLog] = {}
        waiting = set(self._log.state.linked)
        while waiting:
            generation = waiting.pop()
            if generation == self._log.generation or generation in others:
                continue
            log = known.get(generation) or self._log.of_generation(generation)
            others[generation] = log
            waiting |= log.read().linked
        return others


def with_those_above(path: str) -> Iterator[str]:
    """A directory, and those that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]
