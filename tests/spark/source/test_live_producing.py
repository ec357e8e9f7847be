"""Reads across bucket and broker while a topic is written, tiered and deleted: each committed record once, in order."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka.kafka_topics import Produced, Transaction, delete_records, end_offset, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_stream_runs import run_killed, started
from tests.support.spark.spark_stream_topics import Json, over_the_wire, rows_between
from tests.support.spark.spark_tasks import as_texts, rows_in
from tieredstore.errors import InvalidSegmentError
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

PARTITIONS = (0, 1)
PADDING = b"k" * 300


class Traffic:
    """Producer to a topic of two partitions, the first with transactions. It also copies and deletes closed segments.

    The last copied segment stays on the broker. It may end inside a transaction, whose records readers then take from
    the broker.
    """

    def __init__(self, tiered: TieredTopic, seed: int) -> None:
        self.tiered = tiered
        self.written: dict[int, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self._source = random.Random(seed)
        self._producer = producer_of(tiered.server)
        self._count = 0

    def turn(self) -> None:
        """Write records and a transaction, copy closed segments, and sometimes delete copied ones on the broker."""
        for partition in PARTITIONS:
            records = self._records(60)
            send(self._producer, self.tiered.topic, records, partition=partition)
            self._note(partition, records)
        self._transaction(self._source.choice(["commit", "abort"]))
        # The broker may delete a segment while it is being copied; the next turn copies skipped segments.
        with suppress(InvalidSegmentError):
            self.tiered.tier(but_last=self._source.choice([0, 1, 5]))
        if self._source.random() < 0.5:
            self._delete_copied()

    @contextmanager
    def turning(self, turns: int) -> Generator[threading.Thread, None, None]:
        """Run this many turns in a thread; at the end of the block, wait for it."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                for _ in range(turns):
                    self.turn()
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield thread
        finally:
            thread.join()
        assert failed == []

    def _records(self, most: int) -> list[Produced]:
        count = self._source.randrange(1, most)
        self._count += count
        return [Produced(PADDING, b"%d" % number) for number in range(self._count - count, self._count)]

    def _note(self, partition: int, records: list[Produced]) -> None:
        self.written[partition] += [record.value for record in records if record.value is not None]

    def _transaction(self, outcome: Any) -> None:
        transaction, records = Transaction(self.tiered.server), self._records(20)
        transaction.send(self.tiered.topic, records)
        transaction.end(outcome)
        if outcome == "commit":
            self._note(0, records)

    def _delete_copied(self) -> None:
        for partition in PARTITIONS:
            bases = [base for where, base in self.tiered.copied if where == partition]
            if bases:
                delete_records(self.tiered.server, self.tiered.topic, max(bases), partition=partition)


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    topic = TieredTopic(kafka, tmp_path, partitions=len(PARTITIONS))
    yield topic
    topic.close()


@pytest.fixture
def traffic(tiered: TieredTopic) -> Traffic:
    return Traffic(tiered, 5)


def options_of(tiered: TieredTopic, **more: Any) -> dict[str, str]:
    return as_texts(tiered.options(columns="partition,offset,value", includeHeaders=False, **more))


def values_of(rows: list[dict[str, Any]], partition: int) -> list[bytes]:
    """Return the values in offset order, asserting that each offset is there once."""
    of = sorted((row["offset"], bytes(row["value"])) for row in rows if row["partition"] == partition)
    assert len({offset for offset, _ in of}) == len(of)
    return [value for _, value in of]


def test_each_batch_has_all_that_was_committed_before_it(tiered: TieredTopic, traffic: Traffic) -> None:
    batches: list[tuple[dict[int, int], list[dict[str, Any]]]] = []
    with traffic.turning(15) as thread:
        # Read at least three batches, even if the first takes as long as all turns.
        while thread.is_alive() or len(batches) < 3:
            before = {partition: len(traffic.written[partition]) for partition in PARTITIONS}
            batches.append((before, rows_in(options_of(tiered, maxRecordsPerPartition=200))))
    assert len(batches) > 2
    batches.append(({p: len(traffic.written[p]) for p in PARTITIONS}, rows_in(options_of(tiered))))
    for before, rows in batches:
        for partition in PARTITIONS:
            values = values_of(rows, partition)
            assert values == traffic.written[partition][: len(values)]
            assert len(values) >= before[partition]


