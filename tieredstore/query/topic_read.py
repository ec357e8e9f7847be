"""The records of a topic as one stream of Arrow's record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.process.fan_in import FanIn
from tieredstore.query.conditions import Condition
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, TopicColumns, topic_schema
from tieredstore.query.topic_log import TopicLog, default_parallelism
from tieredstore.query.topic_scan import TopicScan
from tieredstore.records.arrow_stream import stream_reader
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.values import Binary, ValueType

if TYPE_CHECKING:
    from tieredstore.model import Isolation, Uuid
    from tieredstore.query.topic_log import Places
    from tieredstore.remote.source import SegmentSource

_MIB: Final = 1024 * 1024
_BINARY: Final = Binary()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read of a topic, and how: :func:`read_topic` has the words for each."""

    partitions: Sequence[int] | None = None
    start: Places = None
    stop: Places = None
    columns: Sequence[str] = TOPIC_COLUMNS
    filter: Any = None
    types: ColumnTypes = field(default_factory=ColumnTypes)
    ordered: bool = True
    parallelism: int | None = None
    max_bytes: int = 64 * _MIB
    settings: ReadSettings | None = None

    def __post_init__(self) -> None:
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigError(f"parallelism is {self.parallelism}; it must be at least 1")
        if self.max_bytes < 1:
            raise ConfigError(f"max_bytes is {self.max_bytes}; it must be at least 1")


class TopicRead(Iterator[pa.RecordBatch]):
    """The records of a topic, in record batches without empty ones; for one reader. Exhaust it, or close it.

    It is an Arrow stream as well (``__arrow_c_stream__``): pyarrow, Polars, DuckDB and pandas take it as it is, once.
    Their errors have the class and the sentence of ours in their text. Used as a context manager it raises ours in
    their place, and ``error`` has it.
    """

    def __init__(self, log: TopicLog, plan: ReadPlan) -> None:
        scan = _scan(log, plan)
        windows = scan.windows(log.windows(plan.start, plan.stop))
        log.judge(windows, plan.start, plan.stop)
        self.topic = log.topic
        self.schema = scan.schema
        self.error: TieredStoreError | None = None
        self._log = log
        self._batches = FanIn(
            scan.streams(windows),
            at_once=scan.readers, ordered=plan.ordered, weigh=_weight, max_weight=plan.max_bytes,
        )  # fmt: skip

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            self.close()
            raise
        except TieredStoreError as error:
            self.error = error
            self.close()
            raise

    def reader(self) -> pa.RecordBatchReader:
        """The same records as a stream of pyarrow's, which is this read: what one of them gives, the other does not."""
        return stream_reader(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """For whoever takes Arrow streams."""
        reader: Any = self.reader()
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End the read; what is under way ends by itself."""
        self._batches.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self.error is not None and isinstance(error, Exception) and not isinstance(error, TieredStoreError):
            raise self.error from None


def read_topic(
    source: SegmentSource,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Places = None,
    stop: Places = None,
    columns: Sequence[str] = TOPIC_COLUMNS,
    filter: Any = None,
    key: ValueType = _BINARY,
    value: ValueType = _BINARY,
    isolation: Isolation = "read_committed",
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
    ``on_data_loss="report"`` a warning is logged for each extent. ResourceNotFound for a topic or partition that is not
    there; ConfigError for what cannot be. Errors of reading are raised where the records would come.
    """
    plan = ReadPlan(
        partitions, start, stop, columns, filter, ColumnTypes(key, value), ordered,
        parallelism or default_parallelism(), max_bytes, settings,
    )  # fmt: skip
    log = TopicLog.take(
        source, topic, partitions=partitions, isolation=isolation, on_data_loss=on_data_loss, client=client,
        topic_id=topic_id,
    )  # fmt: skip
    try:
        return TopicRead(log, plan)
    except BaseException:
        log.close()
        raise


def _scan(log: TopicLog, plan: ReadPlan) -> TopicScan:
    schema = topic_schema(plan.columns, plan.types)
    condition = None if plan.filter is None else Condition(plan.filter, topic_schema(types=plan.types))
    # What a filter looks at is decoded for it too, and not given.
    columns = tuple(dict.fromkeys((*plan.columns, *(() if condition is None else condition.columns))))
    numbers = sorted(number for _, number in log.snapshot.logs)
    return TopicScan(
        log.source, log.snapshot, log.query, TopicColumns(columns, plan.types, log.topic, numbers), schema,
        condition, plan.settings or ReadSettings(), plan.parallelism or default_parallelism(), log.live,
    )  # fmt: skip


def _weight(batch: pa.RecordBatch) -> int:
    return batch.nbytes
