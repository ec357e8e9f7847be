"""Pipeline driver without Spark: its tasks run in this process, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from tests.support.spark.spark_pipelines import Kept
from tests.support.spark.spark_stream_topics import Clock
from tieredstore.backends.base import ObjectStore
from tieredstore.pipelines import Parts, Runner, load_pipeline
from tieredstore.pipelines.run.progress import Outage
from tieredstore.pipelines.run.source import open_parts
from tieredstore.spark.pipelines.window_jobs import WindowJobs
from tieredstore.spark.pipelines.window_sink import WindowSink


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


class Driven:
    """Sink of a pipeline that writes records of any age, and lists the bucket at each look."""

    def __init__(
        self,
        kept: Kept,
        store: ObjectStore | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        /,
        *,
        once: bool = False,
        outage_s: float = 60,
        tell: Callable[[str], None] | None = None,
        **changes: str,
    ) -> None:
        self._open = ExitStack()
        file = str(kept.file(**{"secor__max__file__age__seconds": "0", **changes}))
        pipeline = load_pipeline(file)
        source = self._open.enter_context(open_parts(pipeline)).source
        parts = Parts(store or kept.store, source)
        self.session = HereSession()
        session: Any = self.session
        jobs = WindowJobs(session, file, pipeline.own, parts.store)
        self.runner = self._open.enter_context(Runner(pipeline, parts, on_spark=jobs.write, clock=Clock()))
        self.is_wanted: Callable[[], bool] = lambda: True
        self.sink = WindowSink(
            session, self.runner, Outage(outage_s), once=once, tell=tell, is_wanted=lambda: self.is_wanted(),  # noqa: PLW0108  a test sets it later
            monotonic=monotonic,
        )  # fmt: skip
        self.sink.begin()

    def write(self) -> None:
        """Let the sink handle a batch of the stream."""
        stream: Any = None
        self.sink(stream, 0)

    def close(self) -> None:
        self._open.close()
