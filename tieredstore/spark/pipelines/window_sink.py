"""The driver's side of each batch. It plans offset windows, Spark jobs write them, then it commits and publishes them.

This module is separate from ``runs``: it handles single batches, and ``runs`` whole streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark import InheritableThread

from tieredstore.errors import ResourceNotFoundError, TieredStoreError
from tieredstore.pipelines.run.progress import Outage
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
"""Maximum seconds of the wait for a cancelled job."""
_LOOK_S: Final = 0.5
_CANCELLING_S: Final = 0.2
"""Seconds between two cancellations. Cancellations are repeated, because Spark forgets the cancellation of a group that
has no job yet."""


class WindowSink:
    """The function that Spark's ``foreachBatch`` calls with one batch after the other, on Spark's threads.

    A call writes all offset windows that are due. While a store or broker is unavailable, a call returns, so that the
    query can be stopped, and the next call tries again. With ``once``, the only call writes all available records.
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
        self._once, self._is_wanted = once, is_wanted
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
        """Check at the start that all named topics exist.

        If a topic does not exist and the run ``ends`` by itself, raise ResourceNotFoundError, because the run would
        otherwise seem to succeed. In a continuous run, log a warning, because the topic may be created later.
        """
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
        """Write the due offset windows, or, with ``once``, all available records."""
        try:
            with self._lock:
                if self._once:
                    self._patiently(partial(self._write_all, self._is_open), self._is_open)
                    if self._is_open():
                        self._patiently(self._runner.check_gone, self._is_open)
                else:
                    self._attempt(self._write_due)
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def _is_open(self) -> bool:
        return not self._stopping.is_set() and self._is_wanted()

    def write_remaining(self, group: str, deadline: Deadline) -> None:
        """After ``stop``, write all available records, by Spark jobs of the job group ``group``. Records that are
        unwritten at the deadline are left to the next run."""
        done = Future[None]()

        def is_in_time() -> bool:
            return deadline.remaining_s() > 0

        def write() -> None:
            try:
                context.setJobGroup(group, "all available records", interruptOnCancel=True)
                with self._lock:
                    self._patiently(partial(self._write_all, is_in_time), is_in_time)
            except BaseException as error:  # noqa: BLE001  this method raises it
                done.set_exception(error)
            else:
                done.set_result(None)

        context = self._spark.sparkContext
        self._runner.renew()
        InheritableThread(target=write, name="tieredstore-remaining", daemon=True).start()
        if is_done(done, deadline.remaining_s()):
            outcome(done)
            return
        closing = Deadline.after(_CLOSING_S)
        while not is_done(done, _CANCELLING_S) and closing.remaining_s() > 0:
            context.cancelJobGroup(group)

    def _write_all(self, is_wanted: Callable[[], bool]) -> None:
        entries = self._runner.write_available()
        while is_wanted():
            if next(entries, None) is None:
                self._finalize()
                return
            self._outage.note_success()
            self._measure()

    def _write_due(self) -> None:
        while self._is_open() and self._runner.step() is not None:
            self._wrote_at = self._monotonic()
            self._do_regular_tasks()
            self._outage.note_success()
        self._do_regular_tasks()

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

    def _patiently(self, work: Callable[[], object], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Do ``work``. Retry while store or broker are unavailable and the work is wanted."""
        while pause_s := self._attempt(work):
            self._say(f"waiting: {self._outage.reason}")
            until = Deadline.after(pause_s)
            with nothing_under_way():
                while is_wanted() and until.remaining_s() > 0:
                    time.sleep(_LOOK_S)
            if not is_wanted():
                return

    def _attempt(self, work: Callable[[], object]) -> float:
        """Do ``work``. Return the seconds to wait before the next attempt if store or broker are unavailable, else 0.

        Raise the error if waiting does not help, or did not help for too long.
        """
        try:
            if self._outage.is_on:
                self._runner.resume()
            work()
        except TieredStoreError as error:
            return self._outage.note_failure(error)
        self._outage.note_success()
        return 0.0
