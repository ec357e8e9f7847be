"""The Spark stream of a pipeline. It has no rows: each of its batches only makes the driver write what is due.

The driver plans, and the pipeline's progress comes only from the commit log, not from Spark's checkpoint. So a batch
that Spark repeats after a restart needs no special care.

Spark imports this module in each process that it starts for a stream. These processes need no other module of
pipelines.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.spark.source.workers import one_sentence
from tieredstore.versions import PIPELINE_OFFSETS, refuse_newer_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Json = dict[str, Any]

FORMAT: Final = "tieredstore_windows"
EVERY_S: Final = "every_s"
"""Option with the least number of seconds between two batches; ``inf`` for a single batch."""


class WindowSource(DataSource):
    """The data source of a pipeline's stream. PipelineRun registers it in the session. It is not for direct use."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema: one column, because Spark needs one."""
        return "nothing binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  Spark's name
        """Return the stream's reader."""
        return WindowReader(float(self.options[EVERY_S]))


class WindowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Begins a batch every ``every_s`` seconds. ``clock`` returns monotonic seconds."""

    def __init__(self, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._begun_s = -math.inf

    def __reduce__(self) -> tuple[type[WindowReader], tuple[float]]:
        return WindowReader, (self._every_s,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Return the first Spark offset. ``windows`` stays empty; earlier versions listed a batch's windows in it."""
        return {"version": PIPELINE_OFFSETS.version, "windows": []}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        """Return a new Spark offset if it is time for a batch, else ``start``."""
        if self._clock() - self._begun_s < self._every_s:
            return start
        self._begun_s = self._clock()
        return {**self.initialOffset(), "plan": uuid.uuid4().hex}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the driver knows which records are present now."""

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return a partition without rows. Raise NewerVersionError for a checkpoint of a later release."""
        with one_sentence():
            refuse_newer_offsets(PIPELINE_OFFSETS, end)
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield no rows."""
        return iter(())
