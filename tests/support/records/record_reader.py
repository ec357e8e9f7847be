"""Reads of one partition by topic name and a window of offsets or times, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.kafka.records import COLUMNS
from tieredstore.model import DEFAULT_ISOLATION, AtTime, Isolation, Uuid
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.remote.source import SegmentSource


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads the partitions of a catalog."""

    source: SegmentSource
    catalog: Catalog
    settings: ReadSettings

    def read(
        self,
        topic: str,
        partition: int,
        start: int | AtTime | None = None,
        stop: int | AtTime | None = None,
        *,
        topic_id: Uuid | None = None,
    ) -> PartitionRead:
        """Read the records from ``start`` (default: the first) up to ``stop`` (exclusive; default: the log's end)."""
        lineage = self.catalog.lineage(topic, partition, topic_id)
        first = lineage.earliest_offset if start is None else self._offset(lineage, start)
        last = lineage.end_offset if stop is None else self._offset(lineage, stop)
        last = max(first, last)
        # Drop unreadable segments next to offsets that the caller named, as ``PartitionRead`` requires.
        problems = lineage.unreadable_between(
            first, last, starts_there=isinstance(start, int), stops_there=isinstance(stop, int)
        )
        return PartitionRead(self.source, replace(lineage, problems=problems), first, last, self.settings)

    def _offset(self, lineage: Lineage, place: int | AtTime) -> int:
        if isinstance(place, int):
            return place
        record = offset_for_time(self.source, lineage, place.timestamp_ms)
        return lineage.end_offset if record is None else record.offset


def read_records(
    source: SegmentSource,
    topic: str,
    partition: int,
    start: int | AtTime | None = None,
    stop: int | AtTime | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    isolation: Isolation = DEFAULT_ISOLATION,
    on_data_loss: OnDataLoss = "fail",
    topic_id: Uuid | None = None,
) -> PartitionRead:
    """List the partition, then read its records as :meth:`RecordReader.read` does."""
    catalog = load_catalog(source, topic=topic, partition=partition)
    settings = ReadSettings(columns=columns, isolation=isolation, on_data_loss=on_data_loss)
    return RecordReader(source, catalog, settings).read(topic, partition, start, stop, topic_id=topic_id)
