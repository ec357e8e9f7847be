"""The stream of a pipeline's windows: due ones, as rows of windows with their sources.

One process beside the driver plans, or the driver itself for a run that ends: Spark takes a second or more to start
that process. The windows themselves give a batch's end, so that a repeated batch has the same cuts. The commit log
alone has the pipeline's progress, whatever Spark's checkpoint says.

Spark imports this module in each process that it starts for a stream; those that do not plan (none does for a run that
ends) need no more of pipelines than this.
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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from tieredstore.spark.source.workers import one_sentence

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tieredstore.spark.pipelines.window_planning import Planning


FORMAT: Final = "tieredstore_windows"
FILE: Final = "pipeline"
"""The option that names the file of settings."""
PLAN: Final = "plan"
"""The option with all windows of a run that ends, if the driver has planned them."""
TASK: Final = "task"
"""The column with a packed task."""


class WindowSource(DataSource):
    """Registered in a session with its first pipeline; not for direct use."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return one opaque column."""
        return f"{TASK} binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  Spark's name
        """Return the planner."""
        plan = self.options.get(PLAN)
        return WindowReader(self.options[FILE], None if plan is None else GivenPlan.of_option(plan))


class _Tasks(InputPartition):
    """All rows of a batch: they are few."""

    def __init__(self, tasks: Sequence[bytes]) -> None:
        self.tasks = tuple(tasks)


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans from trigger to trigger; ``clock`` returns monotonic seconds.

    While the settings allow it, an unreachable store or broker is no error of the query: nothing is due then. ``plan``
    is everything to be written, if known: nothing is looked up then.
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
        """Return an offset before any window; the written ones are looked up when the first are planned."""
        return {"version": 1, "windows": []}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: the settings have the limits."""
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """Return the windows due now; ``start`` itself if there are none."""
        if self._given is not None:
            return self._given.end if self._given.tasks else start
        with one_sentence():
            return self._plan().next(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the present end: everything up to it is written, and nothing later."""
        if self._given is None:
            with one_sentence():
                self._plan().fix()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return the sources of a batch's windows: one just planned, or one to be repeated."""
        if self._given is not None and end == self._given.end:
            return [_Tasks(self._given.tasks)]
        with one_sentence():
            return [_Tasks(self._plan().pack_tasks(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch."""
        tasks = list(partition.tasks) if isinstance(partition, _Tasks) else []
        yield pa.RecordBatch.from_pydict({TASK: pa.array(tasks, pa.binary())})

    def commit(self, end: Json) -> None:
        """Do nothing: the commit log is the truth."""

    def stop(self) -> None:
        """Release all resources."""
        self._planning = None
        self._open.close()

    def _plan(self) -> Planning:
        if self._planning is None:
            # Some processes that import this module do not need it, and it imports the stores, Arrow's functions and
            # the client of brokers.
            from tieredstore.spark.pipelines.window_planning import planning_of  # noqa: PLC0415

            self._planning = planning_of(self._file, self._open, self._clock)
        return self._planning


Json = dict[str, Any]

_MOST_CHARACTERS: Final = 340 << 10
"""The limit of a plan, which passes the JVM as an option."""


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """The end of the one batch, as an offset of the stream, and its packed tasks; no tasks if nothing is due."""

    end: Json
    tasks: tuple[bytes, ...]

    def as_option(self) -> str | None:
        """Return the value of the option; None for a plan that is too large."""
        text = json.dumps({"end": self.end, "tasks": [base64.b64encode(task).decode() for task in self.tasks]})
        return text if len(text) <= _MOST_CHARACTERS else None

    @staticmethod
    def of_option(text: str) -> GivenPlan:
        """Invert :meth:`as_option`."""
        plan = json.loads(text)
        return GivenPlan(plan["end"], tuple(base64.b64decode(task) for task in plan["tasks"]))
