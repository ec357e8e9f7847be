"""A bucket of the raw layout together with a broker that has real topic ids. The broker's log lacks the topic's
beginning.

The layout stores no topic ids. Readers derive ids from names; a derived id never contradicts a real one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from tests.places.test_raw_readers import written
from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import Produced, delete_records, delete_topic, make_topic, producer_of, send
from tests.support.kafka.live_topics import SMALL_SEGMENTS
from tests.support.pipelines.pipeline_runs import listed_offsets, pipeline_of, texts
from tests.support.records.topic_reads import read_topic
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_stream_topics import Query
from tests.support.spark.spark_tasks import rows_in
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.errors import DataLossError
from tieredstore.kafka.logdir import discover
from tieredstore.kafka.records.columns import int64_values
from tieredstore.live import LiveCluster
from tieredstore.model import Uuid
from tieredstore.partitions.selections import Subscribe
from tieredstore.pipelines import Parts, Runner
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.reading.tail import LogTail
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RECORDS: Final = 600
BEGINS: Final = 200
"""Start of the broker's log: earlier records are in the bucket alone."""

DEADLINE_S: Final = 120.0


class Raw(NamedTuple):
    topic: str
    topic_id: Uuid
    servers: str
    settings: dict[str, str]
    stored: int
    """End offset of the topic in the bucket."""

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers}

    def manager(self) -> RemoteStorageManager:
        return RemoteStorageManager(settings_from(self.settings))


