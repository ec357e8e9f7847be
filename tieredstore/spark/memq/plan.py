"""The plan of a query on a topic of batches. It finds the batches by queue or listing, and divides them among tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tieredstore.errors import ConfigError, DataLossError, TopicNotFoundError
from tieredstore.model import AtTime, Earliest, Latest, Place, Places
from tieredstore.pubsub.format.batches import BatchIndex, read_index
from tieredstore.pubsub.format.notifications import check_path
from tieredstore.pubsub.queue.memq_topics import topics_in_store
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch, Topic, Topics
from tieredstore.spark.memq.options import TopicOptions
from tieredstore.spark.source.store_source import StoreSource, manager_of

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch to read, or a part of it: the Messages ``first`` to ``stop`` (exclusive). ``size`` is the number of bytes
    to read.

    ``queued`` is the batch's entry in the queue, or None if a listing found the batch.
    """

    key: str
    size: int
    queued: QueuedBatch | None = None
    first: int = 0
    stop: int | None = None

    @property
    def partition(self) -> int | None:
        """The queue's read partition that contains the batch, or None if a listing found the batch."""
        return None if self.queued is None else self.queued.partition


def topics_of(source: StoreSource) -> Topics:
    """Return the topics of a store, using this process's cached connections."""
    manager = manager_of(source)
    return topics_in_store(manager.store, manager.settings)


def offset_of(log: BatchLog, partition: int, places: Places) -> int:
    """Return the offset that the options give for a read partition. Raise ConfigError if the options omit the
    partition."""
    queue, topic = log.queue, log.topic.name
    place: Place | None = places.get((topic, partition)) if isinstance(places, Mapping) else places
    match place:
        case Earliest():
            return queue.start(partition)
        case Latest():
            return queue.end(partition)
        case AtTime(timestamp_ms=ms) if place is places:
            return queue.offset_at(partition, ms)
        case int():
            return place
        case None:
            raise ConfigError(f"the offsets lack {topic}-{partition}: name all read partitions of the topic")
        case _:
            raise ConfigError(f"{places!r:.80} is not a position in a queue")


def batches_from(
    log: BatchLog, partition: int, offset: int, end: int | None, *, fail_on_data_loss: bool
) -> Iterator[PlannedBatch]:
    """Yield the batches of a read partition from ``offset`` to ``end`` (exclusive). If ``end`` is None, go on to the
    queue's end.

    If retention has deleted the batch at ``offset``, or the queue has lost entries, raise DataLossError. If
    ``fail_on_data_loss`` is false, continue after the loss instead.
    """
    if end is not None and offset >= end:
        return iter(())

    def on_loss(error: DataLossError) -> None:
        lost = str(error).rpartition(";")[0]
        if fail_on_data_loss:
            raise DataLossError(f"{lost}; set failOnDataLoss to false to continue at {error.continue_at}") from error
        _logger.warning("%s; reading continues at %s", lost, error.continue_at)

    start = log.queue.start(partition)
    if offset < start:
        freed = f"retention has freed offsets {offset} to {start - 1}"
        on_loss(DataLossError.until(start, f"{log.topic.name}-{partition}: {freed}"))
    walk = log.walk(partition, max(offset, start), end, on_loss)
    return (PlannedBatch(batch.key, batch.size, batch) for batch in walk)


def plan_batches(options: TopicOptions) -> Sequence[PlannedBatch]:
    """Return the batches that a batch query reads. To find them, this call turns times in the options into offsets."""
    topics = topics_of(options.store)
    if options.by_listing:
        return list_batches(topics, options)
    planned: list[PlannedBatch] = []
    with BatchLog(topics, topics.get(options.topic)) as log:
        windows = {
            partition: [offset_of(log, partition, spec) for spec in (options.starting, options.ending)]
            for partition in range(log.queue.partitions)
        }
        for partition, (begin, end) in windows.items():
            planned += batches_from(log, partition, begin, end, fail_on_data_loss=options.fail_on_data_loss)
    return planned


