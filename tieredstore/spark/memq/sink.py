"""Writers of topics of batches. Tasks store batches as objects, and the driver appends the batches of each epoch
(micro-batch) to the queue once.

``data_source`` imports this module only for writing queries. The two modules are separate, because Spark imports
``data_source`` whenever it searches for data sources.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from tieredstore.errors import ConfigError
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.pubsub.produce.sink import BATCH_QUERY, SinkBatches, SinkCommits, StoredBatch
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.spark.memq.plan import topics_of
from tieredstore.spark.source.rows import MEMQ_ROWS
from tieredstore.spark.source.workers import one_sentence, spare_modules

if TYPE_CHECKING:
    from tieredstore.spark.source.store_source import StoreSource


COLUMNS: Final = ("key", "value", "headers", "timestamp", "messageId")
"""The columns that a row may have. Only ``value`` is required."""

# Properties that Spark sets for tasks of a stream's micro-batch. The query id stays the same after a restart.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class EpochMessage(WriterCommitMessage):
    """The batches that a task has stored, as it reports them to the driver."""

    query: str
    epoch: int
    task: int
    batches: tuple[StoredBatch, ...]


class _TopicWriter:
    """Base of both writers: writes rows to a topic. Spark pickles it for the tasks. A batch query is the epoch 0."""

    def __init__(self, topic: str, store: StoreSource, schema: StructType) -> None:
        _check_schema(schema)
        self._topic = topic
        self._store = store

    def _write(self, rows: Iterator[pa.RecordBatch], query: str, epoch: int) -> EpochMessage:
        spare_modules()
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        with SinkBatches(self._open(), f"spark-{query}-{epoch}-{task}") as batches:
            try:
                for batch in rows:
                    _add(batches, batch)
                return EpochMessage(query, epoch, task, batches.finish())
            except BaseException:
                # Delete the batches of this failed attempt. A retry of the task stores new batches, so no queue entry
                # will ever name these.
                batches.discard()
                raise

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803  Spark's
        """Append to the queue the batches that the tasks have stored, unless an earlier attempt has already appended
        those of this epoch."""
        with one_sentence():
            for commits, batches in self._by_query(messages):
                commits.commit(batchId, batches)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803  Spark's
        """Delete the batches that the tasks have stored, except batches that may already be in the queue."""
        with one_sentence():
            for commits, batches in self._by_query(messages):
                commits.abort(batchId, batches)

    def _by_query(
        self, messages: Sequence[WriterCommitMessage | None]
    ) -> Iterator[tuple[SinkCommits, list[StoredBatch]]]:
        of_tasks = [message for message in messages if isinstance(message, EpochMessage)]
        if not of_tasks:
            return
        ordered = sorted(of_tasks, key=lambda message: message.task)
        with self._open() as log:
            for query in sorted({message.query for message in of_tasks}):
                batches = [batch for message in ordered if message.query == query for batch in message.batches]
                yield SinkCommits(log, query), batches

    def _open(self) -> BatchLog:
        topics = topics_of(self._store)
        return BatchLog(topics, topics.get(self._topic))


class MemqWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes the rows of a batch query. When all tasks are done, the driver appends all their batches to the queue."""

    def __init__(self, topic: str, store: StoreSource, schema: StructType) -> None:
        super().__init__(topic, store, schema)
        self._query = f"{BATCH_QUERY}{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> EpochMessage:
        """Write the rows of one task."""
        with one_sentence():
            return self._write(iterator, self._query, 0)


class MemqStreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes the rows of a stream. Each epoch (micro-batch) enters the queue once, however often Spark repeats it."""

    def write(self, iterator: Iterator[Any]) -> EpochMessage:
        """Write the rows of one task of an epoch (a micro-batch)."""
        with one_sentence():
            query, epoch = _property(_QUERY_ID), _property(_BATCH_ID)
            return self._write(iterator, query, int(epoch))


def _property(name: str) -> str:
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(name)
    if not text:
        raise ConfigError(
            f"Spark did not give its tasks the property {name}: write to memq by a separate streaming query"
        )
    return text


def _check_schema(schema: StructType) -> None:
    wanted = f"a row may have {', '.join(COLUMNS)}; select these, and cast other types"
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"the format memq cannot write the column {field.name}: {wanted}")
        is_text = field.name in ("key", "value", "messageId") and isinstance(field.dataType, StringType)
        given, expected = field.dataType, MEMQ_ROWS.types[field.name]
        if not is_text and given.simpleString() != expected.simpleString():
            raise ConfigError(
                f"the column {field.name} is {given.simpleString()}, but must be {expected.simpleString()}: {wanted}"
            )
    if "value" not in schema.names:
        raise ConfigError(f"there is no column value: {wanted}")


def _add(batches: SinkBatches, rows: pa.RecordBatch) -> None:
    columns: dict[str, list[Any]] = {
        name: rows.column(name).to_pylist() for name in rows.schema.names if name != "timestamp"
    }
    count: int = rows.num_rows
    now_ms = time.time_ns() // 1_000_000
    times: list[int | None] = [None] * count
    if "timestamp" in rows.schema.names:
        times = rows.column("timestamp").cast(pa.timestamp("us", "UTC")).view(pa.int64()).to_pylist()
    nothing: list[Any] = [None] * count
    for value, key, headers, message_id, time_us in zip(
        columns["value"], columns.get("key", nothing), columns.get("headers", nothing),
        columns.get("messageId", nothing), times, strict=True,
    ):  # fmt: skip
        if value is None:
            raise InvalidRecordError("a row has a null value, but each MemQ record needs a value")
        pairs = None if headers is None else [(pair["key"], pair["value"] or b"") for pair in headers]
        stamp = now_ms if time_us is None else time_us // 1000
        batches.add(_bytes(value), _bytes(key), pairs, _bytes(message_id), stamp)


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
