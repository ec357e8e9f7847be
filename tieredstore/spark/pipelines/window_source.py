"""The Spark stream that feeds a pipeline. Each row is a task: an offset window to write and where to read its records.

Spark plans in a separate process, which takes a second or more to start. So in a run with ``once``, the driver plans
and writes everything itself, and the stream has a single batch without tasks.

The end of a batch in Spark's checkpoint lists the batch's windows, so that a repeated batch has the same windows. The
pipeline's progress comes only from the commit log, and not from the checkpoint.

Spark imports this module in each process that it starts for a stream. Processes that do not plan need no other module
of pipelines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.spark.source.workers import one_sentence, pack
from tieredstore.versions import PIPELINE_OFFSETS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tieredstore.spark.pipelines.window_planning import Planning


FORMAT: Final = "tieredstore_windows"
FILE: Final = "pipeline"
"""Option with the name of the settings file."""
ONCE: Final = "once"
"""Option of a run with ``once``: an id, which is different in each run."""
TASK: Final = "task"
"""Column with a packed task."""


class WindowSource(DataSource):
    """The data source of offset windows. PipelineRun registers it in the session. It is not for direct use."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema: one binary column."""
        return f"{TASK} binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  Spark's name
        """Return the stream's reader, which plans the offset windows."""
        return WindowReader(self.options[FILE], self.options.get(ONCE))


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans offset windows trigger by trigger. ``clock`` returns monotonic seconds.

    While a store or broker is unavailable, the reader plans no window, and raises an error only after
    ``outage.seconds``. If ``once`` is set, the reader makes no request: its only batch has no tasks.
    """

    def __init__(self, file: str, once: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._once, self._clock = file, once, clock
        self._open = ExitStack()
        self._planning: Planning | None = None

    def __reduce__(self) -> tuple[type[WindowReader], tuple[str, str | None]]:
        return WindowReader, (self._file, self._once)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Return a Spark offset without offset windows. The pipeline's progress is read later, when the first windows
        are planned."""
        return {"version": PIPELINE_OFFSETS.version, "windows": []}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """Return a Spark offset that lists the offset windows to write now, or ``start`` if there are none."""
        if self._once is not None:
            return {**self.initialOffset(), "plan": self._once}
        with one_sentence():
            return self._plan().next(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: only a run with ``once`` ends by itself, and the driver plans it."""

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return the tasks of the batch just planned, or of an earlier batch that Spark repeats. One partition has all
        of them, because they are few.
        """
        if self._once is not None:
            return [InputPartition(())]
        with one_sentence():
            return [InputPartition([pack(task) for task in self._plan().tasks(end)])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of a batch as rows."""
        yield pa.RecordBatch.from_pydict({TASK: pa.array(partition.value or (), pa.binary())})

    def stop(self) -> None:
        """Release all resources."""
        self._planning = None
        self._open.close()

    def _plan(self) -> Planning:
        if self._planning is None:
            # Import only here, because ``window_planning`` loads stores, Arrow and the Kafka client, and many processes
            # never plan.
            from tieredstore.spark.pipelines.window_planning import planning_of  # noqa: PLC0415

            self._planning = planning_of(self._file, self._open, self._clock)
        return self._planning


Json = dict[str, Any]
