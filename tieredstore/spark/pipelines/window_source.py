"""The Spark stream that feeds a pipeline. Each row is a task: an offset window to write and where to read its records.

Spark plans in a separate process, which takes a second or more to start. So for a run with ``once``, the driver plans
instead.

The end of a batch in Spark's checkpoint lists the batch's windows, so that a repeated batch has the same windows. The
pipeline's progress comes only from the commit log, and not from the checkpoint.

Spark imports this module in each process that it starts for a stream. Processes that do not plan need no other module
of pipelines.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
PLAN: Final = "plan"
"""Option that holds all offset windows of a run with ``once``, if the driver could plan them before the run."""
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
        plan = self.options.get(PLAN)
        return WindowReader(self.options[FILE], None if plan is None else GivenPlan.of_option(plan))


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans offset windows trigger by trigger. ``clock`` returns monotonic seconds.

    While a store or broker is unavailable, the reader plans no window, and raises an error only after
    ``outage.seconds``. If ``plan`` is set, the driver has planned everything, and the reader makes no request.
    """

    def __init__(
        self,
        file: str,
        plan: GivenPlan | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._given, self._clock = file, plan, clock
        self._open = ExitStack()
        self._planning: Planning | None = None

    def __reduce__(self) -> tuple[type[WindowReader], tuple[str, GivenPlan | None]]:
        return WindowReader, (self._file, self._given)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Return a Spark offset without offset windows. The pipeline's progress is read later, when the first windows
        are planned."""
        return {"version": PIPELINE_OFFSETS.version, "windows": []}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """Return a Spark offset that lists the offset windows to write now, or ``start`` if there are none."""
        if self._given is not None:
            return self._given.end if self._given.tasks else start
        with one_sentence():
            return self._plan().next(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make this run end at the records that are present now."""
        if self._given is None:
            with one_sentence():
                self._plan().fix()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return the tasks of the batch just planned, or of an earlier batch that Spark repeats. One partition has all
        of them, because they are few.
        """
        if self._given is not None and end == self._given.end:
            return [InputPartition(self._given.tasks)]
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

_MOST_CHARACTERS: Final = 340 << 10
"""Maximum characters of a plan that is passed to Spark's JVM as an option."""


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """The driver's plan for one batch with all offset windows of a run. ``end`` is the batch's end as a Spark offset.
    ``tasks`` are pickled.
    """

    end: Json
    tasks: tuple[bytes, ...]

    def as_option(self, most: int = _MOST_CHARACTERS) -> str | None:
        """Return the plan as the text of an option, or None if it has over ``most`` characters."""
        text = json.dumps({"end": self.end, "tasks": [base64.b64encode(task).decode() for task in self.tasks]})
        return text if len(text) <= most else None

    @staticmethod
    def of_option(text: str) -> GivenPlan:
        """Parse the text of :meth:`as_option`."""
        plan = json.loads(text)
        return GivenPlan(plan["end"], tuple(base64.b64decode(task) for task in plan["tasks"]))
