"""Reads of whole topics, without a bucket of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.query.topic_scan import begin_read
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.values import Binary, ValueType

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from tieredstore.model import Isolation, Places, Uuid
    from tieredstore.records.settings import OnDataLoss
    from tieredstore.remote import RemoteStorageManager

_BINARY: Final = Binary()


def read_topic(
    source: RemoteStorageManager,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Places | None = None,
    stop: Places | None = None,
    columns: Sequence[str] = TOPIC_COLUMNS,
    filter: ds.Expression | None = None,
    key: ValueType = _BINARY,
    value: ValueType = _BINARY,
    isolation: Isolation = DEFAULT_ISOLATION,
    on_data_loss: OnDataLoss = "fail",
    parallelism: int | None = None,
    max_bytes: int = 64 << 20,
    client: Mapping[str, str] | None = None,
    topic_id: Uuid | None = None,
) -> TopicRead:
    """Read a topic as it is now, with the options of ``ReadPlan`` and ``LogQuery``."""
    plan = ReadPlan(start, stop, columns, filter, ColumnTypes(key, value), parallelism, max_bytes)
    query = LogQuery.of_topic(
        topic, partitions, isolation=isolation, on_data_loss=on_data_loss, client=client, topic_id=topic_id
    )
    reader, snapshot = TopicReader(lambda: source, query).begin()
    try:
        return begin_read(reader, snapshot, plan)
    except BaseException:
        reader.close()
        raise
