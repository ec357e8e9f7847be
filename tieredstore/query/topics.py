"""The records of a topic, from its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.query.arguments import check_client, check_source, check_topic, several_of
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.query.topic_scan import begin_read
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.values import Binary, ValueType

if TYPE_CHECKING:
    from tieredstore.model import Isolation, Uuid
    from tieredstore.query.topic_read import GivenPlaces
    from tieredstore.records.settings import OnDataLoss, ReadSettings
    from tieredstore.remote.source import SegmentSource

_MIB: Final = 1024 * 1024
_BINARY: Final = Binary()


def read_topic(
    source: SegmentSource,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: GivenPlaces = None,
    stop: GivenPlaces = None,
    columns: Sequence[str] = TOPIC_COLUMNS,
    filter: Any = None,
    key: ValueType = _BINARY,
    value: ValueType = _BINARY,
    isolation: Isolation = DEFAULT_ISOLATION,
    on_data_loss: OnDataLoss = "fail",
    ordered: bool = True,
    parallelism: int | None = None,
    max_bytes: int = 64 * _MIB,
    client: Mapping[str, str] | None = None,
    topic_id: Uuid | None = None,
    settings: ReadSettings | None = None,
) -> TopicRead:
    """The records of a topic, of bucket and broker as one log, as they are now.

    ``partitions`` are some of them, or all. ``start`` and ``stop``, which is out, are an offset, an ``AtTime``, or None
    for the first record there is and for the end: for each partition, or by its number. ``filter`` is an expression of
    pyarrow over any columns; what it says of ``partition``, ``offset`` and ``timestamp`` keeps what it excludes from
    being fetched. ``key`` and ``value`` say what they are read as.

    Splits are read ``parallelism`` at a time (as many as there are cores): by partition and offset, or with
    ``ordered=False`` as they come, and then there is no order between batches. What is decoded and not yet taken has
    ``max_bytes`` at most, and one record batch more.

    ``client`` are the properties of the Kafka client that reads on where the bucket ends. Offsets that were asked for,
    that the filter does not exclude and that nobody holds are DataLoss, before the first record; with
    ``on_data_loss="report"`` a warning is logged for each gap. ResourceNotFound for a topic or partition that is not
    there; ConfigError for what cannot be. Errors of reading are raised where the records would come. Options are
    keywords: a caller names the few that it sets.
    """
    check_source(source)
    check_topic(topic)
    check_client(client)
    partitions = None if partitions is None else several_of("partitions", partitions, SupportsIndex, "numbers")
    columns = several_of("columns", columns, str, "names")
    plan = ReadPlan(start, stop, columns, filter, ColumnTypes(key, value), ordered, parallelism, max_bytes, settings)
    query = LogQuery.of_topic(
        topic, partitions, isolation=isolation, on_data_loss=on_data_loss, client=client, topic_id=topic_id
    )
    reader, snapshot = TopicReader(lambda: source, query).begin()
    try:
        return begin_read(reader, snapshot, plan)
    except BaseException:
        reader.close()
        raise
