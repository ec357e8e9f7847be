"""Offsets of a topic written once more, as a generation of their own beside the one that goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.files.framing import NEEDS_SPARK
from tieredstore.pipelines.log.entries import Entry, OutputFile, Window
from tieredstore.pipelines.log.holdings import Holdings
from tieredstore.pipelines.run.driver import Driver
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import ReadUpTo, Written, write_window, written_at_once
from tieredstore.pipelines.upkeep.replacing import Replacement

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.upkeep.backfill_sources import RecordSource, Selected


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill would do.

    ``asked``: the chosen offsets, as far as the source has them; ``windows``: those that would be written, whole ones
    of a generation that is replaced; ``going``: the files of that one that would be deleted.
    """

    asked: Sequence[Window]
    windows: Sequence[Window]
    going: Sequence[OutputFile]


class Backfill:
    """A generation that holds chosen offsets and does not go on. For one thread; ``source`` is its owner's.

    What is to be written is committed before anything is, with the settings that decide its files: whoever is killed
    is completed by the next call, under the same settings. With ``replaces`` the files give way that this generation
    has of the same offsets, see :class:`Replacement`.
    """

    def __init__(
        self, pipeline: Pipeline, store: ObjectStore, source: RecordSource, *, replaces: int = -1, threads: int = 2
    ) -> None:
        """``pipeline`` has the number of the new generation."""
        own = pipeline.own
        if replaces == own.generation:
            raise ConfigError(f"generation {replaces} cannot be replaced by itself: give --generation another number")
        if own.frame:
            raise ConfigError(NEEDS_SPARK)
        self._pipeline, self._store, self._source = pipeline, store, source
        self._replaces, self._threads = replaces, threads
        self.driver = Driver(Generation(pipeline, store), self)
        self._recipe = recipe_of(pipeline)

    def plan(self, selected: Selected) -> BackfillPlan:
        """Return what ``run`` would write and delete; write nothing."""
        extents, unfinished = self._look(selected)
        begun = () if unfinished is None else unfinished.windows
        stops = {one.where: one.stop for one in begun}
        new = [
            replace(one, start=max(one.start, stops.get(one.where, one.start)))
            for one in self._unwritten(extents, selected)
            if one.stop > stops.get(one.where, one.start)
        ]
        spans = [*(one.window for one in begun), *new]
        going = [] if self._replaces < 0 else self._replacement().going(spans)
        return BackfillPlan(
            [one for one in extents if one.start < one.stop],
            [*([] if unfinished is None else self._rest(unfinished)), *new],
            [file for window in going for file in window.files],
        )

    def run(self, selected: Selected) -> Iterator[Entry]:
        """Write what is selected and not written yet; each entry is told of when its files are published.

        ConfigError for a generation that is none of a backfill, or was begun otherwise, DataLoss for offsets that the
        source has no more.
        """
        extents, unfinished = self._look(selected)
        log = self.driver.log
        self.driver.begin([selected.topic])
        if unfinished is not None:
            yield from self._complete(unfinished)
        if rest := self._unwritten(extents, selected):
            windows = [replace(one, leader_epoch=-1).without_records() for one in rest]
            fingerprint = self.driver.generation.fingerprint
            yield from self._complete(log.append("backfill", fingerprint, windows, other=self._replaces))

    def _look(self, selected: Selected) -> tuple[list[Window], Entry | None]:
        """Return what the source has of the selected offsets, and the entry of a run that did not complete."""
        state = self.driver.log.read()
        if state.backfill < 0 and state.positions:
            raise ConfigError(
                f"generation {self._pipeline.own.generation} of {self._pipeline.own.name} goes on with the topics: "
                "give --generation a number of its own"
            )
        extents = self._source.extents(selected)
        return extents, None if state.is_filled else self._unfinished(selected)

    def _unfinished(self, selected: Selected) -> Entry:
        entry = self.driver.log.entry(self.driver.log.state.backfill)
        topics = {window.topic for window in entry.windows}
        if (topics, entry.other) != ({selected.topic}, self._replaces):
            behind = f" with --replace {entry.other}" if entry.other >= 0 else ""
            raise ConfigError(
                f"generation {self._pipeline.own.generation} is to be filled with {', '.join(sorted(topics))}{behind}, "
                "and that is not done: complete it first, by the same command"
            )
        if entry.fingerprint != self.driver.generation.fingerprint:
            raise ConfigError(
                f"generation {self._pipeline.own.generation} was begun under other settings of parser and files than "
                "these: complete it with those, or drop it and give another --generation"
            )
        return entry

    def _unwritten(self, extents: Sequence[Window], selected: Selected) -> list[Window]:
        """What of the offsets is not written, with whole windows of a generation that is replaced."""
        if self._replaces >= 0:
            extents = self._replacement().whole_windows(extents, selected)
        holdings = Holdings.of(self.driver.log)
        rest: list[Window] = []
        for one in extents:
            reached = one.start
            for window in (each.window for each in holdings.between((one.topic, one.partition), one.start, MAX_INT64)):
                if reached >= one.stop:
                    break
                if reached < window.start:
                    raise ConfigError(
                        f"generation {self._pipeline.own.generation} has {one.topic}-{one.partition} from offset "
                        f"{window.start} on, and what lies before it needs another --generation"
                    )
                reached = window.stop
            if reached < one.stop:
                rest.append(replace(one, start=reached))
        return rest

    def _complete(self, entry: Entry) -> Iterator[Entry]:
        replacement = self._replacement() if entry.other >= 0 else None
        if replacement is not None:
            replacement.announce(entry)
        while rest := self._rest(entry):
            windows = self._source.due(rest)
            if not windows:
                raise DataLoss(
                    f"offsets {rest[0].start} to {rest[0].stop - 1} of {rest[0].topic}-{rest[0].partition} are not in "
                    "the source any more: its log ends before them"
                )
            batch = written_at_once(windows, self._prepare, self._store, self._threads)
            if replacement is not None:
                replacement.withhold()
            if batch.written:
                yield self.driver.commit(batch.written)
            batch.check()
        if replacement is not None:
            self.driver.finalize_again(replacement.finish(entry))
        self.driver.log.append("published", self.driver.generation.fingerprint)

    def _rest(self, entry: Entry) -> list[Window]:
        positions = self.driver.log.state.positions
        windows = (replace(one.window, start=positions[one.where].next_offset) for one in entry.windows)
        return [window for window in windows if window.start < window.stop]

    def _replacement(self) -> Replacement:
        return Replacement(self.driver, self._replaces)

    def _prepare(self, window: Window, reached: ReadUpTo) -> Written:
        return self._write(window, self.driver.generation, reached)

    def write(self, window: Window, generation: Generation) -> Written:
        """Write a window once more, under the names of a generation."""
        return self._write(window, generation)

    def aside(self, window: Window, key: str, generation: Generation) -> Written:  # noqa: ARG002  a driver's writer
        """Refuse: without the pipeline's own source nothing was redriven here."""
        raise ConfigError(
            f"{key} has messages that were redriven, and what they became is not wholly published: run tieredstore "
            f"pipeline redrive --yes for generation {generation.number}, which completes it"
        )

    def _write(self, window: Window, generation: Generation, reached: ReadUpTo | None = None) -> Written:
        recipe = replace(self._recipe, naming=generation.naming)
        records = self._source.records(window)
        try:
            return write_window(window, records, recipe, self._store, reached)
        finally:
            records.close()
