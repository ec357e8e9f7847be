"""Finds a topic's records by its name and a window of offsets or times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.errors import ConfigError
from tieredstore.kafka.records import COLUMNS
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import DEFAULT_ISOLATION, AtTime, Isolation, Uuid
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import OnDataLoss, ReadSettings

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads topics of a catalog. Thread-safe. A reader keeps nothing open, so it need not be closed."""

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
        """Read the records of one partition from ``start`` up to ``stop`` (exclusive).

        ``start`` None means the first record, ``stop`` None the end of the log. Times are looked up before this method
        returns; everything else is requested while records are read. Offsets before the log's first offset are data
        loss. Offsets after the log's end do not exist yet, and are no loss.

        Raise ResourceNotFoundError for a topic or partition without segments. Raise ConfigError for an invalid window,
        and for a re-created topic unless ``topic_id`` is given. Raise DataLossError as the settings say. An unreadable
        segment in the window is a loss too. An unreadable segment next to the window's start or stop is also a loss,
        unless the caller gave that place as an offset.
        """
        lineage = self.catalog.lineage(topic, partition, topic_id)
        first, last = self.window(lineage, start, stop)
        # An unreadable segment next to an offset that the caller named is no problem, because the caller can see that
        # the records do not reach the offset. But times, beginning and end are looked up in readable segments only, so
        # an unreadable segment there would go unnoticed.
        problems = lineage.unreadable_between(
            first, last, starts_there=isinstance(start, int), stops_there=isinstance(stop, int)
        )
        return PartitionRead(self.source, replace(lineage, problems=problems), first, last, self.settings)

    def window(self, lineage: Lineage, start: int | AtTime | None, stop: int | AtTime | None) -> tuple[int, int]:
        """Return the offsets of start and stop (exclusive). The window is empty if ``stop`` comes before ``start``."""
        if isinstance(start, int) and isinstance(stop, int) and start > stop:
            raise ConfigError(f"there are no offsets from {start} up to {stop}: the window ends before it begins")
        first = lineage.earliest_offset if start is None else self._offset(lineage, start)
        last = lineage.end_offset if stop is None else self._offset(lineage, stop)
        # Timestamps need not ascend with offsets, so a later time may have a lower offset. Then the window is empty.
        return first, max(first, last)

    def _offset(self, lineage: Lineage, place: int | AtTime) -> int:
        if isinstance(place, AtTime):
            return offset_at(self.source, lineage, place.timestamp_ms, self.settings)
        if not 0 <= place <= MAX_OFFSET:
            raise ConfigError(f"{place} is not an offset: offsets are from 0 to {MAX_OFFSET}")
        return place


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
    catalog: Catalog | None = None,
    settings: ReadSettings | None = None,
) -> PartitionRead:
    """Read the records of one partition from ``start`` up to ``stop`` (exclusive): see :meth:`RecordReader.read`.

    Without a ``catalog``, list the partition. ``columns``, ``isolation`` and ``on_data_loss`` replace those of
    ``settings``.
    """
    known = load_catalog(source, topic=topic, partition=partition) if catalog is None else catalog
    chosen = replace(
        settings or ReadSettings(), columns=columns, isolation=isolation, on_data_loss=on_data_loss
    )  # fmt: skip
    return RecordReader(source, known, chosen).read(topic, partition, start, stop, topic_id=topic_id)


def offset_at(source: SegmentSource, lineage: Lineage, timestamp_ms: int, settings: ReadSettings) -> int:
    """Return the offset of the first record at or after ``timestamp_ms``, or the log's end if there is none.

    Transaction markers count as records. For the cost see :func:`offset_for_time`.
    """
    record = offset_for_time(source, lineage, timestamp_ms, settings.decoding)
    return lineage.end_offset if record is None else record.offset
