"""The driver's side of each batch. It plans offset windows, Spark jobs write them, then it commits and publishes them.

In a run with ``once``, the driver begins to write while Spark is still starting the stream.
This module is separate from ``runs``: it handles single batches, and ``runs`` whole streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import InheritableThread

from tieredstore.errors import AlreadyClosedError, ResourceNotFoundError, TieredStoreError
from tieredstore.pipelines.run.outage import Outage
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.stopping import nothing_under_way

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tieredstore.pipelines.run.driver import Driver
    from tieredstore.pipelines.run.progress import Counts
    from tieredstore.pipelines.run.runner import Runner

_logger: Final = logging.getLogger(__name__)

_FINALIZE_S: Final = 60.0
_MEASURE_S: Final = 60.0
_IDLE_S: Final = 60.0
_ALONE_S: Final = 60.0
_CLOSING_S: Final = 10.0
_LOOK_S: Final = 0.5
_CANCELLING_S: Final = 0.2
"""Seconds between two cancellations. Cancellations are repeated, because Spark forgets the cancellation of a group that
has no job yet."""


class WindowSink:
    """The function that Spark's ``foreachBatch`` calls with one batch after the other, on Spark's threads.

    A call writes all offset windows that are due. While a store or broker is unavailable, a call returns, so that the
    query can be stopped, and the next call tries again. With ``once``, a call only waits for ``write_all``.
    """

    def __init__(
        self,
        spark: SparkSession,
        runner: Runner,
        outage: Outage,
        *,
        once: bool = False,
        tell: Callable[[str], None] | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tell`` is called with a sentence whenever the start of the pipeline waits for a store or broker.
        ``is_wanted`` returns False if the query is being stopped: Spark waits for the running call, but cancels only a
        job that runs at that moment.
        ``monotonic`` decides when regular tasks are due."""
        self._spark, self._runner, self._outage, self._tell = spark, runner, outage, tell
        self._lock = threading.Lock()
        """A lock held while a batch is written, because the driver is not thread-safe."""
        self._stopping = threading.Event()
        self._monotonic = monotonic
        self._wrote_at = self._finalize_at = self._measure_at = self._alone_at = monotonic()
        self._finalizes = runner.driver.generation.own.finalize
        self._once, self._all, self._group = once, Future[None](), ""
        self._is_wanted = is_wanted
        self.failure: BaseException | None = None
        """The error that ended the query, if this object raised it."""

    @property
    def driver(self) -> Driver:
        """The driver, which commits and publishes."""
        return self._runner.driver

    @property
    def counts(self) -> Counts:
        """The counters and the current state."""
        outage = self._outage
        return replace(self._runner.counts, outages=outage.count, waiting_seconds=outage.waiting_s)

    @property
    def waits_for(self) -> str | None:
        """The last error of an unavailable store or broker, or None while every store and broker answers."""
        return self._outage.reason if self._outage.is_on else None

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
        """Write the due offset windows. With ``once``, wait until all are written."""
        try:
            if self._once:
                self._await_all()
                return
            with self._lock:
                self._write_due()
        except BaseException as error:
            if not self._stopping.is_set():
                self.failure = self.failure or error
            raise

    def _await_all(self) -> None:
        while not is_done(self._all, _LOOK_S):
            if not self._is_wanted():
                self.close()
                return
        outcome(self._all)

    def write_all(self, group: str) -> None:
        """Begin to write all available records, on a thread. The Spark jobs belong to the job group ``group``. If it is
        the group of a query, stopping the query ends the running job.
        """
        self._group = group
        InheritableThread(target=self._write_all, name="tieredstore-once", daemon=True).start()

    def write_remaining(self, group: str, deadline: Deadline) -> None:
        """After ``stop``, write all available records. Records that are unwritten at the deadline are left to the next
        run."""
        self._stopping.clear()
        self._runner.renew()
        self.write_all(group)
        if is_done(self._all, deadline.remaining_s()):
            outcome(self._all)
        else:
            self.close()

    def close(self, give_up_s: float = _CLOSING_S) -> None:
        """Cancel the running batch of ``write_all``, and wait for the thread at most ``give_up_s``."""
        self._stopping.set()
        give_up_at = time.monotonic() + give_up_s
        while self._group and not self._all.done() and time.monotonic() < give_up_at:
            self._spark.sparkContext.cancelJobGroup(self._group)
            is_done(self._all, _CANCELLING_S)

    def _write_all(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, "all available records", interruptOnCancel=True)
            with self._lock:
                self._patiently(self._write_batches)
        except BaseException as error:  # noqa: BLE001  the query's batch raises it
            self._all.set_exception(error)
        else:
            self._all.set_result(None)

    def _write_batches(self) -> None:
        self._check_open()
        for _ in self._runner.write_available():
            self._outage.note_success()
            self._measure()
            self._check_open()
        self._finalize()

    def _write_due(self) -> None:
        try:
            if self._outage.is_on:
                self._runner.resume()
            while not self._stopping.is_set() and self._is_wanted() and self._runner.step() is not None:
                self._wrote_at = self._monotonic()
                self._do_regular_tasks()
                self._outage.note_success()
            self._do_regular_tasks()
        except TieredStoreError as error:
            self._outage.note_failure(error)  # raises the error if waiting does not help, or did not help for too long
        else:
            self._outage.note_success()

    def stop(self, deadline: Deadline) -> bool:
        """Accept no more batches, and wait for the running batch. Return True if that batch has ended by the
        deadline."""
        self._stopping.set()
        if not self._lock.acquire(timeout=max(0.0, deadline.remaining_s())):
            return False
        self._lock.release()
        return True

    def mark_published(self) -> None:
        """Record that all output is published, unless a batch is running or the output is unavailable. Raise
        FencedError if another driver has taken over.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._finalize()
            self.driver.mark_published()
        except TieredStoreError as error:
            if not error.retryable:
                raise
            _logger.info("could not record that everything is published: %s", error)
        finally:
            self._lock.release()

    def _finalize(self) -> None:
        if self._finalizes and self._monotonic() >= self._finalize_at:
            self._runner.finalize()
            self._finalize_at = self._monotonic() + _FINALIZE_S

    def _measure(self) -> None:
        if self._monotonic() < self._measure_at:
            return
        self._measure_at = self._monotonic() + _MEASURE_S
        try:
            self._runner.measure()
        except TieredStoreError as error:
            # Only log the error, because the next batch meets the same error, and decides whether to end the query.
            _logger.info("could not count unwritten records: %s", error)

    def _do_regular_tasks(self) -> None:
        self._finalize()
        self._measure()
        now = self._monotonic()
        # While nothing is written, only this check notices that another driver has taken over.
        if now - self._wrote_at >= _IDLE_S and now >= self._alone_at:
            self.driver.mark_published()
            self.driver.log.check_alone()
            self._alone_at = now + _ALONE_S

    def _check_open(self) -> None:
        if self._stopping.is_set():
            raise AlreadyClosedError("the pipeline is stopping: the next run writes the rest")

    def _patiently(self, work: Callable[[], object]) -> None:
        """Do ``work``. Retry while store or broker are unavailable."""
        while True:
            try:
                if self._outage.is_on:
                    self._runner.resume()
                work()
            except TieredStoreError as error:
                pause_s = self._outage.note_failure(error)
                self._say(f"waiting: {error}")
                with nothing_under_way():
                    is_stopping = self._stopping.wait(pause_s)
                if is_stopping:
                    raise
            else:
                self._outage.note_success()
                return
