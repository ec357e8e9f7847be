"""The stream of a pipeline's windows: what is due, as rows of windows and of what they are read from.

One process beside the driver plans, or of a run that ends the driver itself: Spark takes a second or more to start that
process. Where a batch ends is told by its windows themselves, so that a batch that Spark repeats has the same cuts. How
far the pipeline is, is told by its commit log alone, whatever Spark's checkpoint says.

Spark imports this module in each of the processes that it starts for a stream; those that plan nothing, and of a run
that ends none does, need no more of pipelines than this.
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
"""The option with all windows of a run that ends, where the driver has planned them."""
TASK: Final = "task"
"""The column with a packed task."""


class WindowSource(DataSource):
    """Known to a session once a pipeline is started in it; of no use to anybody else."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """One column, that nobody needs to look into."""
        return f"{TASK} binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  Spark's name
        """Plans."""
        plan = self.options.get(PLAN)
        return WindowReader(self.options[FILE], None if plan is None else GivenPlan.of_option(plan))


class _Tasks(InputPartition):
    """All rows of a batch: they are few."""

    def __init__(self, tasks: Sequence[bytes]) -> None:
        self.tasks = tuple(tasks)


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans from trigger to trigger; ``clock`` gives seconds that only ever go up.

    The store or the broker away is no error of the query for as long as the settings allow: nothing is due then.
    ``plan`` is all that there is to be written, where that is known: nothing is looked up then.
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
        """Before any window; what is written is looked up when the first ones are planned."""
        return {"version": 1, "windows": []}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The settings have the limits."""
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """The windows that are due now; ``start`` itself if none is."""
        if self._given is not None:
            return self._given.end if self._given.tasks else start
        with one_sentence():
            return self._plan().next(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what there is: all of that is written, and nothing that comes later."""
        if self._given is None:
            with one_sentence():
                self._plan().fix()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """What the windows of a batch are read from: one that was just planned, or one to be repeated."""
        if self._given is not None and end == self._given.end:
            return [_Tasks(self._given.tasks)]
        with one_sentence():
            return [_Tasks(self._plan().pack_tasks(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a batch."""
        tasks = list(partition.tasks) if isinstance(partition, _Tasks) else []
        yield pa.RecordBatch.from_pydict({TASK: pa.array(tasks, pa.binary())})

    def commit(self, end: Json) -> None:
        """Nothing to do: truth is the commit log."""

    def stop(self) -> None:
        """Close what is open."""
        self._planning = None
        self._open.close()

    def _plan(self) -> Planning:
        if self._planning is None:
            # Some of the processes that import this module have no use for it, and it brings the stores, Arrow's
            # functions and the client of brokers.
            from tieredstore.spark.pipelines.window_planning import planning_of  # noqa: PLC0415

            self._planning = planning_of(self._file, self._open, self._clock)
        return self._planning


Json = dict[str, Any]

_MOST_CHARACTERS: Final = 340 << 10
"""Of a plan, which goes as an option through the JVM."""


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """Where the one batch ends, as an offset of the stream, and its packed tasks; no tasks where nothing is due."""

    end: Json
    tasks: tuple[bytes, ...]

    def as_option(self) -> str | None:
        """The value of the option; None for a plan that is too large to go that way."""
        text = json.dumps({"end": self.end, "tasks": [base64.b64encode(task).decode() for task in self.tasks]})
        return text if len(text) <= _MOST_CHARACTERS else None

    @staticmethod
    def of_option(text: str) -> GivenPlan:
        """What :meth:`as_option` wrote."""
        plan = json.loads(text)
        return GivenPlan(plan["end"], tuple(base64.b64decode(task) for task in plan["tasks"]))
