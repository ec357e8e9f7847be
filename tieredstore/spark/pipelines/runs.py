"""Pipelines as streaming queries of a Spark session, and a service that runs them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from tieredstore.errors import AlreadyClosedError, ConfigError
from tieredstore.pipelines.config.settings import load_pipeline
from tieredstore.pipelines.run.planner import look_s
from tieredstore.pipelines.run.progress import Counts, CountsCollector, Outage
from tieredstore.pipelines.run.runner import Runner
from tieredstore.pipelines.run.source import open_parts
from tieredstore.process.deadline import Deadline
from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.spark.pipelines.window_jobs import WindowJobs
from tieredstore.spark.pipelines.window_sink import WindowSink
from tieredstore.spark.source.workers import check_worker_python

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from tieredstore.process.stopping import Stop

_logger: Final = logging.getLogger(__name__)

_LONGEST_S: Final = 5.0
"""Maximum seconds between two batches. Files come due by age too, so batches may be more frequent than listings."""
_KEEPER_S: Final = 5
_LOOK_S: Final = 0.5
_CLOSING_S: Final = 1.0
"""Seconds at the end of the draining time that are reserved for closing."""

_STARTED: Final = "started"
_QUERIES: Final = "queries"
_BEAT_S: Final = 300.0
"""Maximum seconds between two heartbeats of the health check."""


class PipelineRun:
    """Runs one pipeline as a streaming query. Close it after the query has ended.

    - With ``once``, the query ends when everything present now is written.
    - ``take_over`` is the number of an older generation (a version of the output): the run seals it and continues it,
      unless an earlier run has done so.

    Raises ConfigError for wrong settings. With ``once``, raises ResourceNotFoundError for named topics that do not
    exist. Waits while a store or broker is unavailable.
    """

    def __init__(
        self,
        spark: SparkSession,
        file: Path | str,
        *,
        once: bool = False,
        take_over: int | None = None,
        health: Health | None = None,
    ) -> None:
        """Start the query. The health check ``health`` shows the store or broker that the query waits for."""
        self._spark, self._is_up = spark, 0
        self._file = str(Path(file).absolute())
        pipeline = load_pipeline(self._file)
        self.own = pipeline.own
        self.name = f"{self.own.name}-{self.own.generation}"
        """Name of the query: pipeline and generation (a version of the output)."""
        _check_session(spark)
        if any(query.name == self.name for query in spark.streams.active):
            raise ConfigError(f"{self.own.name} already runs in this Spark session: stop its query {self.name} first")
        with ExitStack() as opened:
            parts = opened.enter_context(open_parts(pipeline))
            jobs = WindowJobs(spark, self._file, self.own, parts.store)
            runner = opened.enter_context(Runner(pipeline, parts, take_over=take_over, on_spark=jobs.write))
            tell = None if health is None else partial(health.fails, self.name)
            self._sink = WindowSink(
                spark, runner, Outage(self.own.outage_s), once=once, tell=tell, is_wanted=self._is_wanted
            )
            if not once:
                runner.announce()
            self._sink.begin()
            self._sink.check_topics(ends=once)
            self.query = self._start(opened, once=once)
            opened.callback(self.query.stop)
            self._opened = opened.pop_all()

    def _is_wanted(self) -> bool:
        """Return False if the query is being stopped. Spark may call the sink before the query's start has returned."""
        return not hasattr(self, "query") or bool(self.query.isActive)

    def counts(self) -> tuple[str, int, Counts]:
        """Return the pipeline's name and generation, and its counters."""
        return self.own.name, self.own.generation, replace(self._sink.counts, up=self._is_up)

    def tell(self, health: Health) -> None:
        """Report to the health check whether the pipeline runs, or what it waits for."""
        self._is_up = int(self.query.isActive)
        if (reason := self._sink.waits_for) is not None:
            health.fails(self.name, f"waiting: {reason}")
        else:
            health.holds(self.name)

    def failure(self) -> BaseException | None:
        """Return the error that ended the query. Return None if the query is running or has ended without an error."""
        return None if self.query.isActive else self._sink.failure or self.query.exception()

    def has_ended(self, within_s: int) -> bool:
        """Wait for the end of the query, at most ``within_s``. Return True if it has ended."""
        try:
            has_ended = bool(self.query.awaitTermination(max(1, within_s)))
        except Exception:  # noqa: BLE001  ``failure`` returns the query's error
            has_ended = True
        self._is_up = int(not has_ended)
        return has_ended

    def mark(self) -> None:
        """Record in the commit log that all files are published."""
        self._sink.mark_published()

    def drain(self, deadline: Deadline) -> None:
        """Let the running batch finish, then end the query. With ``secor.upload.on.shutdown``, also write the remaining
        records.

        Records that are unwritten at the deadline are left to the next run. If writing the remaining records fails,
        this method raises the error.
        """
        if not self._sink.stop(deadline):
            _logger.error("%s: the running batch did not end in time; the next run writes it", self.name)
            return
        failure = self.failure()
        self.query.stop()
        if failure is not None:
            return
        if self.own.limits.upload_on_shutdown:
            self._sink.write_remaining(f"{self.name}, remaining records", deadline)
        self.mark()

    def close(self) -> None:
        """Stop the query, and close the driver's resources."""
        self._opened.close()

    def _start(self, opened: ExitStack, *, once: bool) -> StreamingQuery:
        """Start a stream that only gives the time: each of its batches makes the driver write what is due.

        The progress comes only from the commit log, so nobody needs Spark's checkpoint after the query.
        """
        folder = tempfile.mkdtemp(prefix="tieredstore-pipeline-")
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        stream = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = stream.writeStream.foreachBatch(self._sink).queryName(self.name)
        writer = writer.option("checkpointLocation", Path(folder).as_uri())
        every = f"{min(_LONGEST_S, look_s(self.own.limits))} seconds"
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)).start()


