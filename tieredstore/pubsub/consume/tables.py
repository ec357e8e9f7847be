"""Topics of batches as tables; repeated scans of a table see the same snapshot.

Columns: ``topic partition offset message record timestamp key value headers messageId``. A scan does not fetch batches
that its filter excludes by partition, offset or the time range in a notification.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import ClassVar, Final, Self

import pyarrow as pa
import pyarrow.dataset as ds

from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import AlreadyClosedError, TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.pubsub.consume.partition_state import FetchedObject, fetch_in_order
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.queue.memq_topics import topics_in_store
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch, Topics
from tieredstore.query.conditions import Condition, PartitionSpan
from tieredstore.records.arrow_stream import stream_reader
from tieredstore.values import Text, ValueType

_TIME: Final = pa.timestamp("ms", "UTC")
_TEXT: Final = Text()
_DECODED: Final = {"messageId": "message_id"}  # columns that the decoder names differently
_OF_THE_BATCH: Final = ("topic", "partition", "offset")


class BatchTable:
    """A topic of batches as a table. With ``keeps_snapshot``, every scan ends where the queue ended at the first
    scan.
    """

    def __init__(
        self, log: BatchLog, key: ValueType = _TEXT, value: ValueType = _TEXT, *, keeps_snapshot: bool = True
    ) -> None:
        self.topic: str = log.topic.name
        self._log = log
        self._types = {"key": key, "value": value}
        self._keeps_snapshot = keeps_snapshot
        self._batches: list[QueuedBatch] | None = None
        self.errors: list[BaseException] = []  # the errors that ended scans
        self.is_closed: bool = False
        self.schema: pa.Schema = BatchTables.schema(key, value)

    @property
    def error(self) -> TieredStoreError | None:
        """The first error of a scan."""
        return next((error for error in self.errors if isinstance(error, TieredStoreError)), None)

    def check_interruption(self) -> None:
        """If an interrupt ended a scan, raise the interrupt again, because the query engine has replaced it by its own
        error."""
        for error in self.errors:
            if not isinstance(error, Exception):
                raise error

    def scan(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> BatchScan:
        """Return a scan of these columns and of rows that match ``filter``. Raise AlreadyClosedError after close."""
        if self.is_closed:
            raise AlreadyClosedError(f"the table of {self.topic} is closed; attach the topic again")
        names = self.schema.names if columns is None else list(columns)
        return BatchScan(self, names, filter)

    def close(self) -> None:
        """End all scans, refuse new ones, and close the topic."""
        self.is_closed = True
        self._log.close()

    def batches(self, condition: Condition | None) -> list[QueuedBatch]:
        """Return the batches that may have matching records."""
        batches = self._batches
        if batches is None:
            batches = [batch for partition in range(self._log.queue.partitions) for batch in self._log.walk(partition)]
        if self._keeps_snapshot:
            self._batches = batches
        if condition is None:
            return batches
        spans = {_span(batch, self.topic): batch for batch in batches}
        return [spans[span] for span in condition.possible(spans)]

    def fetch(self, batches: Sequence[QueuedBatch]) -> Generator[tuple[QueuedBatch, FetchedObject]]:
        """Yield these batches with their objects."""
        return fetch_in_order(self._log, batches, self._log.settings.fetches)

    def decoder(self, columns: Sequence[str]) -> BatchDecoder:
        """Return a decoder of these columns."""
        names = [_DECODED.get(name, name) for name in columns if name not in _OF_THE_BATCH]
        return BatchDecoder(names or ["record"], max_expanded_bytes=self._log.settings.max_expanded_bytes)

    def convert(self, records: pa.RecordBatch, batch: QueuedBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return decoded records with these columns and the table's types."""
        schema = self.schema
        arrays = [self._array(name, records, batch, schema.field(name).type) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in columns]))

    def _array(self, name: str, records: pa.RecordBatch, batch: QueuedBatch, kind: pa.DataType) -> pa.Array:
        if name in _OF_THE_BATCH:
            of_all = {"topic": self.topic, "partition": batch.partition, "offset": batch.offset}[name]
            return pa.repeat(pa.scalar(of_all, kind), records.num_rows)
        column = records.column(_DECODED.get(name, name))
        if name == "timestamp":
            return column.view(_TIME)
        if name not in self._types:
            return column

        def place(row: int) -> str:
            return f"the {name} of record {row} of the batch at offset {batch.offset} of {self.topic}-{batch.partition}"

        converted: pa.Array = self._types[name].convert(column, place)
        return converted


