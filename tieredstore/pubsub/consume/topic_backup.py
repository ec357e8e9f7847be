"""Topics of batches as a source of ``restore produce --backup``.

An offset is the queue's offset of a batch times 2^24, plus the number of the record in its batch. Repeated Messages
have numbers too, so a number stays the same however many of them are left out.

Separate from ``tables``, because a restore needs offsets, missing objects and repeated Messages, and no columns.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tieredstore.config import load_settings
from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError, ObjectNotFoundError, TopicNotFoundError
from tieredstore.process.futures import outcome
from tieredstore.pubsub.consume.partition_state import FetchedObject, Fetches
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, headers_in
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.queue.memq_topics import open_topics
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch, Topic, Topics
from tieredstore.records.columns import int64_values

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition

_logger: Final = logging.getLogger(__name__)
_compute: Final[Any] = pyarrow.compute

_BITS: Final = 24
_MOST_RECORDS: Final = 1 << _BITS
_FETCHES: Final = 2
"""Objects of a partition that are fetched ahead; ``restore produce`` reads a few partitions in turn."""

_COLUMNS: Final = ("timestamp", "key", "value", "headers")
_PLACES: Final = ("message", "record")


class BatchBackup:
    """Topics of batches as their queues are now."""

    def __init__(self, topics: Topics, logs: Mapping[str, BatchLog]) -> None:
        self.repeats: int = 0
        self._topics = topics
        self._logs = logs
        self._queued = {
            (name, partition): (log.queue.start(partition), log.queue.end(partition))
            for name, log in logs.items()
            for partition in range(log.queue.partitions)
        }
        self._keys: dict[str, frozenset[str]] = {}
        self._holes: dict[tuple[TopicPartition, int, int], list[tuple[int, int]]] = {}

    @property
    def identities(self) -> Mapping[str, str]:
        """The cluster, and the place of the objects and of the queue. Topics of batches have no ids."""
        place = f"batches of cluster {self._topics.batches.cluster} in {self._topics.store.identity}"
        found = {name: log.topic for name, log in self._logs.items()}
        return {name: f"{place}, {topic.path}, queue {topic.queue} {topic.queue_name}" for name, topic in found.items()}

    @property
    def lacks(self) -> Sequence[str]:
        """What MemQ's format cannot hold, and what retention has freed."""
        window_ms = self._topics.batches.dedup_window_ms
        return [
            "an empty key is none, a null value is an empty one, and records have no message ids",
            "a read partition has records of all keys: give --partitioner java or librdkafka to place records by key",
            f"Messages that were stored again after more than {window_ms} ms (pubsub.dedup.window.ms) are repeated",
            *(
                f"retention has freed queue {name}/{partition} before offset {start}"
                for (name, partition), (start, _) in self._queued.items()
                if start
            ),
        ]

    def extents(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the offsets of each read partition."""
        return {where: (start << _BITS, end << _BITS) for where, (start, end) in self._queued.items()}

    def holes(self, where: TopicPartition, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Return the offsets of batches whose objects are missing, and those that are in the queue no longer.

        The first call lists the topic's objects. Log each missing object.
        """
        if (where, start, stop) not in self._holes:
            self._holes[where, start, stop] = list(self._find_holes(where, start, stop))
        return self._holes[where, start, stop]

    def _find_holes(self, where: TopicPartition, start: int, stop: int) -> Iterator[tuple[int, int]]:
        name, partition = where
        log, (first, end) = self._logs[name], self.extents()[where]
        if name not in self._keys:
            self._keys[name] = frozenset(info.key for info, _ in self._topics.objects(log.topic))
        if start < first:
            yield start, min(first, stop)
        for batch in _batches(log, partition, max(start, first), min(stop, end)):
            if batch.key not in self._keys[name]:
                _logger.warning("%s", log.loss(batch))
                yield max(start, batch.offset << _BITS), min(stop, (batch.offset + 1) << _BITS)
        if end < stop:
            yield max(start, end), stop

    def records(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records, without those of repeated Messages.

        Raise DataLossError for a missing object, and MessageCorruptError for a damaged one.
        """
        name, partition = where
        log, settings = self._logs[name], self._topics.batches
        seen = SeenMessages(log, partition, settings.dedup_window_ms)
        decoder = BatchDecoder((*_COLUMNS, *_PLACES), max_expanded_bytes=settings.max_expanded_bytes)
        with closing(Fetches(log, _FETCHES, settings.fetch_bytes)) as fetches:
            waiting, ahead = _batches(log, partition, start, stop), deque[tuple[QueuedBatch, Future[FetchedObject]]]()
            while True:
                while not fetches.is_full and (batch := next(waiting, None)) is not None:
                    ahead.append((batch, fetches.begin(batch)))
                if not ahead:
                    return
                batch, fetching = ahead.popleft()
                try:
                    fetched = outcome(fetching)
                except ObjectNotFoundError as error:
                    raise log.loss(batch) from error
                for records in self._decode(batch, fetched, seen, decoder):
                    offsets = int64_values(records, "offset")
                    begin, end = bisect_left(offsets, start), bisect_left(offsets, stop)
                    if begin < end:
                        yield records.slice(begin, end - begin)
                fetches.give_back(batch)

    def _decode(
        self, batch: QueuedBatch, fetched: FetchedObject, seen: SeenMessages, decoder: BatchDecoder
    ) -> Iterator[pa.RecordBatch]:
        body, crc32, checksums = fetched
        batch.check(crc32)
        index = BatchIndex(body, batch.key, len(body))
        batch.check_count(len(index))
        counts = list(_record_counts(batch, fetched))
        firsts = pa.array(accumulate(counts[:-1], initial=batch.offset << _BITS), pa.int64())
        repeated = seen.doubles(batch, body)
        self.repeats += sum(counts[number] for number in repeated)
        if repeated:
            kept = [number for number in range(len(index)) if number not in repeated]
            ranges = ((number, *index.byte_range(number)) for number in kept)
            view = memoryview(body)
            decoded = chain.from_iterable(
                decoder.decode_message(view[start:stop], index.place(number)) for number, start, stop in ranges
            )
        else:
            decoded = iter(decoder.decode(body, batch.key, checksums))
        for rows in decoded:
            yield _with_offsets(rows, firsts)


def _record_counts(batch: QueuedBatch, fetched: FetchedObject) -> Iterator[int]:
    """Yield the number of records of each Message; raise MessageCorruptError for a damaged header, and ConfigError for
    more records than a batch has offsets.
    """
    total = 0
    for _, header in headers_in(fetched.body, batch.key):
        if isinstance(header, MessageCorruptError):
            raise header
        yield header.record_count
        total += header.record_count
    if total > _MOST_RECORDS:
        raise ConfigError(f"{batch.key} has {total} records, and only {_MOST_RECORDS} of a batch can be restored")


def _with_offsets(rows: Any, firsts: Any) -> pa.RecordBatch:
    """Return decoded records with their offsets; ``firsts`` has that of each Message's first record."""
    offsets = _compute.add(firsts.take(rows.column("message")), rows.column("record"))
    # MemQ's records may lack all fields, of which the time is one. Kafka's only negative time is -1, for none.
    times = _compute.max_element_wise(rows.column("timestamp"), -1)
    columns = (rows.column(name) for name in _COLUMNS[1:])
    return pa.RecordBatch.from_arrays([offsets, times, *columns], names=["offset", *_COLUMNS])


def _batches(log: BatchLog, partition: int, start: int, stop: int) -> Iterator[QueuedBatch]:
    """Yield the batches that have offsets of ``[start, stop)``."""
    return log.walk(partition, start >> _BITS, -(-stop >> _BITS)) if start < stop else iter(())


@contextmanager
def open_backup(path: Path, names: Sequence[str]) -> Generator[BatchBackup]:
    """Open topics of the store that a settings file names; raise TopicNotFoundError if one is missing there."""
    with ExitStack() as stack:
        topics = stack.enter_context(open_topics(load_settings(path)))
        found = {name: _find_topic(topics, name, path) for name in names}
        yield BatchBackup(topics, {name: stack.enter_context(BatchLog(topics, topic)) for name, topic in found.items()})


def _find_topic(topics: Topics, name: str, path: Path) -> Topic:
    try:
        return topics.get(name)
    except TopicNotFoundError:
        otherwise = "see pubsub.cluster, or name the settings of a pipeline (pipeline.name) for its files"
        meant = did_you_mean(name, topics.names(), otherwise=otherwise)
        raise TopicNotFoundError(
            f"{path} has no topic {name} of batches in cluster {topics.batches.cluster}{meant}"
        ) from None
