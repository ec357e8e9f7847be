"""One partition's records between two offsets, across the seam between bucket and broker."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.partitions.live_window import LiveSplit, read_live_split
from tieredstore.partitions.losses import losses_between, report_losses
from tieredstore.partitions.stored_window import StoredWindow
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.live import LiveReader
    from tieredstore.partitions.log_query import LogQuery
    from tieredstore.partitions.partition_log import PartitionLog
    from tieredstore.remote.source import SegmentSource


def read_window(
    log: PartitionLog,
    start: int,
    stop: int,
    *,
    source: SegmentSource,
    query: LogQuery,
    settings: ReadSettings | None = None,
    reader: LiveReader | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The records with offsets in ``[start, stop)``, each once, ascending, in record batches without empty ones.

    The bucket's come first, then the broker's; they have the same columns, those of ``settings``, of which isolation
    and loss policy are the query's instead. What neither has is DataLoss at once, or by the query's policy a warning
    for each extent; so is what retention takes during the read. Memory is bounded whatever the window. Reads of one
    query share their connections by ``reader``. To be exhausted or closed.
    """
    if not 0 <= start <= stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop} of {log.topic_id_partition}")
    # Below, losses are only told of: they are judged here, once for the whole window and before any record is given.
    chosen = replace(settings or ReadSettings(), isolation=query.isolation, on_data_loss="report")
    report_losses(losses_between(log, start, stop), query)
    return _read(log, start, stop, source, query, chosen, reader)


def _read(
    log: PartitionLog,
    start: int,
    stop: int,
    source: SegmentSource,
    query: LogQuery,
    settings: ReadSettings,
    reader: LiveReader | None,
) -> Generator[pa.RecordBatch, None, None]:
    if log.lineage is not None and start < min(stop, log.seam):
        yield from StoredWindow(source, log.lineage, (start, min(stop, log.seam)), query, settings).batches()
    if log.live_start is None:
        return
    # What lies between the seam and the broker's first offset was judged above.
    live = LiveSplit(log.topic_id_partition, max(start, log.seam, log.live_start), min(stop, log.end))
    if live.start < live.stop:
        columns = tuple(settings.columns)
        yield from read_live_split(live, lambda: source, query, columns=columns, settings=settings, reader=reader)
