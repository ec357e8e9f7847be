"""Files of a generation that give way to those of a backfill: said in its log before anything of them goes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError
from tieredstore.pipelines.committed import Committed
from tieredstore.pipelines.driver import Driver, Written
from tieredstore.pipelines.entries import Entry, WrittenWindow
from tieredstore.pipelines.family import with_those_above
from tieredstore.pipelines.setup import naming_of
from tieredstore.pipelines.window_writing import Window

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.backfill_sources import Selected
    from tieredstore.pipelines.commit_log import LogState
    from tieredstore.pipelines.settings import Pipeline

_ENTRY_WINDOWS: Final = 500


class Replacement:
    """The part of a backfill that concerns the generation before. Repeated after a kill it completes.

    ``announce``: an entry of that generation's log names the directories of the files that will go, then their
    ``_SUCCESS`` is taken away. ``finish``: entries name the files, these are deleted, and a last entry ends it. Whoever
    runs the generation is fenced by either, and may be started again in between.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: ObjectStore,
        generation: int,
        new: Driver,
        write_as: Callable[[Window, int], Written],
    ) -> None:
        """``write_as`` writes a window once more, under the names of a generation."""
        self._store, self._new, self._write_as = store, new, write_as
        self._generation, self._number = generation, pipeline.own.generation
        naming = replace(naming_of(pipeline), generation=generation)
        own = pipeline.own.model_copy(update={"generation": generation})
        self._old = Driver(store, own, naming, dict(pipeline.tables), new.table)
        self._check_there(self._old.log.read())

    def _check_there(self, state: LogState) -> None:
        words = "was dropped" if state.closed == "drop" else "has no commit log"
        if state.number < 0 or state.closed == "drop":
            raise ConfigError(f"generation {self._generation} {words}: there is nothing to replace")
        if state.replacing not in {-1, self._number}:
            raise ConfigError(
                f"files of generation {self._generation} are giving way to generation {state.replacing}: complete that "
                "backfill first"
            )

    def whole_windows(self, extents: Sequence[Window], selected: Selected) -> list[Window]:
        """The same offsets as far as the generation has them, out to the ends of its windows: these go whole.

        Inwards where nothing was asked for but all that there is.
        """
        bounds = self._bounds()
        for one in extents:
            progress = self._old.log.state.positions.get((one.topic, one.partition))
            if progress is not None and one.topic_id and progress.topic_id not in {"", one.topic_id}:
                raise ConfigError(
                    f"the topic {one.topic} was created again since generation {self._generation} wrote it: that "
                    "generation's records are others"
                )
        whole: list[Window] = []
        for one in extents:
            known = bounds.get((one.topic, one.partition), [])
            if one.start >= one.stop or not known:
                continue
            starts, stops = [start for start, _ in known], [stop for _, stop in known]
            at = bisect.bisect_right(stops, one.start)
            if at < len(known) and starts[at] < one.start and not selected.start:
                at += 1
            end = bisect.bisect_left(starts, one.stop)
            if at < end and stops[end - 1] > one.stop and selected.stop is None:
                end -= 1
            if at < end:
                whole.append(replace(one, start=starts[at], stop=stops[end - 1]))
        return whole

    def _bounds(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Of each partition the windows that the generation has written, ascending."""
        bounds: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for entry in self._old.log.entries():
            for window in entry.windows if entry.kind == "batch" else ():
                bounds.setdefault(window.where, []).append((window.start, window.stop))
        return bounds

    def announce(self, backfill: Entry) -> None:
        """Before anything of the new generation is published."""
        log = self._old.log
        if log.state.replacing != self._number:
            if self._announced() >= self._wanted(backfill):
                # It is over, but for what the new generation says of it.
                return
            if self._new.table is not None:
                going = [file.key for window in self._going(backfill) for file in window.data_files]
                self._new.table.refuse_rewritten(log, going)
            self._take_over()
            paths = {file.key.rpartition("/")[0] for window in self._going(backfill) for file in window.data_files}
            above = sorted({above for path in paths for above in with_those_above(path)})
            log.append("replacing", self._old.fingerprint, other=self._number, directories=above)
        family = self._old.finalizer.family
        family.refresh()
        for path in sorted(log.state.withheld & family.finalized):
            self._old.finalizer.take_back(path)

    def finish(self, backfill: Entry) -> list[str]:
        """Once all is published that comes in their place; the directories that are complete again."""
        log = self._old.log
        if log.read().replacing == self._number:
            self._take_over()
            going = list(self._going(backfill))
            for start in range(0, len(going), _ENTRY_WINDOWS):
                piece = going[start : start + _ENTRY_WINDOWS]
                removed = [file.key for window in piece for file in window.files]
                log.append("replaced", self._old.fingerprint, piece, removed=removed, other=self._number)
            if self._new.table is not None:
                self._new.table.replace(log, self._new.log)
            self._store.delete([key for entry in self._since_announced() for key in entry.removed])
            log.append("replaced", self._old.fingerprint, other=self._number, directories=sorted(log.state.withheld))
        *_, last = self._since_announced()
        family = self._new.finalizer.family
        family.refresh()
        complete = set(last.directories) & family.finalized
        held = family.held(sorted(complete))
        return [path for path in sorted(complete) if held[path][0]]

    def _take_over(self) -> None:
        """Fence whoever runs the generation, and have all of it published; a sealed one is."""
        if not self._old.log.state.closed:
            self._old.begin([], lambda window: self._write_as(window, self._generation))
            self._old.mark_published()

    def _going(self, backfill: Entry) -> Iterator[WrittenWindow]:
        """The windows whose files go, with those of these that are still there."""
        spans = {window.where: window for window in backfill.windows}
        windows: dict[tuple[int, tuple[str, int], int], WrittenWindow] = {}
        for one in Committed.of(self._old.log).files.values():
            span = spans.get(one.window.where)
            if span is not None and span.start <= one.window.start and one.window.stop <= span.stop:
                key = one.number, one.window.where, one.window.start
                before = windows.get(key, replace(one.window, files=()))
                windows[key] = replace(before, files=(*before.files, one.file))
        for _, window in sorted(windows.items()):
            yield replace(window, records=sum(file.records for file in window.data_files))

    def _announced(self) -> int:
        return sum(entry.kind == "replacing" and entry.other == self._number for entry in self._old.log.entries())

    def _wanted(self, backfill: Entry) -> int:
        """How often the new generation has replaced this one, with this time."""
        return sum(
            entry.kind == "backfill" and entry.other == self._generation and entry.number <= backfill.number
            for entry in self._new.log.entries()
        )

    def _since_announced(self) -> list[Entry]:
        """What the generation's log says of this replacement."""
        entries: list[Entry] = []
        for entry in self._old.log.entries():
            if entry.other == self._number and entry.kind == "replacing":
                entries = []
            elif entry.other == self._number and entry.kind == "replaced":
                entries.append(entry)
        return entries
