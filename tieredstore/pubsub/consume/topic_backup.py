"""Topics of batches as a source of ``restore produce --backup``.

An offset is the queue's offset of a batch times 2^24, plus the number of the record in its batch. The records of
repeated Messages are numbered too, so that leaving out these Messages does not change the other offsets.

This module is separate from ``tables``, because a restore needs offsets and must report missing objects, but selects no
columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from tieredstore.config import load_settings
from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError, DataLossError, TopicNotFoundError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.pubsub.consume.partition_state import FetchedObject, fetch_in_order
from tieredstore.pubsub.consume.seen_messages import SeenMessages
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, headers_in
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.queue.memq_topics import open_topics
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch, Topic, Topics

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition

_compute: Final[Any] = pyarrow.compute

_BITS: Final = 24
_MOST_RECORDS: Final = 1 << _BITS
_FETCHES: Final = 2
"""Number of a partition's objects to fetch ahead. It is small, because ``restore produce`` reads several partitions in
turn."""

_SHOWN: Final = 10
"""Maximum number of missing objects to name for each partition."""

_COLUMNS: Final = ("timestamp", "key", "value", "headers")
_PLACES: Final = ("message", "record")


class BatchBackup:
    """A snapshot of topics of batches. Its creation reads the topics' queues, and lists their objects."""

    def __init__(self, topics: Topics, logs: Mapping[str, BatchLog]) -> None:
        self.repeats: int = 0
        self._topics = topics
        self._logs = logs
        self._queued = {
            (name, partition): (log.queue.start(partition), log.queue.end(partition))
            for name, log in logs.items()
            for partition in range(log.queue.partitions)
        }
        self._missing: dict[TopicPartition, list[QueuedBatch]] = {where: [] for where in self._queued}
        """For each partition, the batches in its queue whose objects are missing."""
        self._lost_entries: list[str] = []
        self._lost_from: dict[TopicPartition, int] = {}
        """For each partition whose queue has lost an entry, the offset from which its batches are unknown."""
        self._unknown = {name: self._look_for_objects(name) for name in logs}
        """For each topic, the number of objects that no entry of its queue names."""

    def _look_for_objects(self, name: str) -> int:
        log = self._logs[name]
        stored = {info.key for info, _ in self._topics.objects(log.topic)}
        unknown = set(stored)
        for where in [where for where in self._queued if where[0] == name]:
            at, end = self._queued[where]
            try:
                for batch in log.walk(where[1], at, end):
                    at = batch.offset + 1
                    unknown.discard(batch.key)
                    if batch.key not in stored:
                        self._missing[where].append(batch)
            except DataLossError as error:
                self._lost_entries.append(f"{error}: later batches are left out")
                self._lost_from[where] = at
        return len(unknown)

    @property
    def identities(self) -> Mapping[str, str]:
        """A text that identifies each topic by its cluster, objects and queue, because topics of batches have no
        ids."""
        place = f"batches of cluster {self._topics.batches.cluster} in {self._topics.store.identity}"
        found = {name: log.topic for name, log in self._logs.items()}
        return {name: f"{place}, {topic.path}, queue {topic.queue} {topic.queue_name}" for name, topic in found.items()}

    @property
    def lacks(self) -> Sequence[str]:
        """Sentences about the data that the backup lacks, for example because retention has freed it."""
        return list(self._lacks())

    def _lacks(self) -> Iterator[str]:
        window_ms = self._topics.batches.dedup_window_ms
        yield "empty keys become null keys, null values become empty values, and message ids are not restored"
        yield "a read partition has records of all keys: give --partitioner java or librdkafka to place records by key"
        yield f"Messages that were stored again after more than {window_ms} ms (pubsub.dedup.window.ms) are repeated"
        for (name, partition), (start, _) in self._queued.items():
            if start:
                yield f"retention has freed queue {name}/{partition} before offset {start}"
        yield from self._lost_entries
        for name, count in self._unknown.items():
            if count:
                yield (
                    f"{count} objects of {name} are left out, because no entry of its queue names them (freed by "
                    "retention, never acknowledged, or their entries are lost: see pubsub gc)"
                )
        for where, missing in self._missing.items():
            for batch in missing[:_SHOWN]:
                yield str(self._logs[where[0]].loss(batch))

    def spans(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the offsets of each read partition."""
        return {where: (start << _BITS, end << _BITS) for where, (start, end) in self._queued.items()}

    def holes(self, where: TopicPartition, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Return the offsets of batches whose objects or entries are missing, and the offsets that the queue no longer
        has."""
        first, end = self.spans()[where]
        lost = ((batch.offset << _BITS, (batch.offset + 1) << _BITS) for batch in self._missing[where])
        unknown = self._lost_from.get(where, end >> _BITS) << _BITS
        clipped = ((max(start, begin), min(stop, until)) for begin, until in ((0, first), *lost, (unknown, stop)))
        return [(begin, until) for begin, until in clipped if begin < until]

    def records(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records, except the records of repeated Messages.

        Raise DataLossError for a missing object, and MessageCorruptError for a damaged object.
        """
        name, partition = where
        log = self._logs[name]
        seen = SeenMessages(log, partition)
        decoder = BatchDecoder((*_COLUMNS, *_PLACES), max_expanded_bytes=log.settings.max_expanded_bytes)
        batches = log.walk(partition, start >> _BITS, -(-stop >> _BITS))
        with closing(fetch_in_order(log, batches, _FETCHES)) as fetched_batches:
            for batch, fetched in fetched_batches:
                for records in self._decode(batch, fetched, seen, decoder):
                    offsets = int64_values(records, "offset")
                    begin, end = bisect_left(offsets, start), bisect_left(offsets, stop)
                    if begin < end:
                        yield records.slice(begin, end - begin)

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
        kept = (number for number in range(len(index)) if number not in repeated)
        for rows in decoder.decode_messages(index.messages(body, kept), checksums):
            yield _with_offsets(rows, firsts)


def _record_counts(batch: QueuedBatch, fetched: FetchedObject) -> Iterator[int]:
    """Yield the number of records of each Message. Raise MessageCorruptError for a damaged header. Raise ConfigError if
    a batch has more than ``_MOST_RECORDS`` records, because their offsets would overlap the next batch's.
    """
    total = 0
    for _, header in headers_in(fetched.body, batch.key):
        if isinstance(header, MessageCorruptError):
            raise header
        yield header.record_count
        total += header.record_count
    if total > _MOST_RECORDS:
        raise ConfigError(
            f"{batch.key} has {total} records, but at most {_MOST_RECORDS} records of a batch can be restored"
        )


def _with_offsets(rows: Any, firsts: Any) -> pa.RecordBatch:
    """Return decoded records with their offsets; ``firsts`` has the offset of each Message's first record."""
    offsets = _compute.add(firsts.take(rows.column("message")), rows.column("record"))
    # Replace missing and negative timestamps of MemQ by -1, which means no timestamp in Kafka. Kafka has no other
    # negative timestamps.
    times = _compute.max_element_wise(rows.column("timestamp"), -1)
    columns = (rows.column(name) for name in _COLUMNS[1:])
    return pa.RecordBatch.from_arrays([offsets, times, *columns], names=["offset", *_COLUMNS])


@contextmanager
def open_backup(path: Path, names: Sequence[str]) -> Generator[BatchBackup]:
    """Open topics of the store that a settings file names. Raise TopicNotFoundError if the store lacks a topic."""
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