class BatchScan(Closing):
    """One scan, iterated once."""

    def __init__(self, table: BatchTable, columns: Sequence[str], filter: ds.Expression | None) -> None:
        self.is_closed = False
        self._table = table
        self._columns = list(columns)
        self._filter = filter

    def close(self) -> None:
        """Stop fetching."""
        self.is_closed = True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._note_errors()

    def reader(self) -> pa.RecordBatchReader:
        """Return the records as a stream."""
        schema = self._table.schema
        given = pa.schema([schema.field(name) for name in self._columns])
        return stream_reader(given, self._note_errors())

    def _note_errors(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows()
        except GeneratorExit:
            raise
        except BaseException as error:
            self._table.errors.append(error)
            raise

    def _rows(self) -> Iterator[pa.RecordBatch]:
        table = self._table
        wanted = list(self._columns)
        condition = None if self._filter is None else Condition(self._filter, table.schema)
        if condition is not None:
            wanted += [name for name in condition.columns if name not in wanted]
        self._check_open()
        decoder = table.decoder(wanted)
        with closing(table.fetch(table.batches(condition))) as fetched:
            for batch, (body, crc32, checksums) in fetched:
                batch.check(crc32)
                for records in decoder.decode(body, batch.key, checksums):
                    rows = table.convert(records, batch, wanted)
                    if condition is not None:
                        rows = condition.filter(rows)
                    if rows.num_rows:
                        yield rows.select(self._columns)
                self._check_open()

    def _check_open(self) -> None:
        if self.is_closed or self._table.is_closed:
            raise AlreadyClosedError("this scan was closed before its end; begin a new one")


class BatchTables:
    """The topics of batches in one store, as query engines need them."""

    READERS: ClassVar[str] = "tieredstore.BatchConsumer, `pubsub cat` or a query"

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @classmethod
    def beside(cls, store: ObjectStore, settings: Settings) -> Self | None:
        """Return the tables of a store; None if the store cannot hold topics of batches."""
        return cls(topics_in_store(store, settings)) if store.conditional_writes else None

    @staticmethod
    def schema(key: ValueType, value: ValueType) -> pa.Schema:
        """Return the schema for keys and values of these types."""
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        return pa.schema(
            [
                ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
                ("message", pa.int32()), ("record", pa.int32()), ("timestamp", _TIME),
                ("key", key.arrow_type), ("value", value.arrow_type), ("headers", pa.list_(header)),
                ("messageId", pa.binary()),
            ]
        )  # fmt: skip

    def names(self) -> Iterator[str]:
        """Yield the names of all topics."""
        return self._topics.names()

    def has(self, name: str) -> bool:
        """Return True if there is a topic of this name. Return False for an invalid name."""
        return self._topics.has(name)

    def table(self, name: str, key: ValueType, value: ValueType, *, keeps_snapshot: bool = True) -> BatchTable:
        """Return a topic's table. Raise TopicNotFoundError if the topic does not exist."""
        log = BatchLog(self._topics, self._topics.get(name))
        return BatchTable(log, key, value, keeps_snapshot=keeps_snapshot)


def _span(batch: QueuedBatch, topic: str) -> PartitionSpan:
    """Return what a batch's notification says about its records."""
    facts = batch.notification.facts
    earliest_ms, latest_ms = (None, None) if facts is None else (facts.min_timestamp, facts.max_timestamp)
    return PartitionSpan((topic, batch.partition), batch.offset, batch.offset + 1, latest_ms, earliest_ms)
