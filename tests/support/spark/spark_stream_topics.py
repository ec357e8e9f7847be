"""A bucket in a folder that topics grow in, and readers of streams over it as Spark drives them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from tieredstore.config import settings_from
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader
from tieredstore.testing.segments import Record, build_batch, write_segment

Json = dict[str, Any]
FIRST_ID = Uuid(bytes(range(16)))
SECOND_ID = Uuid(bytes(range(16, 32)))


class Bucket:
    """Topics whose segments come one after the other; each record's value tells where it is."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "bucket"
        self.root.mkdir(parents=True)
        self.options = {"storage.backend.class": "filesystem", "storage.root": str(self.root)}
        self.manager = RemoteStorageManager(settings_from(self.options | {"chunk.size": "16384"}))
        self.ends: defaultdict[tuple[str, int, Uuid], int] = defaultdict(int)
        self.clock = Clock()
        self._logs = folder / "logs"
        self._copied = 0

    def write(
        self,
        count: int,
        topic: str = "orders",
        partition: int = 0,
        *,
        topic_id: Uuid = FIRST_ID,
        skip: int = 0,
        epochs: LeaderEpochs = ((0, 0),),
    ) -> RemoteLogSegmentMetadata:
        """A segment of the next ``count`` offsets, or from ``skip`` later on; ten records a batch, of one epoch."""
        start = self.ends[topic, partition, topic_id] + skip
        offsets = range(start, start + count)
        batches: list[bytes] = []
        for at in range(0, count, 10):
            records = [Record(value_of(topic, partition, offset)) for offset in offsets[at : at + 10]]
            epoch = max(epoch for epoch, first in epochs if first <= offsets[at])
            batches.append(build_batch(records, offsets[at], leader_epoch=epoch))
        return self.copy(TopicIdPartition(topic_id, topic, partition), batches, offsets, epochs=epochs)

    def copy(
        self,
        where: TopicIdPartition,
        batches: Sequence[bytes],
        offsets: range,
        *,
        producers: Sequence[ProducerState] = (),
        aborted: Sequence[AbortedTransaction] = (),
        epochs: LeaderEpochs = ((0, 0),),
    ) -> RemoteLogSegmentMetadata:
        """A segment of these batches."""
        self._copied += 1
        segment = write_segment(
            self._logs / str(self._copied),
            batches,
            partition=where,
            base_offset=offsets.start,
            end_offset=offsets.stop - 1,
            producers=producers,
            aborted=aborted,
            leader_epochs=epochs,
        )
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000 + self._copied)
        self.manager.copy_log_segment_data(metadata, segment.files)
        self.ends[where.topic, where.partition, where.topic_id] = offsets.stop
        return metadata

    def delete(self, *segments: RemoteLogSegmentMetadata) -> None:
        """Retention, or worse."""
        for metadata in segments:
            self.manager.delete_log_segment_data(metadata)

    def reader(self, **options: str) -> StreamReader:
        """A reader of ``orders`` from its beginning by ``clock``, unless the options say something else."""
        usual = {} if "subscribePattern" in options or "assign" in options else {"subscribe": "orders"}
        given = {**self.options, **usual, "startingOffsets": "earliest", **options}
        return StreamReader(parse_options(given, streaming=True), clock=self.clock)

    def close(self) -> None:
        self.manager.close()


def value_of(topic: str, partition: int, offset: int) -> bytes:
    return f"{topic}-{partition}@{offset}".encode()


class Clock:
    """Seconds that pass whenever somebody looks, so that no snapshot is fresh; or that a test moves on."""

    def __init__(self, step: float = 10.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def over_the_wire(offset: Json) -> Json:
    """As Spark hands an offset back."""
    json_offset: Json = json.loads(json.dumps(offset))
    return json_offset


class Query:
    """A query over a reader: what a checkpoint keeps, and the rows of each batch."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.start: Json = over_the_wire(reader.initialOffset())
        self.rows: list[bytes] = []

    def trigger(self, limit: ReadLimit | None = None) -> list[bytes]:
        """The rows of a batch, none if there is none."""
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit() if limit is None else limit)
        end = over_the_wire(end)
        if json.dumps(end) == json.dumps(self.start):
            return []
        rows = rows_between(self.reader, self.start, end)
        self.reader.commit(end)
        self.start = end
        self.rows += rows
        return rows

    def run(self, limit: ReadLimit | None = None) -> int:
        """Triggers until nothing is new, as availableNow does; how many batches there were."""
        count = 0
        while True:
            before = self.start
            self.trigger(limit)
            if self.start == before:
                return count
            count += 1


def rows_between(reader: StreamReader, start: Json, end: Json) -> list[bytes]:
    """The values of a batch, each task and its reader in a process of their own, as far as pickling goes."""
    rows: list[bytes] = []
    for task in reader.partitions(start, end):
        sent, there = pickle.loads(pickle.dumps((reader, task)))
        for batch in sent.read(there):
            columns: Mapping[str, list[Any]] = batch.to_pydict()
            rows += columns["value"]
    return rows


def values(bucket_range: range, topic: str = "orders", partition: int = 0) -> list[bytes]:
    return [value_of(topic, partition, offset) for offset in bucket_range]
