"""Backfill: write chosen offsets of a topic again as a new generation (a version of the output). The new files stand
beside the files of another generation, or replace them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, DataLossError, FencedError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.files.columns import NEEDS_SPARK
from tieredstore.pipelines.log.commit_log import Life, Progress
from tieredstore.pipelines.log.entries import BatchWindow, Entry, OutputFile, WrittenWindow, effects
from tieredstore.pipelines.log.holdings import Holdings, directories_of
from tieredstore.pipelines.run.driver import Driver
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import ReadUpTo, Written, write_at_once, write_window

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.upkeep.record_sources import RecordSource, Selected


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The plan of a backfill.

    - ``asked``: the selected offsets that the source has
    - ``windows``: the windows to write; if they replace windows of another generation, they cover these windows whole
    - ``going``: files of the replaced generation that will be deleted
    """

    asked: Sequence[BatchWindow]
    windows: Sequence[BatchWindow]
    going: Sequence[OutputFile]


class Backfill:
    """Writer of chosen offsets as a separate generation (a version of the output), which never reads new records. Not
    thread-safe.

    A log entry records the plan and a hash of the settings before any file is written. If the process is killed, the
    next call with the same settings completes the plan. With ``replaces``, the new files replace files of another
    generation (see :class:`Replacement`).
    """

    def __init__(
        self, pipeline: Pipeline, store: ObjectStore, source: RecordSource, *, replaces: int = -1, threads: int = 2
    ) -> None:
        """``pipeline`` has the number of the new generation. ``replaces`` is the number of the generation to replace
        (-1: none)."""
        own = pipeline.own
        if replaces == own.generation:
            raise ConfigError(f"generation {replaces} cannot replace itself: set another --generation")
        if own.frame:
            raise ConfigError(NEEDS_SPARK)
        self._pipeline, self._store, self._source = pipeline, store, source
        self._replaces, self._threads = replaces, threads
        self.driver: Driver = Driver(Generation(pipeline, store), self)
        self._recipe = recipe_of(pipeline)

    def plan(self, selected: Selected) -> BackfillPlan:
        """Return the windows that ``run`` would write and the files that it would delete. Writes nothing."""
        extents, unfinished = self._look(selected)
        begun = () if unfinished is None else unfinished.windows
        stops = {one.where: one.stop for one in begun}
        new = [
            replace(one, start=max(one.start, stops.get(one.where, one.start)))
            for one in self._unwritten(extents, selected)
            if one.stop > stops.get(one.where, one.start)
        ]
        going = [] if self._replaces < 0 else self._replacement().find_going([*begun, *new])
        return BackfillPlan(
            [one for one in extents if one.start < one.stop],
            [*([] if unfinished is None else self._rest(unfinished)), *new],
            [file for window in going for file in window.files],
        )

    def run(self, selected: Selected) -> Iterator[Entry]:
        """Write the selected offsets that are not yet written. Yield each entry after its files are published.

        With ``replaces``, the last entries yielded are from the log of the replaced generation of the output. Their
        field ``removed`` names the replaced files.

        Raises ConfigError if the generation is not a backfill, or if its backfill was begun with other settings. Raises
        DataLossError if the source no longer has some of the offsets.
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

    def _look(self, selected: Selected) -> tuple[list[BatchWindow], Entry | None]:
        """Return the selected offsets that the source has, and the ``backfill`` entry of an incomplete run."""
        state = self.driver.log.read()
        if state.backfill < 0 and state.positions:
            raise ConfigError(
                f"generation {self._pipeline.own.generation} of {self._pipeline.own.name} is not a backfill: "
                "give --generation an unused number"
            )
        extents = self._source.extents(selected)
        return extents, None if state.is_filled else self._find_unfinished(selected)

    def _find_unfinished(self, selected: Selected) -> Entry:
        entry = self.driver.log.entry(self.driver.log.state.backfill)
        topics = {window.topic for window in entry.windows}
        if (topics, entry.other) != ({selected.topic}, self._replaces):
            behind = f" --replace {entry.other}" if entry.other >= 0 else ""
            raise ConfigError(
                f"generation {self._pipeline.own.generation} has an unfinished backfill of "
                f"{', '.join(sorted(topics))}{behind}: first complete it by the same command"
            )
        if entry.fingerprint != self.driver.generation.fingerprint:
            raise ConfigError(
                f"generation {self._pipeline.own.generation} was begun with other settings of parser or "
                "files: complete it with those settings, or remove it (pipeline rm) and set another --generation"
            )
        return entry

    def _unwritten(self, extents: Sequence[BatchWindow], selected: Selected) -> list[BatchWindow]:
        """Return the selected offsets that are not yet written. If the new files replace files of another generation of
        the output, widen the offsets to whole windows of that generation.
        """
        if self._replaces >= 0:
            extents = self._replacement().whole_windows(extents, selected, self._source)
        holdings = Holdings.of(self.driver.log)
        rest: list[BatchWindow] = []
        for one in extents:
            reached = one.start
            for window in (each.window for each in holdings.between(one.where, one.start, MAX_INT64)):
                if reached >= one.stop:
                    break
                if reached < window.start:
                    raise ConfigError(
                        f"generation {self._pipeline.own.generation} has {one.topic}-{one.partition} from offset "
                        f"{window.start} on; earlier offsets need another --generation"
                    )
                reached = window.stop
            if reached < one.stop:
                rest.append(replace(one, start=reached, topic_id=self._known_id(one)))
        return rest

    def _known_id(self, window: BatchWindow) -> str:
        """Return the topic id that the log has, because a log cannot have a partition under two ids."""
        progress = self.driver.log.state.positions.get(window.where, Progress(window.topic_id, 0))
        if self._source.is_of(window, progress.topic_id):
            return progress.topic_id
        raise ConfigError(
            f"generation {self._pipeline.own.generation} may have {window.topic}-{window.partition} of another topic "
            "with this name: set another --generation"
        )

    def _complete(self, entry: Entry) -> Iterator[Entry]:
        replacement = self._replacement() if entry.other >= 0 else None
        if replacement is not None:
            replacement.announce(entry)

        def write(window: BatchWindow, reached: ReadUpTo) -> Written:
            return self.write(window, self.driver.generation, reached)

        while rest := self._rest(entry):
            windows = self._source.cut_next(rest)
            if not windows:
                raise DataLossError(f"{rest[0]} are no longer in the source: its log ends before them")
            batch = write_at_once(windows, write, self._store, self._threads)
            if replacement is not None:
                replacement.withhold(entry)
            if batch.written:
                yield self.driver.commit(batch.written)
            batch.check()
        if replacement is not None:
            self.driver.finalize_again(replacement.finish(entry))
        self.driver.log.append("published", self.driver.generation.fingerprint)
        if replacement is not None:
            yield from replacement.read_replaced()

    def _rest(self, entry: Entry) -> list[BatchWindow]:
        positions = self.driver.log.state.positions
        windows = (replace(one.window, start=positions[one.where].next_offset) for one in entry.windows)
        return [window for window in windows if window.start < window.stop]

    def _replacement(self) -> Replacement:
        return Replacement(self.driver, self._replaces)

    def write(self, window: BatchWindow, generation: Generation, reached: ReadUpTo | None = None) -> Written:
        """Write an offset window under the file names of ``generation``."""
        recipe = replace(self._recipe, naming=generation.naming)
        with closing(self._source.records(window)) as records:
            return write_window(window, records, recipe, self._store, reached)

    def write_quarantined(self, window: BatchWindow, key: str, generation: Generation) -> Written:  # noqa: ARG002  interface
        """Raise ConfigError, because a backfill never parses quarantined messages again. Only the pipeline itself can
        complete an interrupted ``redrive``.
        """
        raise ConfigError(
            f"the redriven messages of {key} are not fully published: first complete the redrive by tieredstore "
            f"pipeline backfill --bad-messages --yes for generation {generation.number}"
        )


_ENTRY_WINDOWS: Final = 500


class Replacement:
    """The part of a backfill that replaces files of another generation (a version of the output). If the process is
    killed, each step can be repeated.

    ``announce`` logs the directories of the files to delete, then deletes the directories' ``_SUCCESS``. ``finish``
    logs the files, deletes them, and logs the end. Both methods write to the replaced generation's log. Each write
    fences a running driver of that generation. The driver may be restarted between the two calls.
    """

    def __init__(self, new: Driver, generation: int) -> None:
        """``new`` is the driver of the new generation, whose files replace the files of ``generation``."""
        self._new, self._old = new, new.of_generation(generation)
        self._store, self._table = new.store, new.generation.table
        self._log, self._family = self._old.log, self._old.generation.family
        self._generation, self._number = generation, new.generation.number
        state = self._log.read()
        if state.life in {Life.FREE, Life.DROPPED}:
            words = "was dropped" if state.life is Life.DROPPED else "has no commit log"
            raise ConfigError(f"generation {generation} {words}: there is nothing to replace")
        self._old.generation.refuse_replacement(but=self._number)

    def whole_windows(
        self, extents: Sequence[BatchWindow], selected: Selected, source: RecordSource
    ) -> list[BatchWindow]:
        """Return the offsets of ``extents`` that the replaced generation holds. They are widened to whole offset
        windows, because only whole windows can be replaced.

        If the selection has no start or no end, narrow the offsets on that side to whole windows. Raises ConfigError if
        another generation holds some of the offsets, or if the topic was re-created.
        """
        holdings = Holdings.of(self._log)
        whole: list[BatchWindow] = []
        for one in extents:
            progress = self._log.state.positions.get(one.where)
            if progress is not None and progress.topic_id and not source.is_of(one, progress.topic_id):
                raise ConfigError(
                    f"the topic {one.topic} was re-created after generation {self._generation} wrote it: its records "
                    "are no longer in the topic"
                )
            known = holdings.windows.get(one.where, [])
            if one.start >= one.stop or not known:
                continue
            start = one.start if selected.start else max(one.start, known[0].window.start)
            stop = min(one.stop, known[-1].window.stop) if selected.stop is None else one.stop
            self._refuse_held(replace(one, start=start, stop=stop))
            held = [each.window for each in known if each.is_held]
            at = bisect.bisect_right(held, start, key=lambda window: window.stop)
            if at < len(held) and held[at].start < start and not selected.start:
                at += 1
            end = bisect.bisect_left(held, stop, key=lambda window: window.start)
            if at < end and held[end - 1].stop > stop and selected.stop is None:
                end -= 1
            if at < end:
                whole.append(replace(one, start=held[at].start, stop=held[end - 1].stop))
                self._refuse_held(whole[-1])
        return whole

    def _refuse_held(self, window: BatchWindow) -> None:
        """Raise ConfigError if a third generation of the output holds some of the offsets, or if a later generation
        wrote quarantined messages of these offsets to data files.
        """
        redriven = (its for entry in self._family.find_redriven() for its in entry.windows)
        for its in filter(window.overlaps, redriven):
            raise ConfigError(
                f"bad messages of generation {self._generation} at {its.window} were written by a later generation: "
                f"choose other offsets by --from and --to{self._removal_first(window)}"
            )
        held = self._family.holder(window, but={self._generation, self._number})
        if held is not None:
            other, piece = held
            raise ConfigError(
                f"{piece} are held by generation {other}, not by generation {self._generation}: use --replace {other} "
                f"for them, or choose other offsets by --from and --to{self._removal_first(window)}"
            )

    def _removal_first(self, window: BatchWindow) -> str:
        """Return advice for the end of an error's text, or an empty text. If the new generation has begun to fill the
        offset window, the advice is to remove this generation first, because each later run would complete its
        backfill.
        """
        log = self._new.log
        if log.state.backfill < 0 or log.state.is_filled:
            return ""
        if not any(map(window.overlaps, log.entry(log.state.backfill).windows)):
            return ""
        return f"; first remove generation {self._number} (pipeline rm), and then set another --generation"

    def announce(self, backfill: Entry) -> None:
        """Record the replacement in the replaced generation's log, before the new generation publishes anything."""
        log = self._log
        if log.state.giving_to != self._number:
            if self._is_finished(backfill):
                # The replacement is already complete, so append no ``replacing`` entry. The new generation may still
                # have to write its own _SUCCESS marks.
                return
            if self._table is not None:
                going = [file.key for window in self.find_going(backfill.windows) for file in window.data_files]
                self._table.refuse_rewritten(log, going)
            self._take_over()
            # Check again, because another backfill may have begun to replace files, or have replaced some of the offset
            # windows, since the plan was made. If another backfill does this after the check, ``append`` raises
            # FencedError.
            self._old.generation.refuse_replacement(but=self._number)
            self._family.refresh()
            for window in backfill.windows:
                self._refuse_held(window.window)
            above = directories_of(self.find_going(backfill.windows))
            log.append("replacing", self._old.generation.fingerprint, other=self._number, directories=sorted(above))
            if self._new.log.of_generation(self._number).read().life is Life.DROPPED:
                # The new generation was removed before this entry was written. Its removal could not cancel a
                # replacement that was not in the log yet, so cancel it here.
                self._old.generation.end_replacement(self._number)
                raise self._cancelled_error()
        self._refuse_redriven(backfill)
        self._take_marks_back()

    def _refuse_redriven(self, backfill: Entry) -> None:
        """Cancel the replacement and raise ConfigError if a later generation has written quarantined messages that it
        would replace.

        First fence the later generation's driver, because it may have looked for a replacement before this one was
        announced.
        """
        log = self._log
        if not any(window.quarantined for window in self.find_going(backfill.windows)):
            return
        while log.state.life is Life.SEALED and log.state.other >= 0:
            later = self._new.of_generation(log.state.other)
            log = later.log
            if log.read().life is Life.FOLLOWING:
                later.begin([])
        self._family.refresh()
        try:
            for window in backfill.windows:
                self._refuse_held(window.window)
        except ConfigError:
            self._old.generation.end_replacement(self._number)
            raise

    def withhold(self, backfill: Entry) -> None:
        """Delete ``_SUCCESS`` again from directories whose files are being replaced.

        A second deletion is necessary. A delayed request of a stopped process may have written a ``_SUCCESS`` after the
        first deletion. Raises FencedError if the new generation was removed, which cancels the replacement.
        """
        if self._log.read().giving_to == self._number:
            self._take_marks_back()
        elif not self._is_finished(backfill):
            raise self._cancelled_error()

    def _cancelled_error(self) -> FencedError:
        return FencedError(
            f"generation {self._number} was removed by pipeline rm while it was replacing files of generation "
            f"{self._generation}, so these files stay: start the backfill again with another --generation"
        )

    def _take_marks_back(self) -> None:
        self._family.refresh()
        self._old.finalizer.take_back(sorted(self._log.state.withheld & self._family.finalized))

    def finish(self, backfill: Entry) -> list[str]:
        """Delete the replaced files after the new files are published. Return the directories that are complete
        again.
        """
        log = self._log
        if log.read().giving_to == self._number:
            self._take_over()
            self.withhold(backfill)
            going = self.find_going(backfill.windows)
            for start in range(0, len(going), _ENTRY_WINDOWS):
                piece = going[start : start + _ENTRY_WINDOWS]
                removed = [file.key for window in piece for file in window.files]
                log.append("replaced", self._old.generation.fingerprint, piece, removed=removed, other=self._number)
            if self._table is not None:
                self._table.replace(log, self._new.log)
            self._store.delete([key for entry in log.read_replacement(self._number) for key in entry.removed])
            self._old.generation.end_replacement(self._number)
        elif not self._is_finished(backfill):
            raise self._cancelled_error()
        *_, last = log.read_replacement(self._number)
        family = self._new.generation.family
        family.refresh()
        complete = set(last.directories) & family.finalized
        held = family.count_contents(sorted(complete))
        return [path for path in sorted(complete) if held[path][0]]

    def read_replaced(self) -> list[Entry]:
        """Return the log entries that name the replaced files."""
        return [entry for entry in self._log.read_replacement(self._number) if entry.removed]

    def _take_over(self) -> None:
        """Fence the driver of the replaced generation of the output, and publish all files that it has committed. A
        sealed generation has no driver and is fully published.
        """
        if self._log.state.life is not Life.SEALED:
            self._old.begin([])
            self._old.mark_published()

    def find_going(self, spans: Iterable[BatchWindow | WrittenWindow]) -> list[WrittenWindow]:
        """Return the offset windows to replace within ``spans``, each with its remaining files."""
        holdings = Holdings.of(self._log)
        windows = (one for span in spans for one in holdings.between(span.where, span.start, span.stop))
        return [one.window for one in windows if one.is_held or one.window.files]

    def _is_finished(self, backfill: Entry) -> bool:
        """Return True if the replacements of this backfill and of all earlier backfills are complete. A replacement
        that was cancelled before it replaced any file is not complete.
        """
        wanted = sum(
            bool(effects(entry).jumps) and entry.other == self._generation and entry.number <= backfill.number
            for entry in self._new.log.entries()
        )
        finished, gives = 0, False
        for entry in self._log.entries():
            does = effects(entry)
            if entry.other != self._number:
                continue
            gives = gives or bool(does.gives)
            if does.releases is not None:
                finished, gives = finished + gives, False
        return finished >= wanted
