"""The first batch of a run that ends, written while Spark still starts its stream.

What is written ahead is prepared, no more: it is committed when Spark asks for that batch, or discarded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pyspark import InheritableThread

from tieredstore.pipelines.run.window_writing import discard_files
from tieredstore.spark.pipelines.window_tasks import WindowTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.run.window_writing import Batch

_CLOSING_S: Final = 10.0
_CANCELLING_S: Final = 0.2
"""Between two tries: Spark forgets a cancellation of a group that has no job yet."""


class AheadBatch:
    """Windows under way on a thread of their own, as jobs of the group ``group``. Taken once, or closed."""

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        tasks: Sequence[WindowTask],
        write: Callable[[Sequence[WindowTask]], Batch],
        store: ObjectStore,
    ) -> None:
        self._spark, self._group, self._tasks, self._write, self._store = spark, group, list(tasks), write, store
        self._written: Batch | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._discarding = threading.Lock()
        self._is_taken = self._is_unwanted = False
        self._thread = InheritableThread(target=self._run, name="tieredstore-ahead", daemon=True)
        self._thread.start()

    def take(self, tasks: Sequence[WindowTask]) -> Batch | None:
        """What was written, if it is these windows; None, and all of it is discarded, if it is not.

        Waits for the job, as Spark's own jobs are waited for: what stops the query ends it. Raises its error.
        """
        if [task.window for task in tasks] != [task.window for task in self._tasks]:
            self.close()
            return None
        self._ended.wait()
        self._is_taken = True
        if self._error is not None:
            raise self._error
        return self._written

    def close(self) -> None:
        """End the job, and discard what it prepared, unless it was taken. One that ends later discards it itself."""
        self._is_unwanted = True
        give_up_at = time.monotonic() + _CLOSING_S
        with ExitStack() as stack:
            stack.callback(self._discard)
            while not self._ended.is_set() and time.monotonic() < give_up_at:
                self._spark.sparkContext.cancelJobGroup(self._group)
                self._ended.wait(_CANCELLING_S)

    def _discard(self) -> None:
        with self._discarding:
            written, self._written = self._written, None
            if written is not None and not self._is_taken:
                discard_files(self._store, [file for window, _ in written.written for file in window.files])

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, "windows of a first batch", interruptOnCancel=True)
            if not self._is_unwanted:
                self._written = self._write(self._tasks)
        except BaseException as error:  # noqa: BLE001  whoever takes it raises it
            self._error = error
        finally:
            self._ended.set()
            if self._is_unwanted:
                self._discard()
