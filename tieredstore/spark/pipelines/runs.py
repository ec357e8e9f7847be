"""Pipelines under way in a session: their queries, how they end, what ended them; and a service of them."""

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

from tieredstore.errors import AlreadyClosedError, ConfigError, TieredStoreError
from tieredstore.pipelines.config.settings import load_pipeline
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.progress import Counts, CountsCollector
from tieredstore.pipelines.run.runner import Runner
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.process.deadline import Deadline
from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.spark.pipelines.window_jobs import WindowJobs
from tieredstore.spark.pipelines.window_planning import give_plan, whole_plan
from tieredstore.spark.pipelines.window_sink import WindowSink
from tieredstore.spark.pipelines.window_source import FILE, FORMAT, PLAN, WindowSource
from tieredstore.spark.pipelines.window_tasks import error_within
from tieredstore.spark.source.workers import check_worker_python

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from tieredstore.process.stopping import Stop
    from tieredstore.spark.pipelines.window_tasks import WindowTask

_logger: Final = logging.getLogger(__name__)

_TRIGGER: Final = "1 second"
_KEEPER_S: Final = 5
_LOOK_S: Final = 0.5
_CLOSING_S: Final = 1.0
"""Of the time for draining, what is left for closing."""

_STARTED: Final = "started"
_QUERIES: Final = "queries"
_BEAT_S: Final = 900.0
"""A mark waits for as long as a store is asked again and again."""


class PipelineRun:
    """One pipeline at work as a streaming query of a session; to be closed once that has ended.

    ``checkpoint`` is a folder for Spark's notes, one of this machine's own by default: they may be lost, or old.
    ``once`` ends the query when all that there is now is written. ``take_over`` is a generation that it seals and goes
    on behind, unless that is done. An error of the settings is raised here, of ``once`` also topics that are named and
    nowhere; a store or broker that is away is waited for.
    """

    def __init__(
        self,
        spark: SparkSession,
        file: Path | str,
        *,
        checkpoint: str | None = None,
        once: bool = False,
        take_over: int | None = None,
        health: Health | None = None,
    ) -> None:
        """``health`` is told what is waited for, from the start on."""
        self._spark, self._is_up = spark, 0
        self._file = str(Path(file).absolute())
        pipeline = load_pipeline(self._file)
        self.own = pipeline.own
        self.name = f"{self.own.name}-{self.own.generation}"
        """The pipeline's, and the generation's."""
        _check_session(spark)
        with ExitStack() as opened:
            parts = opened.enter_context(open_parts(pipeline))
            jobs = WindowJobs(spark, self._file, self.own, parts.store)
            runner = opened.enter_context(Runner(pipeline, parts, take_over=take_over, framed=jobs.write_one))
            tell = None if health is None else partial(health.fails, self.name)
            self._sink = WindowSink(spark, runner, jobs, Outage(self.own.outage_s), tell=tell)
            opened.callback(self._sink.close)
            self._sink.begin()
            self._sink.check_topics(ends=once)
            plan = whole_plan(pipeline, parts, self._sink.driver.log.state.positions) if once else None
            self._opened = opened
            self.query = self._start(
                once=once, checkpoint=checkpoint and f"{checkpoint.rstrip('/')}/{self.name}", plan=plan
            )
            self._opened = opened.pop_all()

    def counts(self) -> tuple[str, int, Counts]:
        """The pipeline's name and generation, and what it has done."""
        return self.own.name, self.own.generation, replace(self._sink.counts, up=self._is_up)

    def tell(self, health: Health) -> None:
        """Whether it writes, or waits for something."""
        if (reason := self._sink.waits_for) is not None:
            health.fails(self.name, f"it waits: {reason}")
        else:
            health.holds(self.name)

    def failure(self) -> BaseException | None:
        """What has ended the query; None if it goes on or has ended well."""
        return None if self.query.isActive else self._sink.failure or _failure_of(self.query)

    def has_ended(self, within_s: int) -> bool:
        """Wait for the query's end, for so long at most."""
        return _has_ended(self.query, within_s)

    def mark(self, *, idle_s: float = 60.0) -> None:
        """Note in the log that all is published, where nothing was written for a while.

        Another driver that has taken over is noticed here at the latest, and ends the query.
        """
        try:
            self._sink.mark_published(idle_s=idle_s)
        except TieredStoreError as error:
            _logger.error("%s: %s", self.name, error)  # noqa: TRY400  an error of ours is a sentence
            self.query.stop()
        else:
            self._sink.measure()
        self._is_up = int(self.query.isActive)

    def drain(self, deadline: Deadline) -> None:
        """Let the batch that is under way end, then the query; the rest is written too if the settings say so.

        What is not done by the deadline is done by the next run. An error that the rest ends with is raised.
        """
        if not self._sink.stop(deadline):
            _logger.error("%s: its batch did not end in time; the next run writes it", self.name)
            return
        has_failed = self.failure() is not None
        self.query.stop()
        if has_failed:
            return
        if self.own.limits.upload_on_shutdown:
            self._sink.reopen()
            self.query = self._start(once=True)
            if not self.has_ended(int(deadline.remaining_s())):
                self._sink.stop(deadline)
                self.query.stop()
            elif (failure := self.failure()) is not None:
                raise failure
        self._sink.mark_published(idle_s=0)

    def close(self) -> None:
        """Close what the driver has open; a query that still runs is stopped."""
        self.query.stop()
        self._opened.close()

    def _start(
        self, *, once: bool, checkpoint: str | None = None, plan: tuple[WindowTask, ...] | None = None
    ) -> StreamingQuery:
        self._spark.dataSource.register(WindowSource)
        source = self._spark.readStream.format(FORMAT).option(FILE, self._file)
        option = None if plan is None else give_plan(plan).as_option()
        windows = (source if option is None else source.option(PLAN, option)).load()
        writer = windows.writeStream.foreachBatch(self._sink).queryName(self.name)
        writer = writer.option("checkpointLocation", checkpoint or self._own_folder())
        query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=_TRIGGER)).start()
        if plan is not None and option is not None:
            self._sink.write_ahead(plan, str(query.runId))
        return query

    def _own_folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="tieredstore-pipeline-")
        self._opened.callback(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder).as_uri()