@pytest.fixture(scope="module")
def raw(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """Write 600 records whose values are their offsets: the first are only in the bucket, some hundreds in both
    places, and the last only on the broker.
    """
    return make_raw(kafka, tmp_path_factory.mktemp("raw"), make_topic(kafka, SMALL_SEGMENTS))


def fill(kafka: KafkaServer, topic: str) -> None:
    producer = producer_of(kafka)
    for at in range(0, RECORDS, 50):
        send(producer, topic, [Produced(b"k" * 100, b"%d" % offset) for offset in range(at, at + 50)])


def make_raw(kafka: KafkaServer, folder: Path, topic: str) -> Raw:
    fill(kafka, topic)
    store = FilesystemObjectStore(folder)
    *closed, active = (segment for segment in discover(kafka.log_dir).segments if segment.topic == topic)
    for segment in closed:
        for ending in ("index", "timeindex", "log"):
            key = f"p/kafkaCluster1/{topic}-0/{segment.base_offset:020}.{ending}"
            store.put(key, segment.path(ending).read_bytes())
    assert BEGINS < active.base_offset < RECORDS
    delete_records(kafka, topic, BEGINS)
    layout = {"key.prefix": "p/", "endpoint.layout": "pinterest", "endpoint.cluster": "kafkaCluster1"}
    place = {"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": "8192"}
    with LiveCluster({"bootstrap.servers": kafka.bootstrap_servers}, isolation="read_committed") as cluster:
        topic_id = cluster.topic(topic).topic_id
    return Raw(topic, topic_id, kafka.bootstrap_servers, layout | place, active.base_offset)


def consumed(raw: Raw, mode: str, count: int, *, group: str, start: int | None = None) -> list[int]:
    """Return the ``count`` offsets that a member receives."""
    given = {
        "bootstrap.servers": raw.servers, "group.id": group, "auto.offset.reset": "earliest",
        "tiered.storage.mode": mode, "tiered.storage.settings": raw.settings, "log_level": 2,
    }  # fmt: skip
    offsets: list[int] = []
    end = time.monotonic() + DEADLINE_S
    with Consumer(given) as consumer:
        if start is not None:
            consumer.commit(offsets=[TopicPartition(raw.topic, 0, start)], asynchronous=False)
        consumer.subscribe([raw.topic])
        while len(offsets) < count and time.monotonic() < end:
            for message in consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                offsets.append(message.offset() or 0)
                assert message.value() == b"%d" % offsets[-1]
    return offsets


@pytest.mark.parametrize("start", [0, 100])
@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred", "remote_only"])
def test_a_member_reads_the_bucket_in_each_mode(raw: Raw, mode: str, start: int) -> None:
    """A member whose committed offset the broker has deleted continues from the bucket, and is not reset."""
    stop = raw.stored if mode == "remote_only" else RECORDS
    group = f"{raw.topic}-{mode}-{start}"
    offsets = consumed(raw, mode, stop - start, group=group, start=start or None)
    assert offsets == list(range(start, stop))


def by_query(raw: Raw, **more: Any) -> list[int]:
    with raw.manager() as manager:
        rows = pa.table(read_topic(manager, raw.topic, client=raw.client, **more)).to_pylist()
    assert [row["value"] for row in rows] == [b"%d" % row["offset"] for row in rows]
    return [row["offset"] for row in rows]


def by_spark(raw: Raw, **more: str) -> list[int]:
    options = {**raw.settings, "subscribe": raw.topic, "kafka.bootstrap.servers": raw.servers, **more}
    return [row["offset"] for row in rows_in(options)]


READERS: Final[Mapping[str, Callable[[Raw], list[int]]]] = {
    "query": by_query,
    "query-by-the-brokers-id": lambda raw: by_query(raw, topic_id=raw.topic_id),
    "spark": by_spark,
    "spark-by-the-brokers-id": lambda raw: by_spark(raw, topicIds=json.dumps({raw.topic: str(raw.topic_id)})),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_batch_has_bucket_and_broker_as_one_log(raw: Raw, reader: str) -> None:
    assert READERS[reader](raw) == list(range(RECORDS))


def test_commands_show_bucket_and_broker_as_one_log(raw: Raw, tmp_path: Path) -> None:
    words = ("-c", written(raw.settings, tmp_path), "--bootstrap-server", raw.servers)
    printed = tieredstore("cat", raw.topic, "-p", "0", "--json", *words)
    assert printed.code == 0, printed.stderr
    assert [json.loads(line)["offset"] for line in printed.text.splitlines()] == list(range(RECORDS))
    shown = tieredstore("ls", raw.topic, "--json", *words)
    assert shown.code == 0, shown.stderr
    ((row,), summary) = shown.rows
    assert (row["earliest_offset"], row["end_offset"], row["lost"]) == (0, raw.stored, [])
    assert (row["broker_earliest_offset"], row["broker_end_offset"]) == (BEGINS, RECORDS)
    assert row["not_stored"] == summary["not_stored"] == RECORDS - raw.stored
    exported = tieredstore("cat", raw.topic, "-o", tmp_path / "out", *words)
    assert exported.code == 0, exported.stderr


def test_a_tail_goes_on_from_the_bucket_to_the_broker(raw: Raw) -> None:
    query = LogQuery(Subscribe((raw.topic,)), client=raw.client)
    offsets: list[int] = []
    end = time.monotonic() + DEADLINE_S
    with raw.manager() as manager, LogTail(manager, query, {(raw.topic, 0): 0}) as tail:
        while len(offsets) < RECORDS and time.monotonic() < end:
            if (given := tail.poll(1.0)) is not None:
                offsets += int64_values(given.records, "offset")
                assert given.topic_id == raw.topic_id
    assert offsets == list(range(RECORDS))


def stream(raw: Raw, *, with_broker: bool) -> StreamReader:
    broker = {"kafka.bootstrap.servers": raw.servers} if with_broker else {}
    options = {**raw.settings, "subscribe": raw.topic, "startingOffsets": "earliest", **broker}
    return StreamReader(parse_options(options, streaming=True))


def test_a_stream_goes_on_when_a_broker_comes_and_goes(raw: Raw) -> None:
    """The stream's checkpoint has first the derived id and later the real one, and both mean the same topic."""
    query = Query(stream(raw, with_broker=False))
    query.run()
    assert len(query.rows) == raw.stored
    derived = query.start["topicIds"][raw.topic]
    query.reader = stream(raw, with_broker=True)
    query.run()
    assert query.rows == [b"%d" % offset for offset in range(RECORDS)]
    assert derived != query.start["topicIds"][raw.topic] == str(raw.topic_id)
    # Without the broker, the records that the bucket does not have yet are missing. The error names this loss; it does
    # not say that the topic is another one.
    query.reader = stream(raw, with_broker=False)
    with pytest.raises(DataLossError, match=f"ends at offset {raw.stored}, but was read up to {RECORDS}"):
        query.run()


def test_a_pipeline_writes_bucket_and_broker_as_one_log(raw: Raw) -> None:
    """A pipeline begins without a broker and continues with one; its commit log keeps the topic's first id."""
    store = MemoryObjectStore()
    for broker, stop in (({}, raw.stored), ({"kafka.bootstrap.servers": raw.servers}, RECORDS)):
        own = pipeline_of(**texts({"secor.kafka.topic_filter": raw.topic, **broker}))
        with raw.manager() as manager, Runner(own, Parts(store, manager), threads=1) as runner:
            list(runner.run_once())
        assert listed_offsets(store) == list(range(stop))


def test_real_ids_still_contradict_each_other(kafka: KafkaServer, tmp_path: Path) -> None:
    """A stream that knows the real id notices when the topic is re-created, whatever the bucket's layout."""
    topic = make_topic(kafka, SMALL_SEGMENTS)
    first = make_raw(kafka, tmp_path, topic)
    query = Query(stream(first, with_broker=True))
    query.run()
    delete_topic(kafka, topic)
    fill(kafka, make_topic(kafka, SMALL_SEGMENTS, name=topic))
    query.reader = stream(first, with_broker=True)
    with pytest.raises(DataLossError, match=f"{first.topic_id}"):
        query.run()
    with first.manager() as manager, pytest.raises(DataLossError, match=f"topic_ids names {first.topic_id}"):
        survey_logs(manager, LogQuery(Subscribe((topic,)), client=first.client, topic_ids={topic: first.topic_id}))
