"""Tests with three real brokers and an unclean election. The bucket has segments of the deposed leader.

All replicas have the first 250 records. Only the first leader has the next 300 records, which all readers read. Most of
these 300 records are copied to the bucket. The second leader lacks them, and writes other records at their offsets
until its log is longer than the bucket's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from tests.consumer.test_outages import Log
from tests.places.test_raw_readers import written
from tests.support.cli.cli_process import tieredstore
from tests.support.pipelines.pipeline_runs import listed, pipeline_of, rows_of, texts
from tests.support.records.topic_reads import read_topic
from tests.support.servers.kafka_cluster import KafkaCluster, start_kafka_cluster
from tests.support.spark.spark_stream_topics import Json, Query
from tests.support.spark.spark_tasks import rows_in
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.errors import DataLossError
from tieredstore.model import TopicPartition as Where
from tieredstore.partitions.position import Position
from tieredstore.partitions.selections import Subscribe
from tieredstore.pipelines import Parts, Runner
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

KEPT: Final = 250
LOST: Final = 300
END: Final = 900
DEADLINE_S: Final = 60.0
NOW: Final = [*[f"kept {at}" for at in range(KEPT)], *[f"new {at}" for at in range(END - KEPT)]]
"""The log after the election."""

BEFORE: Final = [*NOW[:KEPT], *[f"lost {at}" for at in range(LOST)]]


@dataclass
class Readers:
    """The topic and its readers. Each reader has a position from before the election."""

    log: Log
    places: Mapping[Where, Position] = field(default_factory=dict[Where, Position])
    checkpoint: Json = field(default_factory=dict[str, Any])
    output: MemoryObjectStore = field(default_factory=MemoryObjectStore)

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.log.cluster.bootstrap_servers}

    @property
    def query(self) -> LogQuery:
        return LogQuery(Subscribe((self.log.topic,)), client=self.client)

    @property
    def options(self) -> dict[str, str]:
        return {
            **self.log.store, "subscribe": self.log.topic, "startingOffsets": "earliest",
            "kafka.bootstrap.servers": self.client["bootstrap.servers"],
        }  # fmt: skip

    def manager(self) -> RemoteStorageManager:
        return RemoteStorageManager(settings_from(self.log.store))

    def stream(self, **more: str) -> StreamReader:
        return StreamReader(parse_options(self.options | more, streaming=True))

    def write_files(self, store: MemoryObjectStore) -> list[str]:
        """Run a pipeline and return the values in its files."""
        own = pipeline_of(
            **texts(
                {
                    "secor.kafka.topic_filter": self.log.topic,
                    "kafka.bootstrap.servers": self.client["bootstrap.servers"],
                }
            )
        )
        with self.manager() as manager, Runner(own, Parts(store, manager), threads=1) as runner:
            list(runner.run_once())
        rows = sorted((row["offset"], row["value"]) for key in listed(store) for row in rows_of(store, key))
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        return words(value for _, value in rows)


def words(values: Iterable[bytes]) -> list[str]:
    return [value.rstrip(b".").decode() for value in values]


def followed(tail: LogTail, count: int) -> list[str]:
    """Return this many records of a tail."""
    values: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < end, len(values)
        if (given := tail.poll(1.0)) is not None:
            untyped: Any = given.records
            values += untyped.column("value").to_pylist()
    return words(values)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Readers]:
    """Yield the readers after the election. One tail was open during the election."""
    with start_kafka_cluster(3) as cluster:
        known = Readers(Log(cluster, tmp_path_factory.mktemp("unclean")))
        known.log.write("kept", KEPT)
        for number in (2, 3):
            cluster.brokers[number].stop()
        known.log.write("lost", LOST)
        assert KEPT + 100 < known.log.copy(cluster.brokers[1]) < KEPT + LOST
        read_before(known)
        elect_uncleanly(cluster, known.log)
        known.log.write("new", END - KEPT)
        yield known


def read_before(known: Readers) -> None:
    where = known.log.topic, 0
    with known.manager() as manager, LogTail(manager, known.query, {where: 0}) as tail:
        assert followed(tail, KEPT + LOST) == BEFORE
        known.places = tail.places
    query = Query(known.stream())
    query.run()
    assert words(query.rows) == BEFORE
    query.reader.stop()
    known.checkpoint = query.start
    assert known.write_files(known.output) == BEFORE


def elect_uncleanly(cluster: KafkaCluster, log: Log) -> None:
    cluster.brokers[1].stop()
    cluster.brokers[2].start()

    def is_elected() -> bool:
        with contextlib.suppress(Exception):
            cluster.elect(log.topic, 0, "UNCLEAN")
        return log.leader == 2

    wait_until(is_elected, passing=(Exception,))


def by_query(known: Readers) -> list[str]:
    with known.manager() as manager:
        rows = pa.table(read_topic(manager, known.log.topic, client=known.client)).to_pylist()
    return words(row["value"] for row in rows)


def by_tail(known: Readers) -> list[str]:
    with known.manager() as manager, LogTail(manager, known.query, {(known.log.topic, 0): 0}) as tail:
        return followed(tail, END)


def by_stream(known: Readers) -> list[str]:
    query = Query(known.stream())
    query.run()
    query.reader.stop()
    return words(query.rows)


FRESH: Final[Mapping[str, Callable[[Readers], list[str]]]] = {
    "query": by_query,
    "spark": lambda known: words(row["value"] for row in rows_in(known.options)),
    "tail": by_tail,
    "stream": by_stream,
    "pipeline": lambda known: known.write_files(MemoryObjectStore()),
}


@pytest.mark.parametrize("reader", FRESH)
def test_who_reads_from_the_beginning_has_the_log_as_it_is_now(readers: Readers, reader: str) -> None:
    assert FRESH[reader](readers) == NOW


def test_cat_prints_the_log_as_it_is_now_and_says_what_it_leaves_out(readers: Readers, tmp_path: Path) -> None:
    servers = readers.client["bootstrap.servers"]
    printed = tieredstore(
        "cat",
        readers.log.topic,
        "-p",
        "0",
        "--json",
        "-c",
        written(readers.log.store, tmp_path),
        "--bootstrap-server",
        servers,
    )
    assert printed.code == 0, printed.stderr
    assert words(json.loads(line)["value"].encode() for line in printed.text.splitlines()) == NOW
    assert f"truncated the log at offset {KEPT}" in printed.stderr


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_a_member_that_begins_has_the_log_as_it_is_now(readers: Readers, mode: str) -> None:
    values: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    with Consumer(readers.log.properties(f"fresh-{mode}", tiered_storage_mode=mode)) as consumer:
        consumer.assign([TopicPartition(readers.log.topic, 0, 0)])
        while len(values) < END:
            assert time.monotonic() < end, len(values)
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
    assert words(values) == NOW


CUT: Final = f"an election truncated the log at offset {KEPT}"


def test_a_tail_that_stood_beyond_the_cut_is_told_and_goes_on_there(readers: Readers) -> None:
    with readers.manager() as manager:
        with LogTail(manager, readers.query, readers.places) as tail, pytest.raises(DataLossError, match=CUT):
            followed(tail, 1)
        lenient = replace(readers.query, on_data_loss="report")
        with LogTail(manager, lenient, readers.places) as tail:
            assert followed(tail, END - KEPT) == NOW[KEPT:]


def test_a_stream_that_stood_beyond_the_cut_is_told_and_goes_on_there(readers: Readers) -> None:
    query = Query(readers.stream())
    query.start = readers.checkpoint
    with pytest.raises(DataLossError, match=CUT):
        query.run()
    query.reader.stop()
    query.reader, query.rows = readers.stream(failOnDataLoss="false"), []
    query.run()
    query.reader.stop()
    assert words(query.rows) == NOW[KEPT:]


def test_a_pipeline_that_has_written_beyond_the_cut_is_told(readers: Readers) -> None:
    with pytest.raises(
        DataLossError,
        match=f"is written up to offset {KEPT + LOST - 1}, but a later leader epoch .* from offset {KEPT} on",
    ):
        readers.write_files(readers.output)
