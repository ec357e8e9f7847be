"""A Spark task that reads a topic of batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tieredstore.errors import DataLossError, ObjectNotFoundError
from tieredstore.kafka.arrow_values import repeat_value
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import checksum
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.spark.memq.options import TopicOptions
from tieredstore.spark.memq.plan import PlannedBatch, index_in, plan_batches, tasks_of, topics_of
from tieredstore.spark.source.rows import MEMQ_ROWS, RowShape
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence, spare_modules

_logger: Final = logging.getLogger(__name__)
_AHEAD: Final = 2
_PLACE: Final = ("message", "record")
_ORDER: Final = ("has key", "key", "place", *_PLACE)
_SORTED_ROWS: Final = 65_536


def plan_tasks(options: TopicOptions, batches: Sequence[PlannedBatch] | None = None) -> list[InputPartition]:
    """Return the tasks that read ``batches``. By default, read the batches that the options select. The value of a task
    has some batches of one read partition, or some Messages of a batch.
    """
    topics = topics_of(options.store)
    selected = plan_batches(options) if batches is None else batches
    cut = tasks_of(
        selected, options.max_split_bytes, options.min_partitions, lambda batch: _index(topics, batch, options)
    )
    return [InputPartition(task) for task in cut]


def _index(topics: Topics, batch: PlannedBatch, options: TopicOptions) -> BatchIndex:
    try:
        return index_in(topics, batch)
    except ObjectNotFoundError as error:
        raise _loss(batch, options) from error


def _loss(batch: PlannedBatch, options: TopicOptions) -> DataLossError:
    queued = batch.queued
    where = options.topic if queued is None else f"{options.topic}-{queued.partition}, offset {queued.offset}"
    return DataLossError(f"{where}: the object {batch.key} does not exist; set failOnDataLoss to false to skip it")


def read_task(task: InputPartition, options: TopicOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Arrow batches, without empty batches.

    The task holds a few stored objects in memory. With ``sortByKey`` it holds all its rows in memory.
    """
    spare_modules()
    # For a plan without tasks, Spark runs one task whose value is None, so return no rows for that task.
    if task.value is None:
        return iter(())
    reading = _Reading(options)
    return reading.sort(task.value) if options.sort_by_key else reading.rows(task.value)


class _Reading:
    """Reads the batches of one task."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._topics = topics_of(options.store)
        self._shape = RowShape(options.columns, MEMQ_ROWS, out_of_range=options.out_of_range)
        columns = self._shape.decoder_columns
        if options.sort_by_key:
            columns = tuple(dict.fromkeys((*columns, "key", *_PLACE)))
        self._decoder = BatchDecoder(columns, max_expanded_bytes=self._topics.batches.max_expanded_bytes)

    def rows(self, batches: Sequence[PlannedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the order of the queue."""
        for batch, records in self._records(batches):
            yield self._convert(batch, records)

    def sort(self, batches: Sequence[PlannedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows sorted by key, null keys first. Rows with equal keys keep the order of the queue."""
        tables: list[pa.Table] = []
        for place, (batch, records) in enumerate(self._records(batches)):
            rows = pa.Table.from_batches([self._convert(batch, records)])
            key = records.column("key")
            order = [key.is_valid(), key, repeat_value(place, records.num_rows, pa.int64())]
            order += [records.column(name) for name in _PLACE]
            for name, column in zip(_ORDER, order, strict=True):
                rows = rows.append_column(f"by {name}", column)
            tables.append(rows)
        if not tables:
            return
        whole = pa.concat_tables(tables)
        keys = [(f"by {name}", "ascending") for name in _ORDER]
        indices = pc.sort_indices(whole, sort_keys=keys)
        given = whole.select(list(self._shape.columns)).take(indices)
        yield from given.to_batches(_SORTED_ROWS)

    def _convert(self, batch: PlannedBatch, records: pa.RecordBatch) -> pa.RecordBatch:
        offset = None if batch.queued is None else batch.queued.offset
        return self._shape.convert(records, self._options.topic, batch.partition, offset)

    def _records(self, batches: Sequence[PlannedBatch]) -> Iterator[tuple[PlannedBatch, pa.RecordBatch]]:
        seen = self._open_seen(batches[0].partition)
        with ThreadPool(_AHEAD, "tieredstore-spark-fetch") as pool:
            fetched = in_parallel(pool, self._fetch, batches, at_once=_AHEAD)
            for batch, found in zip(batches, fetched, strict=True):
                for records in () if found is None else self._decode(batch, *found, seen):
                    yield batch, records

    def _fetch(self, batch: PlannedBatch) -> tuple[BatchIndex, bytes] | None:
        """Return the index of a batch, and the bytes of the Messages to read; None for a loss that the query skips."""
        try:
            return self._fetch_whole_or_part(batch)
        except ObjectNotFoundError as error:
            loss = _loss(batch, self._options)
            if self._options.fail_on_data_loss:
                raise loss from error
            _logger.warning("%s", str(loss).partition(";")[0])
            return None

    def _fetch_whole_or_part(self, batch: PlannedBatch) -> tuple[BatchIndex, bytes]:
        store = self._topics.store
        if batch.stop is not None:
            index = index_in(self._topics, batch)
            return index, store.get(batch.key, index.byte_range(batch.first)[0], index.byte_range(batch.stop - 1)[1])
        body = store.get(batch.key)
        index = BatchIndex(body, batch.key, len(body))
        if batch.queued is not None:
            batch.queued.check(checksum(body))
            batch.queued.check_count(len(index))
        return index, body

    def _decode(
        self, batch: PlannedBatch, index: BatchIndex, body: bytes, seen: SeenMessages | None
    ) -> Iterator[pa.RecordBatch]:
        stop = len(index) if batch.stop is None else batch.stop
        begin = 0 if batch.stop is None else index.byte_range(batch.first)[0]
        repeated_numbers: frozenset[int] = frozenset()
        if seen is not None and batch.queued is not None:
            repeated_numbers = seen.doubles(batch.queued, body if batch.stop is None else None)
        numbers = (number for number in range(batch.first, stop) if number not in repeated_numbers)
        yield from self._decoder.decode_messages(index.messages(body, numbers, begin))

    def _open_seen(self, partition: int | None) -> SeenMessages | None:
        if not self._options.is_once or partition is None:
            return None
        log = BatchLog(self._topics, self._topics.get(self._options.topic))
        return SeenMessages(log, partition)


class MemqReader(DataSourceReader):
    """Reads the batches that the options of a batch query select. The planning process resolves the options once."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Find the batches to read, and divide them among tasks."""
        with one_sentence():
            return plan_tasks(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))
