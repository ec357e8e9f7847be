"""Jobs of Spark's that write windows: one task for each, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.files.framing import frame_function
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.run.window_writing import Batch, Failed, discard_files, readable
from tieredstore.spark.pipelines.frame_tasks import FrameJob
from tieredstore.spark.pipelines.window_tasks import REPORT, SCHEMA, Job, Report, WindowTask, error_within, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import PipelineSettings
    from tieredstore.pipelines.log.entries import Window
    from tieredstore.pipelines.run.window_writing import Written
    from tieredstore.reading.plan import WindowSplit


class WindowJobs:
    """Prepares windows by tasks of a session, through the frame of the settings if they name one."""

    def __init__(self, spark: SparkSession, file: str, own: PipelineSettings, store: ObjectStore) -> None:
        """``file`` has the settings, for the tasks."""
        self._spark, self._store = spark, store
        self._file, self._fingerprint = file, fingerprint_of(own)
        self._frame: Callable[[Any], Any] | None = frame_function(own.frame) if own.frame else None

    @property
    def is_framed(self) -> bool:
        """Whether records pass the frame of the settings."""
        return self._frame is not None

    def write(self, window: Window, splits: tuple[WindowSplit, ...]) -> Written:
        """One window that is read from these."""
        batch = self.written([WindowTask(window, splits)])
        batch.check()
        (written,) = batch.written
        return written

    def written(self, tasks: Sequence[WindowTask]) -> Batch:
        """The windows of tasks as far as they can be read; with a frame all of them, or none."""
        if self._frame is not None:
            framed = FrameJob(self._file, self._fingerprint, tuple(tasks))
            rows, read = framed.rows(self._numbers(tasks), self._frame)
            written = [one for one in self._outcomes(rows) if not isinstance(one, Failed)]
            return Batch(framed.whole(written, read(), self._store))
        of_window = {(task.window.topic, task.window.partition, task.window.start): task for task in tasks}
        outcomes = self._run(tasks)

        def attempt(window: Window) -> Written | Failed:
            task = of_window[window.topic, window.partition, window.start]
            (again,) = self._run([task.between(window.start, window.stop)])
            return again

        try:
            return readable(outcomes, attempt, self._store)
        except BaseException:
            self._discard(outcomes)
            raise

    def _numbers(self, tasks: Sequence[WindowTask]) -> Any:
        """A row for each task, in as many tasks of Spark's."""
        return self._spark.range(0, len(tasks), 1, len(tasks))

    def _run(self, tasks: Sequence[WindowTask]) -> list[Written | Failed]:
        job = Job(self._file, self._fingerprint, tuple(tasks))
        return self._outcomes(self._numbers(tasks).mapInArrow(job.run, SCHEMA))

    def _outcomes(self, job: Any) -> list[Written | Failed]:
        """What the tasks of a job report, once it has run; the gravest error of theirs."""
        try:
            reports: list[Report] = [unpacked(row[REPORT]) for row in job.collect()]
        except PySparkException as error:
            if (ours := error_within(error)) is None:
                raise
            raise ours from error
        outcomes: list[Written | Failed] = []
        errors: list[TieredStoreError] = []
        for report in reports:
            try:
                outcomes.append(report.outcome())
            except TieredStoreError as error:
                errors.append(error)
        if errors:
            self._discard(outcomes)
            # One that no waiting mends says more than those that it might.
            raise min(errors, key=lambda error: error.retryable)
        return outcomes

    def _discard(self, outcomes: Sequence[Written | Failed]) -> None:
        prepared = (one[0].files for one in outcomes if not isinstance(one, Failed))
        discard_files(self._store, [file for files in prepared for file in files])
