"""The stream of a pipeline's windows: what is due, as rows of windows and of what they are read from.

One process beside the driver plans. Where a batch ends is told by its windows themselves, so that a batch that Spark
repeats has the same cuts. How far the pipeline is, is told by its commit log alone, whatever Spark's checkpoint says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.commit_log import CommitLog, Progress
from tieredstore.pipelines.opened import open_parts
from tieredstore.pipelines.outage import Outage
from tieredstore.pipelines.parts import Parts
from tieredstore.pipelines.planner import Planner
from tieredstore.pipelines.settings import load_pipeline
from tieredstore.pipelines.setup import naming_of
from tieredstore.pipelines.window_writing import Window
from tieredstore.pipelines.windows import unwritten
from tieredstore.spark.pipelines.window_tasks import TASK, WindowTask, located, packed
from tieredstore.spark.source.sentences import one_sentence

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log_snapshot import LogSnapshot

_arrow: Final[Any] = pa

FORMAT: Final = "tieredstore_windows"
FILE: Final = "pipeline"
"""The option that names the file of settings."""

Json = dict[str, Any]


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
        return WindowReader(self.options[FILE])


class _Tasks(InputPartition):
    """All rows of a batch: they are few."""

    def __init__(self, tasks: Sequence[bytes]) -> None:
        self.tasks = tuple(tasks)


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans from trigger to trigger; ``clock`` gives seconds that only ever go up.

    The store or the broker away is no error of the query for as long as the settings allow: nothing is due then.
    """

    def __init__(self, file: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._open = ExitStack()
        self._planning: _Planning | None = None

    def __reduce__(self) -> tuple[type[WindowReader], tuple[str]]:
        return WindowReader, (self._file,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Before any window; what is written is looked up when the first ones are planned."""
        return _offset(())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The settings have the limits."""
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """The windows that are due now; ``start`` itself if none is."""
        with one_sentence():
            return self._plan().next(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what there is: all of that is written, and nothing that comes later."""
        with one_sentence():
            self._plan().fix()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """What the windows of a batch are read from: one that was just planned, or one to be repeated."""
        with one_sentence():
            return [_Tasks([packed(task) for task in self._plan().tasks(end)])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a batch."""
        tasks = list(partition.tasks) if isinstance(partition, _Tasks) else []
        yield _arrow.RecordBatch.from_pydict({TASK: _arrow.array(tasks, _arrow.binary())})

    def commit(self, end: Json) -> None:
        """Nothing to do: truth is the commit log."""

    def stop(self) -> None:
        """Close what is open."""
        self._planning = None
        self._open.close()

    def _plan(self) -> _Planning:
        if self._planning is None:
            pipeline = load_pipeline(located(self._file))
            parts = self._open.enter_context(open_parts(pipeline))
            planner = Planner(pipeline, parts.source, clock=self._clock)
            self._open.callback(planner.close)
            naming = naming_of(pipeline)
            outage = Outage(pipeline.own.outage_s, clock=self._clock)

            def read_log() -> Mapping[TopicPartition, Progress]:
                return CommitLog(parts.store, naming.root, naming.pipeline, naming.generation).read().positions

            self._planning = _Planning(planner, parts, outage, read_log)
        return self._planning


class _Planning:
    """How far the pipeline is, and the windows that come next."""

    def __init__(
        self, planner: Planner, parts: Parts, outage: Outage, read_log: Callable[[], Mapping[TopicPartition, Progress]]
    ) -> None:
        self._planner, self._parts, self._outage, self._read_log = planner, parts, outage, read_log
        self._positions: dict[TopicPartition, Progress] | None = None
        self._fixed: LogSnapshot | None = None
        self._last: tuple[Json, list[WindowTask]] | None = None
        """Where the last planned batch ends, and its windows."""

    def fix(self) -> None:
        """Plan all that there is now, and nothing else."""
        self._fixed = self._planner.snapshot()

    def next(self, start: Json) -> Json:
        """The offset behind the windows that are due; ``start`` if there are none, or if nothing can be looked up."""
        try:
            windows = self._due(start)
        except TieredStoreError as error:
            if self._fixed is not None:
                raise
            self._outage.failed(error)
            return start
        self._outage.over()
        return _offset(windows) if windows else start

    def tasks(self, end: Json) -> list[WindowTask]:
        """What the windows of a batch are read from."""
        if self._last is not None and self._last[0] == end:
            return self._last[1]
        # A batch that is repeated after a start: what of it is committed is perhaps not even there any more.
        windows = unwritten([Window(*one) for one in end["windows"]], self._read_log())
        return self._tasks_of(self._planner.snapshot(), windows)

    def _due(self, start: Json) -> list[Window]:
        positions = self._positions_at(start)
        snapshot = self._fixed or self._planner.snapshot()
        windows = self._planner.due(snapshot, positions, is_last=self._fixed is not None)
        self._last = _offset(windows), self._tasks_of(snapshot, windows)
        return windows

    def _positions_at(self, start: Json) -> dict[TopicPartition, Progress]:
        """Spark asks for what comes next once a batch is done, so that its windows are written."""
        if self._positions is None:
            self._positions = dict(self._read_log())
        elif self._last is not None and self._last[0] == start:
            for task in self._last[1]:
                window = task.window
                done = Progress(window.topic_id, window.stop, -1, 0, 0)
                self._positions[window.topic, window.partition] = done
            self._last = None
        return self._positions

    def _tasks_of(self, snapshot: LogSnapshot, windows: Sequence[Window]) -> list[WindowTask]:
        source = self._parts.source
        return [WindowTask(window, self._planner.splits(source, snapshot, window)) for window in windows]


def _offset(windows: Sequence[Window]) -> Json:
    return {"version": 1, "windows": [list(astuple(window)) for window in windows]}
