"""Stream readers, called as by Spark, but without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from tests.support.records.topic_buckets import Bucket as TopicBucket
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

Json = dict[str, Any]


class Bucket(TopicBucket):
    """Bucket with stream readers on a clock of the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = Clock()

    def reader(self, **options: str) -> StreamReader:
        """Return a reader on ``clock``; by default, it reads ``orders`` from the earliest offset."""
        usual = {} if "subscribePattern" in options or "assign" in options else {"subscribe": "orders"}
        given = {**self.options, **usual, "startingOffsets": "earliest", **options}
        return StreamReader(parse_options(given, streaming=True), clock=self.clock)


class Clock:
    """Clock that advances by ``step`` at each reading, so that no snapshot is fresh; a test can also set ``now``."""

    def __init__(self, step: float = 10.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def over_the_wire(offset: Json) -> Json:
    """Convert an offset to JSON and back, as Spark's checkpoint does."""
    json_offset: Json = json.loads(json.dumps(offset))
    return json_offset


class Query:
    """Streaming query over a reader: its position, and the values of all its batches."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.start: Json = over_the_wire(reader.initialOffset())
        self.rows: list[bytes] = []

    def trigger(self, limit: ReadLimit | None = None) -> list[bytes]:
        """Run a batch; return its values, or none if nothing is new."""
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
        """Trigger until nothing is new, as availableNow does; return the number of batches."""
        count = 0
        while True:
            before = self.start
            self.trigger(limit)
            if self.start == before:
                return count
            count += 1


def rows_between(reader: StreamReader, start: Json, end: Json) -> list[bytes]:
    """Return the values of a batch, pickling each task and its reader as for another process."""
    rows: list[bytes] = []
    for task in reader.partitions(start, end):
        sent, there = pickle.loads(pickle.dumps((reader, task)))
        for batch in sent.read(there):
            columns: Mapping[str, list[Any]] = batch.to_pydict()
            rows += columns["value"]
    return rows