class _CountedRuns:
    """The runs of this process, whose counts are among its metrics for as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[PipelineRun] = []
        self._collector: CountsCollector | None = None

    def add(self, run: PipelineRun) -> None:
        """One more."""
        with self._lock:
            self._runs.append(run)
            self._collector = self._collector or CountsCollector(self._counts)

    def remove(self, run: PipelineRun) -> None:
        """It has ended."""
        with self._lock:
            self._runs.remove(run)
            if not self._runs and self._collector is not None:
                self._collector.close()
                self._collector = None

    def _counts(self) -> list[tuple[str, int, Counts]]:
        return [run.counts() for run in list(self._runs)]


_counted: Final = _CountedRuns()


def start_pipelines(
    spark: SparkSession, *files: Path | str, checkpoint: str | None = None, once: bool = False
) -> list[StreamingQuery]:
    """Start the pipeline of each file of properties as a streaming query of the session.

    The queries go on until they are stopped, or with ``once`` until all that there is now is written. Each record is
    in the output once, whatever is killed and however often this is called: the commit log in the output says how far
    a pipeline is. ``checkpoint`` is a folder for Spark's own notes, which may be lost or old; without it they lie in a
    folder of the driver that goes with the query. ``awaitTermination`` raises what ends a query. What they do is among
    the metrics of this process while they are under way. ResourceNotFoundError, with ``once``, for a topic that is
    named and nowhere.
    """
    if not files:
        raise ConfigError("no pipeline is named: give start_pipelines their files of properties")
    runs: list[PipelineRun] = []
    try:
        runs.extend(PipelineRun(spark, file, checkpoint=checkpoint, once=once) for file in files)
    except BaseException:
        for run in runs:
            run.close()
        raise
    for run in runs:
        _counted.add(run)
        threading.Thread(target=_keep_and_close, args=(run,), name=f"tieredstore-{run.name}", daemon=True).start()
    return [run.query for run in runs]


def _keep_and_close(run: PipelineRun) -> None:
    try:
        while not run.has_ended(_KEEPER_S):
            run.mark()
        if run.failure() is None:
            run.mark(idle_s=0)
    except Exception as error:  # noqa: BLE001  the session may be gone, and with it the query
        _logger.info("%s: %s", run.name, error)
    finally:
        _counted.remove(run)
        run.close()


def _check_session(spark: SparkSession) -> None:
    try:
        _ = spark.sparkContext
    except PySparkAttributeError:
        raise ConfigError("pipelines need a session of the driver's own process, which one of Connect is not") from None
    check_worker_python(spark)


def _has_ended(query: StreamingQuery, within_s: float) -> bool:
    try:
        return bool(query.awaitTermination(max(1, int(within_s))))
    except Exception:  # noqa: BLE001  what it ended with is asked for by failure()
        return True


def _failure_of(query: StreamingQuery) -> BaseException | None:
    """What a query ended with outside of the driver: an error of ours that the planning process had, or Spark's."""
    error = query.exception()
    return None if error is None else error_within(error) or error


def session(threads: int | None, conf: Mapping[str, str]) -> SparkSession:
    """A session by Spark's own settings; on this machine, with so many threads, where these name no master."""
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
    checkpoint: str | None = None,
    drain_s: float = 30.0,
    listen: tuple[str, int] | None = None,
    take_over: int | None = None,
) -> Service:
    """A service that runs pipelines until it is stopped, or one of them ends with an error.

    ``take_over`` is the generation of each that it goes on behind. ``listen`` is where it answers ``/metrics``,
    ``/healthz`` and ``/readyz``: ready while none of them waits.
    """
    health = Health({_STARTED: "not all of the pipelines are started yet"})

    def work(stop: Stop) -> None:
        with ExitStack() as open_runs:
            runs: list[PipelineRun] = []
            for file in files:
                if stop.is_asked:
                    return
                run = PipelineRun(spark, file, checkpoint=checkpoint, take_over=take_over, health=health)
                open_runs.callback(run.close)
                _counted.add(run)
                open_runs.callback(_counted.remove, run)
                runs.append(run)
                health.fails(run.name, "it was not looked at yet")
            health.holds(_STARTED)
            try:
                _watch(runs, stop, health)
            finally:
                health.rest(_QUERIES)
                _drain(runs, stop)

    return Service("pipeline", {_QUERIES: work}, drain_s=drain_s, health=health, listen=listen)


def _watch(runs: Sequence[PipelineRun], stop: Stop, health: Health) -> None:
    """Until a stop is asked for, or one of them ends: none of them should."""
    while not stop.wait(_LOOK_S):
        health.beat(_QUERIES, within_s=_BEAT_S)
        for run in runs:
            run.mark()
            run.tell(health)
            if not run.query.isActive:
                raise run.failure() or AlreadyClosedError(f"the query of {run.name} was stopped by somebody else")


def _drain(runs: Sequence[PipelineRun], stop: Stop) -> None:
    by = stop.deadline or Deadline.after(stop.drain_s)
    for run in runs:
        run.drain(Deadline.after(max(0.0, by.remaining_s() - _CLOSING_S)))