_collector: Final = CountsCollector()


def start_pipelines(spark: SparkSession, *files: Path | str, once: bool = False) -> list[StreamingQuery]:
    """Start a pipeline from each .properties file, as streaming queries of the session.

    The queries run until they are stopped. With ``once``, the queries end when all records that are present now are
    written. A commit log in the output records the progress, so that each record is in the output once, even if queries
    are killed and started again.

    ``awaitTermination`` raises the error that ends a query. The metrics of this process include running queries.

    With ``once``, the function raises ResourceNotFoundError if a named topic does not exist.
    """
    if not files:
        raise ConfigError("give start_pipelines at least one .properties file")
    runs: list[PipelineRun] = []
    try:
        runs.extend(PipelineRun(spark, file, once=once) for file in files)
    except BaseException:
        for run in runs:
            run.close()
        raise
    for run in runs:
        _collector.add(run.counts)
        threading.Thread(target=_keep_and_close, args=(run,), name=f"tieredstore-{run.name}", daemon=True).start()
    return [run.query for run in runs]


def _keep_and_close(run: PipelineRun) -> None:
    try:
        while not run.has_ended(_KEEPER_S):
            pass
        if run.failure() is None:
            run.mark()
    except Exception as error:  # noqa: BLE001  the session may have ended, and the query with it
        _logger.info("%s: %s", run.name, error)
    finally:
        _collector.remove(run.counts)
        run.close()


def _check_session(spark: SparkSession) -> None:
    try:
        _ = spark.sparkContext
    except PySparkAttributeError:
        raise ConfigError("pipelines need a Spark session in this process, not one of Spark Connect") from None
    check_worker_python(spark)


def session(threads: int | None, conf: Mapping[str, str]) -> SparkSession:
    """Make a session from Spark's settings. With ``threads``, make a local session that runs this many tasks in
    parallel.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("tieredstore pipeline")
    for name, value in {"spark.ui.showConsoleProgress": "false", **conf}.items():
        builder = builder.config(name, value)
    if threads is not None:
        builder = builder.master(f"local[{threads}]")
    return builder.getOrCreate()


def pipeline_service(
    spark: SparkSession,
    files: Sequence[Path | str],
    *,
    drain_s: float = 30.0,
    listen: tuple[str, int] | None = None,
    take_over: int | None = None,
) -> Service:
    """Return a service that runs pipelines until it is stopped or one of them ends with an error.

    ``take_over`` is the number of a generation (a version of the output). If it is set, each pipeline continues its
    generation of this number. ``listen`` is the address of ``/metrics``, ``/healthz`` and ``/readyz``. The service is
    ready while no pipeline waits for a store or broker.
    """
    health = Health({_STARTED: "pipelines are still starting"})

    def work(stop: Stop) -> None:
        with ExitStack() as open_runs:
            runs: list[PipelineRun] = []
            for file in files:
                if stop.is_asked:
                    return
                run = PipelineRun(spark, file, take_over=take_over, health=health)
                open_runs.callback(run.close)
                _collector.add(run.counts)
                open_runs.callback(_collector.remove, run.counts)
                runs.append(run)
                health.fails(run.name, "not checked yet")
            health.holds(_STARTED)
            try:
                _watch(runs, stop, health)
            finally:
                health.rest(_QUERIES)
                _drain(runs, stop)

    return Service("pipeline", {_QUERIES: work}, drain_s=drain_s, health=health, listen=listen)


def _watch(runs: Sequence[PipelineRun], stop: Stop, health: Health) -> None:
    """Wait until the service is stopped. Raise an error if a query ends before that."""
    while not stop.wait(_LOOK_S):
        health.beat(_QUERIES, within_s=_BEAT_S)
        for run in runs:
            run.tell(health)
            if not run.query.isActive:
                raise run.failure() or AlreadyClosedError(f"the query of {run.name} was stopped from outside")


def _drain(runs: Sequence[PipelineRun], stop: Stop) -> None:
    by = stop.deadline or Deadline.after(stop.drain_s)
    for run in runs:
        run.drain(Deadline.after(max(0.0, by.remaining_s() - _CLOSING_S)))