def test_a_stream_that_is_given_up_and_begun_again_reads_each_record_once(
    tiered: TieredTopic, traffic: Traffic
) -> None:
    streamed: list[bytes] = []
    with traffic.turning(15) as thread:
        position: Json | None = None
        while thread.is_alive():
            position = run(tiered, position, streamed, triggers=3)
    run(tiered, position, streamed, triggers=1000)
    by_partition = {partition: set(values) for partition, values in traffic.written.items()}
    read = {partition: [value for value in streamed if value in by_partition[partition]] for partition in PARTITIONS}
    assert read == traffic.written
    assert len(streamed) == sum(map(len, read.values()))


def run(tiered: TieredTopic, position: Json | None, streamed: list[bytes], *, triggers: int) -> Json:
    """Run batches from ``position`` on; return the last position. Assert that a repeated batch has the same rows."""
    reader = stream_of(tiered)
    position = over_the_wire(reader.initialOffset()) if position is None else position
    for _ in range(triggers):
        end = over_the_wire(reader.latestOffset(position, reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(position):
            break
        rows = rows_between(reader, position, end)
        again = stream_of(tiered)
        assert sorted(rows_between(again, position, end)) == sorted(rows)
        again.stop()
        streamed += rows
        position = end
    reader.stop()
    return position


def stream_of(tiered: TieredTopic) -> StreamReader:
    ticks = iter(range(0, 10**9, 10))
    options = options_of(tiered, startingOffsets="earliest", maxOffsetsPerTrigger=150)
    return StreamReader(parse_options(options, streaming=True), clock=lambda: next(ticks))


def test_a_running_query_across_the_seam(
    spark: SparkSession, tiered: TieredTopic, traffic: Traffic, tmp_path: Path
) -> None:
    frame = spark.readStream.format("tieredstore").options(**options_of(tiered, startingOffsets="earliest")).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 second")
        .start(str(tmp_path / "sink"))
    )
    with traffic.turning(12):
        pass
    ends = {str(partition): end_offset(tiered.server, tiered.topic, partition=partition) for partition in PARTITIONS}
    # The stream's view of its logs is up to a second old, so run the stream until it has read to the ends of the logs.
    while not any(json.loads(p.sources[0].endOffset)["offsets"] == {tiered.topic: ends} for p in query.recentProgress):
        assert query.exception() is None
        query.processAllAvailable()
    query.stop()
    check_sink(spark.read.parquet(str(tmp_path / "sink")), traffic)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_across_the_seam_reads_each_record_once(
    spark: SparkSession, tiered: TieredTopic, traffic: Traffic, tmp_path: Path
) -> None:
    options = dict(options_of(tiered, startingOffsets="earliest", maxOffsetsPerTrigger=100))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"options": options, "checkpoint": f"{tmp_path}/checkpoint", "sink": f"{tmp_path}/sink"}))
    traffic.turn()
    killed, moments = 0, random.Random(6)
    for after in (moments.uniform(1, 5), moments.uniform(3, 8)):
        with traffic.turning(15):
            killed += run_killed(job, after=after)
    assert killed, "no run was long enough to be killed"
    with started(job) as process:
        assert process.wait(400) == 0
    check_sink(spark.read.parquet(str(tmp_path / "sink")), traffic)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) > 2


def check_sink(frame: DataFrame, traffic: Traffic) -> None:
    rows = [row.asDict() for row in frame.collect()]
    assert {partition: values_of(rows, partition) for partition in PARTITIONS} == traffic.written