def list_batches(topics: Topics, options: TopicOptions) -> Sequence[PlannedBatch]:
    """Return the objects of the topic between the start and end time, in the order of the times in their keys. The
    result includes orphans (objects that no queue entry names).
    """
    try:
        topic = topics.get(options.topic)
    except TopicNotFoundError:
        # The topic's configuration may be lost together with its queue. In this case, list the path that a new topic
        # would get.
        path = check_path(topics.path_of(options.topic))
        topic = Topic(options.topic, 1, path, topics.batches.hashing)
    since, until = _time_of(options.starting), _time_of(options.ending)
    listed = [
        (parsed.ms, info.key, info.size)
        for info, parsed in topics.objects(topic)
        if (since is None or parsed.ms >= since) and (until is None or parsed.ms < until)
    ]
    return [PlannedBatch(key, size) for _, key, size in sorted(listed)]


def _time_of(spec: Places) -> int | None:
    return spec.timestamp_ms if isinstance(spec, AtTime) else None


def admit(
    batches: Mapping[int, Iterator[PlannedBatch]], max_batches: int | None, max_bytes: int | None
) -> list[PlannedBatch]:
    """Return the batches of one trigger. Take batches from all partitions in turn until a limit is reached, but at
    least one."""
    taken: list[PlannedBatch] = []
    total, waiting = 0, dict(batches)
    while waiting:
        for partition, left in list(waiting.items()):
            if max_batches is not None and len(taken) >= max_batches:
                return taken
            batch = next(left, None)
            if batch is None:
                del waiting[partition]
                continue
            total += batch.size
            if taken and max_bytes is not None and total > max_bytes:
                return taken
            taken.append(batch)
    return taken


def tasks_of(
    batches: Sequence[PlannedBatch],
    max_bytes: int,
    min_tasks: int | None,
    index_of: Callable[[PlannedBatch], BatchIndex],
) -> list[tuple[PlannedBatch, ...]]:
    """Divide batches among tasks, in order. A task reads whole batches, or a part of a batch, from one read partition.

    A task has at most ``max_bytes``, or a single larger Message. ``index_of`` is called only for batches that must be
    divided.
    """
    total = sum(batch.size for batch in batches)
    if min_tasks is not None:
        max_bytes = max(1, min(max_bytes, total // min_tasks))
    tasks: list[tuple[PlannedBatch, ...]] = []
    task: list[PlannedBatch] = []
    for batch in sorted(batches, key=lambda each: -1 if each.partition is None else each.partition):
        for split in _splits(batch, max_bytes, index_of):
            is_full = sum(each.size for each in task) + split.size > max_bytes
            if task and (is_full or task[-1].partition != split.partition):
                tasks.append(tuple(task))
                task = []
            task.append(split)
    return [*tasks, tuple(task)] if task else tasks


def _splits(
    batch: PlannedBatch, max_bytes: int, index_of: Callable[[PlannedBatch], BatchIndex]
) -> Iterator[PlannedBatch]:
    if batch.size <= max_bytes or (batch.queued is not None and batch.queued.notification.message_count == 1):
        yield batch
        return
    index = index_of(batch)
    first = 0
    for number in range(len(index)):
        begin = index.byte_range(first)[0]
        is_last = number + 1 == len(index)
        if is_last or index.byte_range(number + 1)[1] - begin > max_bytes:
            yield replace(batch, size=index.byte_range(number)[1] - begin, first=first, stop=number + 1)
            first = number + 1


def index_in(topics: Topics, batch: PlannedBatch) -> BatchIndex:
    """Read the index of a batch. The read takes one small request, or up to three if the length of the index is
    unknown."""
    store, queued = topics.store, batch.queued
    if queued is not None:
        return BatchIndex(
            store.get(batch.key, 0, min(queued.notification.header_size, queued.size)), batch.key, queued.size
        )
    size = batch.size if batch.stop is None else store.head(batch.key).size
    return read_index(partial(store.get, batch.key), batch.key, size)
