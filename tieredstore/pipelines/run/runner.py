"""Runner of a pipeline. It plans offset windows, writes their files on threads or in Spark tasks, and commits and
publishes the files."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, DataLossError, ObjectNotFoundError
from tieredstore.model import human_bytes
from tieredstore.pipelines.files.columns import NEEDS_SPARK
from tieredstore.pipelines.filing.directories import YEAR_10000_MS
from tieredstore.pipelines.log.commit_log import Life
from tieredstore.pipelines.log.entries import BatchWindow, Entry
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.driver import Driver, take_over
from tieredstore.pipelines.run.finalizing import Finished, watermarks
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.planner import Planner, WindowTask, log_of
from tieredstore.pipelines.run.progress import Counts, GroupProgress
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.redrive import Aside, Redriven, find_asides, redrive_file
from tieredstore.pipelines.run.source import COLUMNS, Parts, check_topics
from tieredstore.pipelines.run.window_writing import (
    UNREADABLE,
    Batch,
    ReadUpTo,
    Recipe,
    Written,
    discard_files,
    mark_windows,
    write_at_once,
    write_window,
)
from tieredstore.pipelines.run.windows import find_gone
from tieredstore.process.closing import Closing
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import LogState
    from tieredstore.reading.log_snapshot import LogSnapshot

    WriteOnSpark = Callable[[Sequence[WindowTask]], Batch]

_logger: Final = logging.getLogger(__name__)

_DAY_S: Final = 86_400


class Runner(Closing):
    """Runner of one pipeline. Not thread-safe; close it after use."""

    def __init__(
        self,
        pipeline: Pipeline,
        parts: Parts,
        *,
        threads: int = 2,
        take_over: int | None = None,
        on_spark: WriteOnSpark | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_spark`` is a function that writes offset windows in tasks of Spark. Without it, threads of this process
        write them. The clocks are parameters for tests."""
        self._pipeline, self._parts, self._threads, self._wall_clock = pipeline, parts, threads, wall_clock
        self._recipe = recipe_of(pipeline)
        self._planner = Planner(pipeline, parts.source, clock=clock, wall_clock=wall_clock)
        self._reader = TopicReader(lambda: parts.source, self._planner.query, ReadSettings(columns=COLUMNS))
        self.counts = Counts()
        self._due_s = 0.0
        self._own, self._has_begun, self._take_over, self._on_spark = pipeline.own, False, take_over, on_spark
        self._last: LogSnapshot | None = None
        """The logs to write completely before an error about lost or unreadable records ends the service."""
        brokers = dict(pipeline.client).get("bootstrap.servers")
        sources = [f"the broker {brokers}"] if brokers else []
        sources += [f"the bucket {parts.source.store.identity}"] if pipeline.source is not None else []
        self.source_name: str = " or ".join(sources)
        """Bucket, broker or both, for messages."""
        self._group = GroupProgress.of(pipeline)
        self.driver: Driver = Driver(Generation(pipeline, parts.store), self, self._note)

    def close(self) -> None:
        """Commit the remaining offsets to the consumer group of ``commit.to.group``, then close connections to the
        broker. The caller closes ``parts``.
        """
        if self._group is not None:
            self._group.close()
        self._planner.close()
        self._reader.close()

    def run_once(self) -> Iterator[Entry]:
        """Write all available records in batches. Yield each batch's log entry after its files are published.

        If topics that the settings name do not exist, this raises ResourceNotFoundError before it writes anything.
        """
        self._refuse_frame()
        self.refuse_backfill()
        self.check_topics(self.begin())
        yield from self.write_available()
        self.check_gone()
        if self._own.finalize:
            self.finalize()
        self.driver.mark_published()

    def write_available(self) -> Iterator[Entry]:
        """Write all available records in batches, without the checks of ``run_once``."""
        snapshot = self.begin()
        while windows := self._planner.find_due(snapshot, self.driver.log.state.positions, is_last=True):
            yield from self._write_batch(snapshot, windows)

    def renew(self) -> None:
        """Make ``write_available`` look for records that are newer than the last look."""
        self._planner.renew()

    def finalize(self) -> list[Finished]:
        """Mark directories of past periods as complete; return them, oldest first."""
        if self._read_log().life is Life.FREE:
            return []  # do not begin, because this generation could then no longer take over another one
        snapshot = self.begin()
        if not self.driver.is_complete:
            self.resume()
        return self.driver.finalize(self._watermarks(snapshot))

    def find_unfinalized(self) -> list[Finished]:
        """Return the directories that ``finalize`` would mark now. Writes nothing."""
        self._refuse_ended()
        return self.driver.finalizer.find_due(self._watermarks(self._planner.snapshot()))

    def _watermarks(self, snapshot: LogSnapshot) -> dict[str, int]:
        return watermarks(
            snapshot,
            self.driver.log.state.positions,
            now_ms=int(self._wall_clock() * 1000),
            delay_ms=self._own.finalizer_delay_s * 1000,
            begins_elsewhere=self._planner.begins_elsewhere,
        )

    def _refuse_ended(self) -> None:
        self._read_log()
        self.driver.generation.refuse_ended()

    def refuse_backfill(self) -> None:
        """Raise ConfigError if the generation is a backfill, which never reads new records."""
        if self._read_log().backfill >= 0:
            raise ConfigError(
                f"generation {self._own.generation} is a backfill and does not read new records: run another "
                f"generation, with --take-over {self._own.generation} to continue after this one"
            )

    def _read_log(self) -> LogState:
        """Return the state of the log. Read the log only before the driver begins. A later read would also apply the
        entries of another driver, and the log would no longer raise FencedError for them.
        """
        return self.driver.log.state if self._has_begun else self.driver.log.read()

    def _refuse_frame(self) -> None:
        if self._own.frame:
            raise ConfigError(NEEDS_SPARK)

    def measure(self) -> None:
        """Update the lag metrics: the number of unwritten offsets, and the time since this process first saw the oldest
        of them. Once per batch, log when the records will be written.
        """
        counts, wall_s = self.counts, self._wall_clock()
        lag = self._planner.find_lag(self._snapshot_of_written(), self.driver.log.state.positions)
        counts.lag_offsets, counts.lag_seconds = lag.offsets, lag.oldest_s
        if lag.offsets and lag.due_in_s > 0 and wall_s >= self._due_s:
            self._due_s = wall_s + lag.due_in_s
            # A maximum age may stand for "never", and end after the last date.
            due_s = min(60 * math.ceil(self._due_s / 60), YEAR_10000_MS // 1000 - 60)
            minute = datetime.fromtimestamp(due_s, UTC)
            day = "" if lag.due_in_s < _DAY_S else f"{minute:%Y-%m-%d} "
            # The message says "up to", because some of these offsets may be transaction markers and not records.
            _logger.info(
                "%s: up to %s waiting, due by %s%s UTC or %s",
                self._own.name, _count(lag.offsets, "record"), day, f"{minute:%H:%M}", self._planner.policy,
            )  # fmt: skip

    def announce(self) -> None:
        """Log the limits of size and age at which records are written. No file appears in the output before a limit is
        reached."""
        age_s = self._own.limits.max_file_age_s
        _logger.info(
            "%s: writes records after %s, or %s (secor.max.file.age.seconds, secor.max.file.size.bytes)",
            self._own.name, f"{age_s // 60} min" if age_s >= 120 else f"{age_s} s", self._planner.policy,
        )  # fmt: skip

    def step(self) -> Entry | None:
        """Write one batch of due records and return its entry; return None if none are due.

        If only unreadable records are due, this call and the next ones write all records that are available now. Then
        raise the error.
        """
        if self._on_spark is None:
            self._refuse_frame()
        self.refuse_backfill()
        snapshot = self._last or self.begin()
        try:
            windows = self._planner.find_due(snapshot, self.driver.log.state.positions, is_last=self._last is not None)
            entries = [*self._write_batch(snapshot, windows)]
        except UNREADABLE as error:
            if self._last is not None or not self.driver.is_complete:
                raise
            # Log the error now, because the records may be readable again when they are next read.
            self._planner.tell([error], [snapshot])
            self._last = snapshot
            return self.step()
        if self._last is not None and not entries:
            self.check_gone()
            self._last = None
        return next(iter(entries), None)

    def check_topics(self, snapshot: LogSnapshot) -> None:
        """Raise ResourceNotFoundError if the settings name topics that do not exist and were never written. Call
        ``begin`` first.
        """
        written = {topic for topic, _ in self.driver.log.state.positions}
        check_topics(self._planner.query, snapshot, self._parts.source, written)

    def check_gone(self) -> None:
        """Raise DataLossError for a partition that no longer exists, although none of its records was written. Call
        ``begin`` first.
        """
        for sentence in find_gone(self.look(), self.driver.log.state, self._pipeline).values():
            raise DataLossError(sentence)

    def look(self) -> LogSnapshot:
        """Return the logs that the pipeline reads. The result is at most one listing interval old. Writes nothing."""
        return self._planner.snapshot()

    def begin(self) -> LogSnapshot:
        """Take over the pipeline on the first call. Return the logs of the partitions to read."""
        if self._take_over is not None:
            self._refuse_frame()
        if not self._has_begun:
            snapshot = self._planner.snapshot()
            topics = sorted({topic for topic, _ in snapshot.logs})
            if self._take_over is not None:
                take_over(self.driver, self._take_over, topics)
            state = self.driver.log.read()
            # A backfill reads no new records, so no partition begins.
            starts = [] if state.backfill >= 0 else self._planner.mark_firsts(snapshot, state.positions)
            self.driver.begin(topics, starts)
            if find_gone(snapshot, self.driver.log.state, self._pipeline):
                self._last = self._snapshot_of_written()
            self._has_begun = True
        return self._snapshot_of_written()

    def _snapshot_of_written(self) -> LogSnapshot:
        """Return logs that reach the committed offsets. The latest listing of this process may end before them, because
        an earlier driver may have listed later records."""
        positions = self.driver.log.state.positions
        return self._planner.snapshot_reaching({where: one.next_offset for where, one in positions.items()})

    def find_bad_messages(self) -> list[Aside]:
        """Return the quarantine files that ``redrive`` would parse again. This writes nothing."""
        self._refuse_frame()
        self._refuse_ended()
        return self._find_asides()

    def _find_asides(self) -> list[Aside]:
        """Return the quarantine files of this generation and of all generations that it took over. Raise ConfigError
        while another generation is replacing files of one of these generations.
        """
        family = self.driver.generation.family
        family.refresh()
        logs = {**family.read_predecessors(), self._own.generation: self.driver.log}
        for generation, log in logs.items():
            if log.state.giving_to >= 0:
                raise ConfigError(
                    f"a backfill into generation {log.state.giving_to} is replacing all files of generation "
                    f"{generation}, bad messages included: complete the backfill first"
                )
        return find_asides(logs)

    def redrive(self) -> Iterator[Redriven]:
        """Parse quarantine files again, one by one. Commit an entry for each file that has a good message now."""
        self._refuse_frame()
        if self._read_log().life is Life.FREE:
            return  # do not begin, because this generation could then no longer take over another one
        self.begin()
        # Read with a second object. If the driver's log applied another driver's entries, it would no longer raise
        # FencedError.
        committed = Committed.of(self.driver.log.of_generation(self._own.generation)).files.keys()
        for aside in self._find_asides():
            try:
                window, reasons = self.write_quarantined(aside.window, aside.file.key, self.driver.generation)
            except ObjectNotFoundError:
                # Check that no newer driver has taken over. A newer driver may have parsed these messages again and
                # deleted the file.
                self.driver.log.check_alone()
                raise
            if not committed.isdisjoint(file.key for file in window.files):
                discard_files(self._parts.store, window.files)
                raise ConfigError(
                    f"{aside.file.key} was quarantined under name.offset=window; under the present setting its good "
                    "messages would get the name of another file: set name.offset=window and run pipeline backfill "
                    "--bad-messages again"
                )
            if window.records or window.filtered:
                entry = self.driver.redrive(window, aside)
                renewed = next((file.key for file in window.files if file.kind == "quarantine"), None)
                yield Redriven(window, reasons, renewed, entry)
            else:
                discard_files(self._parts.store, window.files)
                yield Redriven(window, reasons, aside.file.key, None)
        self.driver.mark_published()

    def _note(self, entry: Entry | None, state: LogState) -> None:
        if self._group is not None:
            self._group.note(state.positions)
        if entry is None:
            return
        self.counts.note(entry)
        if entry.files:
            records = sum(window.records for window in entry.windows)
            size = human_bytes(sum(file.size for file in entry.files))
            _logger.info(
                "%s: batch %d: %s written to %s (%s)",
                self._own.name, entry.number, _count(records, "record"), _count(len(entry.files), "file"), size,
            )  # fmt: skip

    def resume(self) -> None:
        """After a failure, find the log entries that this driver has committed, and publish their files.

        Before the first ``begin``, ``resume`` does nothing, because ``begin`` itself publishes committed entries.
        """
        if self._has_begun:
            self.driver.resume()

    def _write_batch(self, snapshot: LogSnapshot, windows: Sequence[BatchWindow]) -> Iterator[Entry]:
        """Write and commit offset windows up to the first unreadable offset. If there are none, raise the error about
        that offset."""
        if not windows:
            return
        if windows[0].is_mark:
            yield self.driver.commit(mark_windows(windows))
            return
        if self._on_spark is None:
            batch = write_at_once(windows, partial(self._write, snapshot), self._parts.store, self._threads)
        else:
            batch = self._on_spark(self._planner.tasks(snapshot, windows))
        if batch.written:
            yield self.driver.commit(batch.written)
        if batch.failure is not None:
            self._planner.tell([batch.failure], batch.written)

    def write(self, window: BatchWindow, generation: Generation) -> Written:
        """Write an offset window again under the file names of ``generation``."""
        snapshot = self._planner.snapshot_reaching({window.where: window.stop})
        return self._write(snapshot, window, recipe=replace(self._recipe, naming=generation.naming))

    def write_quarantined(self, window: BatchWindow, key: str, generation: Generation) -> Written:
        """Parse the messages of the quarantine file ``key`` again, under the file names of ``generation``."""
        return redrive_file(self._parts.store, replace(self._recipe, naming=generation.naming), window, key)

    def _write(
        self,
        snapshot: LogSnapshot,
        window: BatchWindow,
        reached: ReadUpTo | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> Written:
        if self._own.frame:
            if self._on_spark is None:
                raise ConfigError(NEEDS_SPARK)
            batch = self._on_spark(self._planner.tasks(snapshot, [window]))
            batch.check()
            return batch.written[0]
        with closing(self._reader.read(log_of(snapshot, window), window.start, window.stop)) as records:
            return write_window(window, records, recipe or self._recipe, self._parts.store, reached)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
