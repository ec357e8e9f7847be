"""Readers of the Spark format ``memq``, for a batch query and for a stream; both read by the same tasks.

The stream's offset in a checkpoint has the next offset of each read partition: ``{"version": 1, "topic": "orders",
"offsets": {"0": 512, "1": 256}}``. The end of the first batch also has ``initialOffsets``, because Spark asks again
after a restart where the stream began.

This module is separate from ``data_source``, which imports it only for reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, Strict, TypeAdapter, ValidationError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.errors import ConfigError, DataLossError, ObjectNotFoundError
from tieredstore.kafka.arrow_values import repeat_value
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import checksum
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.spark.memq.options import TopicOptions
from tieredstore.spark.memq.plan import (
    PlannedBatch,
    admit,
    batches_from,
    index_in,
    offset_of,
    plan_batches,
    tasks_of,
    topics_of,
)
from tieredstore.spark.source.rows import MEMQ_ROWS, RowShape
from tieredstore.spark.source.trigger_limits import IN_OPTIONS, TriggerLimits
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence, spare_modules
from tieredstore.versions import MEMQ_OFFSETS, refuse_newer_offsets

_logger: Final = logging.getLogger(__name__)
_AHEAD: Final = 2
_PLACE: Final = ("message", "record")
_ORDER: Final = ("has key", "key", "place", *_PLACE)
_SORTED_ROWS: Final = 65_536
_INITIAL: Final = "initialOffsets"
_FRESH_S: Final = 1.0
_MOST_BATCHES: Final = 100_000
Json = dict[str, Any]
_Partition = Annotated[int, Field(ge=0)]
_Offset = Annotated[int, Strict(), Field(ge=0)]


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


class MemqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic trigger by trigger. Only Spark's checkpoint records its progress. ``clock`` returns monotonic
    seconds.

    Spark calls this reader in a separate process to plan. If there are no new batches, the reader looks for them again
    after a second.
    """

    def __init__(self, options: TopicOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._limits = TriggerLimits(options.max_batches, options.max_bytes)
        self._clock = clock
        self._target: Mapping[int, int] | None = None
        self._planned: tuple[Json, Json, list[PlannedBatch]] | None = None
        self._quiet_until_s = 0.0
        self._log: BatchLog | None = None

    def __reduce__(self) -> tuple[type[MemqStreamReader], tuple[TopicOptions]]:
        return MemqStreamReader, (self._options,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Return the start of a new stream."""
        with one_sentence():
            log = self._open()
            partitions = range(log.queue.partitions)
            begins = {partition: offset_of(log, partition, self._options.starting) for partition in partitions}
            return self._json(begins) | {_INITIAL: _texts(begins)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a placeholder for the limit, which Spark passes to ``latestOffset``."""
        return IN_OPTIONS

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the batch that begins at ``start``, or ``start`` if there is nothing to read."""
        with one_sentence():
            if self._clock() < self._quiet_until_s:
                return start
            planned = self._admit(start, limit)
            if not planned:
                self._quiet_until_s = self._clock() + (_FRESH_S if self._target is None else 0.0)
                return start
            begun = self._offsets_in(start)
            offsets = dict(begun)
            for batch in planned:
                if batch.queued is not None:
                    offsets[batch.queued.partition] = batch.queued.next_offset
            end = self._json(offsets)
            if start.get(_INITIAL) == start.get("offsets"):
                end[_INITIAL] = _texts(begun)  # the first batch records the start of the stream
            self._planned = start, end, planned
            return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make this run end at the present end of each read partition."""
        with one_sentence():
            queue = self._open().queue
            self._target = {partition: queue.end(partition) for partition in range(queue.partitions)}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of the batch just planned, or of an earlier batch that Spark repeats."""
        with one_sentence():
            if self._planned is not None and self._planned[:2] == (start, end):
                return plan_tasks(self._options, self._planned[2])
            offsets, ended = self._offsets_in(start), _read_checkpoint(end, self._options.topic)
            if ended.initial is not None:
                offsets = ended.initial
            batches: list[PlannedBatch] = []
            for partition, stop in sorted(ended.offsets.items()):
                begin = offsets.get(partition)
                # An end before the begin means that the topic was created again, and was read from its start.
                batches += self._from(partition, None if begin is not None and begin > stop else begin, stop)
            return plan_tasks(self._options, batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def stop(self) -> None:
        """Close the queue."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _open(self) -> BatchLog:
        topics = topics_of(self._options.store)
        topic = topics.get(self._options.topic)
        # Look the topic up each time, because it may get more read partitions. Open a new BatchLog only if the topic
        # has changed.
        if self._log is None or self._log.topic != topic:
            self.stop()
            self._log = BatchLog(topics, topic)
        return self._log

    def _admit(self, start: Json, limit: ReadLimit) -> list[PlannedBatch]:
        queue = self._open().queue
        partitions = range(queue.partitions)
        offsets = self._offsets_in(start)
        target = self._target
        walks: dict[int, Iterator[PlannedBatch]] = {}
        for partition in partitions if target is None else target:
            offset, stop = offsets.get(partition), None if target is None else target[partition]
            if offset is not None and stop is not None and offset > stop and offset > queue.end(partition):
                stop = None  # only a read without an end says that the offset is beyond the queue's end
            walks[partition] = self._from(partition, offset, stop)
        limits = self._limits.under(limit)
        return admit(walks, min(limits.max_offsets or _MOST_BATCHES, _MOST_BATCHES), limits.max_bytes)

    def _from(self, partition: int, offset: int | None, stop: int | None) -> Iterator[PlannedBatch]:
        """Yield the batches from ``offset`` to ``stop``. A partition that was added after the start of the stream has
        the ``offset`` None. It is read from its first batch on.
        """
        log = self._open()
        begin = log.queue.start(partition) if offset is None else offset
        return batches_from(log, partition, begin, stop, fail_on_data_loss=self._options.fail_on_data_loss)

    def _offsets_in(self, document: Json) -> dict[int, int]:
        return _read_checkpoint(document, self._options.topic).offsets

    def _json(self, offsets: Mapping[int, int]) -> Json:
        return {"version": MEMQ_OFFSETS.version, "topic": self._options.topic, "offsets": _texts(offsets)}


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint: the next offset of each read partition. ``initial`` holds the offsets at which the stream began."""

    version: Literal[1]
    topic: str
    offsets: dict[_Partition, _Offset]
    initial: Annotated[dict[_Partition, _Offset] | None, Field(alias=_INITIAL)] = None


_CHECKPOINT: Final = TypeAdapter(_Checkpoint)


def _read_checkpoint(document: Json, topic: str) -> _Checkpoint:
    """Parse an offset of a checkpoint. Raise ConfigError if another source or topic wrote it."""
    refuse_newer_offsets(MEMQ_OFFSETS, document)
    try:
        checkpoint = _CHECKPOINT.validate_python(document)
    except ValidationError as error:
        raise ConfigError(f"this source did not write the checkpoint's offsets: {str(document)[:80]}") from error
    if checkpoint.topic != topic:
        raise ConfigError(
            f"the checkpoint belongs to another topic, not to {topic}: {str(document)[:80]}; give this query a "
            "checkpoint of its own"
        )
    return checkpoint
