"""The stream reader of the Spark format ``memq``, which reads a topic of batches.

The stream's offset in a checkpoint has the next offset of each read partition: ``{"version": 1, "topic": "orders",
"offsets": {"0": 512, "1": 256}}``. The end of the first batch also has ``initialOffsets``, because Spark asks again
after a restart where the stream began.

This module is separate from ``data_source``, which imports it only for streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, Strict, TypeAdapter, ValidationError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.errors import ConfigError
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.spark.memq.plan import PlannedBatch, admit, batches_from, offset_of, topics_of
from tieredstore.spark.memq.tasks import plan_tasks, read_task
from tieredstore.spark.source.trigger_limits import IN_OPTIONS, TriggerLimits
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence
from tieredstore.versions import MEMQ_OFFSETS, refuse_newer_offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.spark.memq.options import TopicOptions

_INITIAL: Final = "initialOffsets"
_FRESH_S: Final = 1.0
_MOST_BATCHES: Final = 100_000
Json = dict[str, Any]
_Partition = Annotated[int, Field(ge=0)]
_Offset = Annotated[int, Strict(), Field(ge=0)]


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
