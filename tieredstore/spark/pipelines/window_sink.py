"""The driver's side of each batch. A Spark job writes the offset windows, then the driver commits and publishes them.

In a run with ``once``, the driver begins to write the first batch while Spark is still starting the stream.
This module is separate from ``runs``: it handles single batches, and ``runs`` whole streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import InheritableThread

from tieredstore.errors import AlreadyClosedError, ResourceNotFoundError, TieredStoreError
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.window_writing import Batch, discard_files, mark_windows
from tieredstore.pipelines.run.windows import find_unwritten
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.stopping import nothing_under_way
from tieredstore.spark.pipelines.window_source import TASK
from tieredstore.spark.pipelines.window_tasks import WindowTask
from tieredstore.spark.source.workers import unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.run.driver import Driver
    from tieredstore.pipelines.run.progress import Counts
    from tieredstore.pipelines.run.runner import Runner
    from tieredstore.spark.pipelines.window_jobs import WindowJobs

_logger: Final = logging.getLogger(__name__)

_FINALIZE_S: Final = 60.0
_MEASURE_S: Final = 60.0
_MEASURE_AGAIN_S: Final = 5.0
"""Seconds to wait after a failed measurement of the lag. The wait is short, so that a recovery is noticed soon."""

_ALONE_S: Final = 60.0


_Outcome = TypeVar("_Outcome")

_SOURCE: Final = "source"
_OUTPUT: Final = "output"


class _Away:
    """Failures of the source and of the output at the last check. A check is done only while there is nothing to
    write."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._since_s = 0.0

    @property
    def reason(self) -> str | None:
        """The failure of source or output, or None if both answer. Any thread may read ``reason`` and ``waiting_s``."""
        return next(iter(list(self._reasons.values())), None)

    @property
    def waiting_s(self) -> float:
        return time.monotonic() - self._since_s if self._reasons else 0.0

    def note_failure(self, side: str, error: TieredStoreError) -> None:
        if not self._reasons:
            self._since_s = time.monotonic()
        self._reasons[side] = str(error)

    def note_answer(self, side: str) -> None:
        self._reasons.pop(side, None)


