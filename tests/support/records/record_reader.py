"""Reads of one partition by topic name and a window of offsets or times, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.kafka.records import COLUMNS
from tieredstore.model import DEFAULT_ISOLATION, AtTime, Isolation, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.query import LogQuery
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads the partitions of a catalog."""

    source: RemoteStorageManager
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
        check_losses(
            lineage, first, last, self.settings, starts_there=isinstance(start, int), stops_there=isinstance(stop, int)
        )
        return PartitionRead(self.source, lineage, first, last, self.settings)

    def _offset(self, lineage: Lineage, place: int | AtTime) -> int:
        if isinstance(place, int):
            return place
        record = offset_for_time(self.source, lineage, place.timestamp_ms)
        return lineage.end_offset if record is None else record.offset


def check_losses(
    lineage: Lineage, start: int, stop: int, settings: ReadSettings, *, starts_there: bool, stops_there: bool
) -> None:
    """Apply the loss policy to a window, as the front ends do before they read."""
    topic, end = lineage.partition.topic, lineage.end_offset
    log = PartitionLog(
        topic, lineage.partition.partition, lineage.partition.topic_id, lineage, end, lineage.earliest_offset, end
    )
    losses = Losses(LogQuery.of_topic(topic, on_data_loss=settings.on_data_loss))
    losses.check_readable(
        LogSnapshot({log.where: log}, unreadable=lineage.problems), {log.where: (start, stop)},
        starts_there=[log.where] * starts_there, stops_there=[log.where] * stops_there,
    )  # fmt: skip
    losses.accept_missing(losses_between(log, start, min(stop, max(start, end))))


def read_records(
    source: RemoteStorageManager,
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
