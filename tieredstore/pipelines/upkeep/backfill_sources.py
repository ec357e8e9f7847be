"""Where the records of a backfill come from: bucket and broker, or files that hold them as they came."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.errors import DataLoss
from tieredstore.model import AtTime, check_offset
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.planner import Planner, log_of
from tieredstore.pipelines.run.stores import COLUMNS
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.remote.source import SegmentSource


@dataclass(frozen=True, slots=True)
class Selected:
    """Which offsets of a topic are meant: from ``start`` up to ``stop``, of these partitions (None: all)."""

    topic: str
    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    partitions: tuple[int, ...] | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Whether it is one of these."""
        return topic == self.topic and (self.partitions is None or partition in self.partitions)

    def check_reached(self, ends: Mapping[int, int]) -> None:
        """Refuse an offset beyond the ends of all selected partitions, by their numbers: it was perhaps for a time."""
        named = {f"{self.topic}-{number}": end for number, end in ends.items() if self.has(self.topic, number)}
        for place in (self.start, self.stop):
            if isinstance(place, int):
                check_offset(place, named)


class RecordSource(ABC):
    """Records by their offsets. Several threads may read at once; to be closed."""

    @abstractmethod
    def extents(self, selected: Selected) -> list[Window]:
        """Of each partition the offsets that are meant and that it has; DataLoss for what it has no more."""

    @abstractmethod
    def due(self, rest: Sequence[Window]) -> list[Window]:
        """The next of these, cut into windows that many may write at once; empty if there is nothing to read."""

    @abstractmethod
    def records(self, window: Window) -> Generator[pa.RecordBatch]:
        """The records of a window, ascending, each once."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


class LogSource(RecordSource):
    """Bucket and broker of a pipeline, across the seam, as they are at the start."""

    def __init__(self, pipeline: Pipeline, source: SegmentSource, topic: str) -> None:
        own = pipeline.own.model_copy(update={"topic_list": topic, "topic_blacklist": ""})
        self._planner = Planner(replace(pipeline, own=own), source)
        self._reader = TopicReader(lambda: source, self._planner.query, ReadSettings(columns=COLUMNS))
        self._snapshot = self._planner.snapshot()
        self._snapshot.check_selected(self._planner.query, source)

    def extents(self, selected: Selected) -> list[Window]:
        """As of the start."""
        selected.check_reached({log.partition: log.end for _, log in sorted(self._snapshot.logs.items())})
        return [
            Window(log.topic, str(log.topic_id), log.partition, *self._extent(log, selected))
            for where, log in sorted(self._snapshot.logs.items())
            if selected.has(*where)
        ]

    def _extent(self, log: PartitionLog, selected: Selected) -> tuple[int, int]:
        start = max(self._offset(log, selected.start, log.earliest), log.earliest)
        if isinstance(selected.start, int) and 0 < selected.start < log.earliest:
            raise gone(
                Window(log.topic, "", log.partition, selected.start, log.earliest),
                "in neither bucket nor broker any more",
            )
        return start, max(start, min(self._offset(log, selected.stop, log.end), log.end))

    def _offset(self, log: PartitionLog, place: int | AtTime | None, default: int) -> int:
        if not isinstance(place, AtTime):
            return default if place is None else place
        offset = self._reader.offset_at(log, place.timestamp_ms)
        return log.end if offset is None else offset

    def due(self, rest: Sequence[Window]) -> list[Window]:
        """A batch, by the pipeline's sizes."""
        ends = {(window.topic, window.partition): window for window in rest}
        logs = {where: replace(log_of(self._snapshot, one), end=one.stop) for where, one in ends.items()}
        positions = {where: Progress(one.topic_id, one.start, -1, 0, 0) for where, one in ends.items()}
        windows = self._planner.due(replace(self._snapshot, logs=logs), positions, is_last=True)
        capped = (replace(one, stop=min(one.stop, ends[one.topic, one.partition].stop)) for one in windows)
        return [window for window in capped if window.start < window.stop]

    def records(self, window: Window) -> Generator[pa.RecordBatch]:
        """Out of the bucket, then from the broker."""
        return self._reader.read(log_of(self._snapshot, window), window.start, window.stop)

    def close(self) -> None:
        """Close the connections to the broker; the bucket is its owner's."""
        self._planner.close()
        self._reader.close()


def gone(window: Window, where: str) -> DataLoss:
    """The error of offsets that nothing has: ``where`` says what was looked at."""
    return DataLoss(f"offsets {window.start} to {window.stop - 1} of {window.topic}-{window.partition} are {where}")