class WindowSink:
    """The function that Spark's ``foreachBatch`` calls with one batch after the other, on Spark's threads.

    The commit log, not Spark's checkpoint, decides which offset windows of a batch are already written. A call waits
    while a store is unavailable.
    """

    def __init__(
        self,
        spark: SparkSession,
        runner: Runner,
        jobs: WindowJobs,
        outage: Outage,
        *,
        tell: Callable[[str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tell`` is called with a sentence whenever the start of the pipeline waits for a store or broker.
        ``monotonic`` decides when regular tasks are due."""
        self._spark, self._runner, self._jobs, self._outage, self._tell = spark, runner, jobs, outage, tell
        self._lock = threading.Lock()
        """A lock held while a batch is written, because the driver is not thread-safe."""
        self._stopping = threading.Event()
        self._monotonic = monotonic
        self._wrote_at = self._finalize_at = self._measure_at = self._alone_at = monotonic()
        self._away = _Away()
        self._finalizes = runner.driver.generation.own.finalize
        self._ahead: AheadBatch | None = None
        self.failure: BaseException | None = None
        """The error that ended the query, if this object raised it."""

    @property
    def driver(self) -> Driver:
        """The driver, which commits and publishes."""
        return self._runner.driver

    @property
    def counts(self) -> Counts:
        """The counters and the current state."""
        waiting_s = max(self._outage.waiting_s, self._away.waiting_s)
        return replace(self._runner.counts, outages=self._outage.count, waiting_seconds=waiting_s)

    @property
    def waits_for(self) -> str | None:
        """The last error of an unavailable store or broker, or None while every store and broker answers."""
        return self._outage.reason if self._outage.is_on else self._away.reason

    def begin(self) -> None:
        """Take over from an earlier driver, and publish the files that the earlier driver has committed.

        While this method waits for the output and the source to answer, a signal ends the process at once.
        """
        with self._lock:
            with nothing_under_way():
                self._say(f"starting: no answer yet from the output {self.driver.store.identity}")
                self._patiently(self._runner.refuse_backfill)
                self._say(f"starting: no answer yet from {self._runner.source_name}")
                self._patiently(self._runner.look)
            self._say("starting: publishing what an earlier run committed")
            self._patiently(self._runner.begin)

    def check_topics(self, *, ends: bool) -> None:
        """Check at the start that all named topics exist, and that no partition is gone without having been written.

        If a topic does not exist and the run ``ends`` by itself, raise ResourceNotFoundError, because the run would
        otherwise seem to succeed. In a continuous run, log a warning, because the topic may be created later.
        """
        self._patiently(self._runner.check_gone)
        try:
            self._patiently(lambda: self._runner.check_topics(self._runner.look()))
        except ResourceNotFoundError as error:
            if ends:
                raise
            _logger.warning("%s; the pipeline reads the existing topics and waits for the others", error)

    def _say(self, sentence: str) -> None:
        if self._tell is not None:
            self._tell(sentence)

    def __call__(self, frame: DataFrame, number: int) -> None:  # noqa: ARG002  Spark's signature
        """Write the unwritten offset windows of a batch."""
        with self._lock:
            try:
                self._check_open()
                tasks: list[WindowTask] = [unpack(row[TASK]) for row in frame.collect()]
                while self._patiently(lambda: self._write_rest(tasks)):
                    pass
                self._wrote_at = self._monotonic()
                self._patiently(self._finalize)
                self._measure()
            except BaseException as error:
                if not self._stopping.is_set():
                    self.failure = self.failure or error
                raise

    def write_ahead(self, tasks: Sequence[WindowTask], group: str) -> None:
        """Begin to write the offset windows of the first batch while Spark is starting. The Spark jobs belong to the
        query's job group ``group``."""
        if tasks and not tasks[0].window.is_mark and not self._jobs.is_framed:
            self._ahead = AheadBatch(self._spark, group, tasks, self._jobs.write, self.driver.store)

    def close(self) -> None:
        """Discard offset windows that were written ahead but never committed."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def stop(self, deadline: Deadline) -> bool:
        """Accept no more batches, and wait for the running batch. Return True if that batch has ended by the
        deadline."""
        self._stopping.set()
        if not self._lock.acquire(timeout=max(0.0, deadline.remaining_s())):
            return False
        self._lock.release()
        return True

    def reopen(self) -> None:
        """Accept batches again."""
        self._stopping.clear()

    def mark_published(self, *, idle_s: float) -> None:
        """Record that all output is published, if nothing was written for ``idle_s``. Raise FencedError if another
        driver has taken over.

        Even if there is nothing to record, the call checks from time to time whether another driver has taken over.
        """
        if self._monotonic() - self._wrote_at < idle_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._finalize()
            self.driver.mark_published()
            self._check_alone()
        except TieredStoreError as error:
            if not error.retryable:
                self.failure = self.failure or error
                raise
            self._away.note_failure(_OUTPUT, error)
            _logger.info("could not record that everything is published: %s", error)
        else:
            self._away.note_answer(_OUTPUT)
        finally:
            self._lock.release()

    def measure(self) -> None:
        """Update the count of unwritten records from time to time, except while a batch is running.

        Planning runs in another process, so this count is the only way for the driver to notice an unavailable source.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._measure()
            finally:
                self._lock.release()

    def _finalize(self) -> None:
        if self._finalizes and self._monotonic() >= self._finalize_at:
            self._runner.finalize()
            self._finalize_at = self._monotonic() + _FINALIZE_S

    def _check_alone(self) -> None:
        if self._monotonic() >= self._alone_at:
            self.driver.log.check_alone()
            self._alone_at = self._monotonic() + _ALONE_S

    def _measure(self) -> None:
        if self._monotonic() < self._measure_at:
            return
        self._measure_at = self._monotonic() + _MEASURE_S
        try:
            self._runner.measure()
        except TieredStoreError as error:
            # Only log the error here, because Spark's planning process meets the same error, and decides whether to end
            # the query.
            _logger.info("could not count unwritten records: %s", error)
            if error.retryable:
                self._away.note_failure(_SOURCE, error)
                self._measure_at = self._monotonic() + _MEASURE_AGAIN_S
        else:
            self._away.note_answer(_SOURCE)

    def _check_open(self) -> None:
        if self._stopping.is_set():
            # Raise an error, so that Spark does not count the batch as done.
            raise AlreadyClosedError("the pipeline is stopping: the next run writes this batch")

    def _patiently(self, work: Callable[[], _Outcome]) -> _Outcome:
        """Return the result of ``work``. Retry while store or broker are unavailable."""
        while True:
            try:
                if self._outage.is_on:
                    self._runner.resume()
                result = work()
            except TieredStoreError as error:
                pause_s = self._outage.note_failure(error)
                self._say(f"waiting: {error}")
                with nothing_under_way():
                    is_stopping = self._stopping.wait(pause_s)
                if is_stopping:
                    raise
            else:
                self._outage.note_success()
                return result

    def _write_rest(self, tasks: Sequence[WindowTask]) -> bool:
        """Write those offset windows of the tasks that are not yet written. Return False if all are written."""
        by_end = {(task.window.topic, task.window.partition, task.window.stop): task for task in tasks}
        rest = [
            by_end[window.topic, window.partition, window.stop].between(window.start, window.stop)
            for window in find_unwritten([task.window for task in tasks], self.driver.log.state.positions)
        ]
        if rest and rest[0].window.is_mark:
            self.driver.commit(mark_windows([task.window for task in rest]))
        elif rest:
            ahead, self._ahead = self._ahead, None
            batch = (None if ahead is None else ahead.take(rest)) or self._jobs.write(rest)
            if batch.written:
                self.driver.commit(batch.written)
            batch.check()
        return bool(rest)


_CLOSING_S: Final = 10.0
_CANCELLING_S: Final = 0.2
"""Seconds between two cancellations. Cancellations are repeated, because Spark forgets the cancellation of a group that
has no job yet."""


class AheadBatch:
    """Offset windows that a thread writes before Spark asks for them, in Spark jobs of ``group``. The caller must call
    either ``take`` or ``close``, not both.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        tasks: Sequence[WindowTask],
        write: Callable[[Sequence[WindowTask]], Batch],
        store: ObjectStore,
    ) -> None:
        self._spark, self._group, self._tasks, self._write, self._store = spark, group, list(tasks), write, store
        self._future: Future[Batch] = Future()
        self._is_unwanted = False
        InheritableThread(target=self._run, name="tieredstore-ahead", daemon=True).start()

    def take(self, tasks: Sequence[WindowTask]) -> Batch | None:
        """Return the result of writing ahead if its offset windows are exactly those of ``tasks``. Otherwise, discard
        the result and return None.

        This method waits for the job, and raises the job's error. Stopping the query ends the job.
        """
        if [task.window for task in tasks] != [task.window for task in self._tasks]:
            self.close()
            return None
        return outcome(self._future)

    def close(self, give_up_s: float = _CLOSING_S) -> None:
        """Cancel the job and discard its files. If the job is still running after ``give_up_s``, the job's thread
        discards the files.
        """
        self._is_unwanted = True
        give_up_at = time.monotonic() + give_up_s
        try:
            while not self._future.done() and time.monotonic() < give_up_at:
                self._spark.sparkContext.cancelJobGroup(self._group)
                is_done(self._future, _CANCELLING_S)
        finally:
            self._future.add_done_callback(self._discard)

    def _discard(self, job: Future[Batch]) -> None:
        if job.exception() is None:
            discard_files(self._store, [file for window, _ in outcome(job).written for file in window.files])

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, "windows of a first batch", interruptOnCancel=True)
            batch = Batch(()) if self._is_unwanted else self._write(self._tasks)
        except BaseException as error:  # noqa: BLE001  ``take`` raises it
            self._future.set_exception(error)
        else:
            self._future.set_result(batch)
