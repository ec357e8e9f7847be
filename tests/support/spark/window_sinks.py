"""Pipeline driver without Spark: its tasks run in this process, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa

from tests.support.spark.spark_pipelines import Kept
from tieredstore.backends.base import ObjectStore
from tieredstore.pipelines import Parts, Runner, load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.planner import Planner
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.spark.pipelines.window_jobs import WindowJobs
from tieredstore.spark.pipelines.window_sink import WindowSink
from tieredstore.spark.pipelines.window_source import TASK
from tieredstore.spark.source.workers import pack


class HereContext:
    """Minimal Spark context, which records job groups and whether one was cancelled."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled = threading.Event()

    def setJobGroup(self, group: str, description: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803  Spark's
        assert description
        assert interruptOnCancel
        self.groups.append(group)

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802  Spark's name
        if group in self.groups:  # Spark ignores a group that it does not know yet
            self.cancelled.set()


class HereSession:
    """Minimal Spark session for the sink, which runs jobs immediately in this process, and counts them."""

    def __init__(self) -> None:
        self.jobs = 0
        self.sparkContext = HereContext()

    def range(self, start: int, stop: int, step: int, parts: int) -> HereSession:
        assert (start, step, parts) == (0, 1, stop)
        self.jobs += 1
        self._numbers = range(stop)
        return self

    def mapInArrow(self, function: Callable[[Any], Iterator[Any]], schema: str) -> HereSession:  # noqa: N802  Spark's name
        assert schema == "report binary"
        untyped: Any = pa
        batches = [untyped.RecordBatch.from_pydict({"id": [number]}) for number in self._numbers]
        self._rows = [row for batch in function(iter(batches)) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


class Frame:
    """Substitute for the source's batch, which is a DataFrame of planned tasks."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed

    def collect(self) -> list[dict[str, Any]]:
        return [{TASK: packed} for packed in self._packed]


class Driven:
    """Sink, and the batches that its source plans."""

    def __init__(
        self,
        kept: Kept,
        store: ObjectStore | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        /,
        *,
        once: bool = False,
        tell: Callable[[str], None] | None = None,
        **changes: str,
    ) -> None:
        self._open = ExitStack()
        file = str(kept.file(**changes))
        self._pipeline, self._store = load_pipeline(file), kept.store
        self._source = self._open.enter_context(open_parts(self._pipeline)).source
        parts = Parts(store or kept.store, self._source)
        self.session = HereSession()
        session: Any = self.session
        self.jobs = WindowJobs(session, file, self._pipeline.own, parts.store)
        self.runner = self._open.enter_context(Runner(self._pipeline, parts, on_spark=self.jobs.write))
        self.sink = WindowSink(session, self.runner, self.jobs, Outage(60), once=once, tell=tell, monotonic=monotonic)
        self.sink.begin()

    def batch(self) -> Any:
        """Return a batch with all unwritten windows."""
        positions = commit_log_of(self._pipeline, self._store).read().positions
        with closing(Planner(self._pipeline, self._source)) as planner:
            snapshot = planner.snapshot()
            tasks = planner.tasks(snapshot, planner.find_due(snapshot, positions, is_last=True))
        return Frame([pack(task) for task in tasks])

    def close(self) -> None:
        self._open.close()
