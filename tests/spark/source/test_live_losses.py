"""Records lost in bucket or broker, a bucket and a broker that do not match, and ways to connect to a broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    delete_records,
    delete_topic,
    end_offset,
    make_topic,
    producer_of,
    send,
)
from tests.support.kafka.live_topics import TieredTopic
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import PASSWORD, USER, KafkaServer
from tests.support.servers.process import unanswered_port
from tests.support.spark.spark_session import read
from tests.support.spark.spark_stream_topics import Query
from tests.support.spark.spark_tasks import as_texts, error_of, reader_of, rows_in, rows_of_task, tasks_of
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import BrokerUnavailableError, ConfigError, DataLossError, ResourceNotFoundError
from tieredstore.live import LiveCluster
from tieredstore.model import Uuid
from tieredstore.reading import survey
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.streaming import StreamReader

COUNT = 1000
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield a topic whose records have their offsets as values."""
    topic = TieredTopic(kafka, tmp_path)
    producer = producer_of(kafka)
    for start in range(0, COUNT, 100):
        send(producer, topic.topic, [Produced(b"k" * 100, b"%d" % at) for at in range(start, start + 100)])
    yield topic
    topic.close()


def options_of(tiered: TieredTopic, **more: Any) -> dict[str, Any]:
    return tiered.options(columns="offset,value", includeHeaders=False, **more)


def offsets(tiered: TieredTopic, **more: Any) -> list[int]:
    """Return the offsets of a batch's rows; assert the rows' values."""
    rows = rows_in(options_of(tiered, **more))
    assert [row["value"] for row in rows] == [b"%d" % row["offset"] for row in rows]
    return [row["offset"] for row in rows]


def at(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}})


def check_loss(tiered: TieredTopic, caplog: pytest.LogCaptureFixture, *lost: str, **more: Any) -> list[int]:
    """Assert that a strict query fails and names the remedy, and that a lenient one warns; return its offsets."""
    error = error_of(options_of(tiered, **more))
    assert isinstance(error, DataLossError)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tieredstore.spark"):
        offsets_read = offsets(tiered, failOnDataLoss=False, **more)
    for words in lost:
        assert words in str(error)
    assert "failOnDataLoss" in str(error)
    assert caplog.records
    return offsets_read


def topic_id_of(server: KafkaServer, topic: str) -> Uuid:
    with LiveCluster({"bootstrap.servers": server.bootstrap_servers}, isolation="read_committed") as cluster:
        return cluster.topic(topic).topic_id


def test_what_the_broker_deleted_is_read_from_the_bucket(tiered: TieredTopic) -> None:
    seam = tiered.tier(but_last=1)
    assert 0 < seam < COUNT
    for before in (1, seam - 1, seam):
        delete_records(tiered.server, tiered.topic, before)
        assert offsets(tiered) == list(range(COUNT))
    delete_records(tiered.server, tiered.topic, COUNT)
    assert offsets(tiered, endingOffsets=at(tiered.topic, seam)) == list(range(seam))


def test_a_hole_between_bucket_and_broker(tiered: TieredTopic, caplog: pytest.LogCaptureFixture) -> None:
    seam = tiered.tier(but_last=1)
    delete_records(tiered.server, tiered.topic, seam + 7)
    lost = f"offsets {seam} to {seam + 6} of {tiered.topic}-0 are not available"
    assert check_loss(tiered, caplog, lost) == [*range(seam), *range(seam + 7, COUNT)]
    inside = {"startingOffsets": at(tiered.topic, seam + 2), "endingOffsets": at(tiered.topic, seam + 4)}
    lost = f"offsets {seam + 2} to {seam + 3} of {tiered.topic}-0 are not available"
    assert check_loss(tiered, caplog, lost, **inside) == []
    for start, stop in ((0, seam), (seam + 7, COUNT)):
        beside = {"startingOffsets": at(tiered.topic, start), "endingOffsets": at(tiered.topic, stop)}
        assert offsets(tiered, **beside) == list(range(start, stop))


def test_retention_of_the_bucket(tiered: TieredTopic, caplog: pytest.LogCaptureFixture) -> None:
    tiered.tier(but_last=1)
    first, *_, last = sorted(tiered.copied.values(), key=lambda metadata: metadata.start_offset)
    begins = first.end_offset + 1
    delete_records(tiered.server, tiered.topic, last.start_offset)
    tasks_at_once = reader_of(options_of(tiered))
    planned = tasks_of(tasks_at_once)
    tiered.manager.delete_log_segment_data(first)
    with pytest.raises(DataLossError, match=r"offsets \d+ to \d+ of .* were deleted while they were read"):
        _ = [rows_of_task(tasks_at_once, task) for task in planned]
    assert offsets(tiered) == list(range(begins, COUNT))
    lost = f"offsets 0 to {begins - 1} of {tiered.topic}-0 are not available"
    assert check_loss(tiered, caplog, lost, startingOffsets=at(tiered.topic, 0)) == list(range(begins, COUNT))
    tiered.manager.delete_log_segment_data(last)
    seam = max(m.end_offset for m in tiered.copied.values() if m is not last) + 1
    assert offsets(tiered) == list(range(begins, COUNT))  # the broker still has the following records
    delete_records(tiered.server, tiered.topic, last.end_offset + 1)
    lost = f"offsets {seam} to {last.end_offset} of {tiered.topic}-0 are not available"
    assert check_loss(tiered, caplog, lost) == [*range(begins, seam), *range(last.end_offset + 1, COUNT)]


def test_retention_of_the_broker_passes_by_a_planned_task(
    tiered: TieredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    seam = tiered.tier(but_last=2)
    readers = [reader_of(options_of(tiered, failOnDataLoss=fail)) for fail in (True, False)]
    (*_, live) = tasks_of(readers[0])
    gone = seam + 5
    delete_records(tiered.server, tiered.topic, gone)
    with pytest.raises(DataLossError, match=rf"^offsets {seam} to {gone - 1} are gone from {tiered.topic}-0 "):
        rows_of_task(readers[0], live)
    with caplog.at_level(logging.WARNING, "tieredstore.spark"):
        offsets_read = [row["offset"] for row in rows_of_task(readers[1], live)]
    assert offsets_read == list(range(gone, COUNT))
    assert f"offsets {seam} to {gone - 1} are gone" in caplog.text


def test_what_was_tiered_after_the_planning_is_read_from_the_bucket(tiered: TieredTopic) -> None:
    seam = tiered.tier(but_last=3)
    reader = reader_of(options_of(tiered, maxRecordsPerPartition=70))
    tasks = tasks_of(reader)
    later = tiered.tier()
    assert later > seam
    delete_records(tiered.server, tiered.topic, later)
    offsets_read = [row["offset"] for task in tasks for row in rows_of_task(reader, task)]
    assert offsets_read == list(range(COUNT))


def test_what_is_tiered_while_the_bucket_is_listed_is_no_hole(
    tiered: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered.tier(but_last=3)

    def listed(*args: Any, **more: Any) -> Catalog:
        catalog = load_catalog(*args, **more)
        delete_records(tiered.server, tiered.topic, tiered.tier())
        return catalog

    monkeypatch.setattr(survey, "load_catalog", listed)
    assert offsets(tiered) == list(range(COUNT))


def test_a_transaction_that_a_segment_to_come_decides_is_waited_for(
    tiered: TieredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    fill = [Produced(b"k" * 100, b"plain") for _ in range(100)]
    opened = Transaction(tiered.server)
    opened.send(tiered.topic, [Produced(None, b"decided later")])
    for _ in range(5):
        send(producer_of(tiered.server), tiered.topic, fill)
    opened.end("commit")
    seam = tiered.tier()
    delete_records(tiered.server, tiered.topic, seam)
    end = end_offset(tiered.server, tiered.topic)
    assert COUNT < seam < end
    with caplog.at_level(logging.WARNING, "tieredstore.spark"):
        assert offsets(tiered) == list(range(COUNT))
    assert f"{tiered.topic}-0 is read up to offset {COUNT - 1}" in caplog.text
    stream = Query(StreamReader(parse_options(stream_options(tiered), streaming=True)))
    stream.run()
    assert len(stream.rows) == COUNT
    behind = options_of(tiered, startingOffsets=at(tiered.topic, seam))
    assert [row["offset"] for row in rows_in(behind)] == list(range(seam, end - 1))
    while tiered.tier() < end:
        send(producer_of(tiered.server), tiered.topic, fill)
    again = Query(StreamReader(parse_options(stream_options(tiered), streaming=True)))
    again.start = stream.start
    again.run()
    assert again.rows == [row["value"] for row in rows_in(options_of(tiered, startingOffsets=at(tiered.topic, COUNT)))]
    assert again.rows[0] == b"decided later"
    stream.reader.stop()
    again.reader.stop()


def stream_options(tiered: TieredTopic) -> dict[str, str]:
    return as_texts(options_of(tiered, startingOffsets="earliest"))


def test_a_topic_created_again(tiered: TieredTopic, caplog: pytest.LogCaptureFixture) -> None:
    tiered.tier()
    old = topic_id_of(tiered.server, tiered.topic)
    delete_topic(tiered.server, tiered.topic)
    assert check_loss(
        tiered, caplog, f"topic {tiered.topic} is in the bucket, but the broker has no such topic"
    ) == list(range(max(metadata.end_offset for metadata in tiered.copied.values()) + 1))
    make_topic(tiered.server, name=tiered.topic)
    send(producer_of(tiered.server), tiered.topic, [Produced(None, b"%d" % number) for number in range(3)])
    new = topic_id_of(tiered.server, tiered.topic)
    lost = f"topic {tiered.topic} was created again: its id is {new} on the broker and {old} in the bucket"
    assert check_loss(tiered, caplog, lost) == [0, 1, 2]


def test_a_broker_that_is_behind_the_bucket(
    kafka: KafkaServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, bucket = make_topic(kafka), Bucket(tmp_path)
    send(producer_of(kafka), topic, [Produced(None, b"of the broker") for _ in range(10)])
    bucket.write(100, topic, topic_id=topic_id_of(kafka, topic))
    options = {**bucket.options, "subscribe": topic, "kafka.bootstrap.servers": kafka.bootstrap_servers}
    error = error_of(options)
    assert isinstance(error, DataLossError)
    assert topic in str(error)
    assert "ends at offset 9, but the bucket has records up to offset 99" in str(error)
    with caplog.at_level(logging.WARNING, "tieredstore.spark"):
        assert [row["offset"] for row in rows_in({**options, "failOnDataLoss": False})] == list(range(100))
    assert "ends at offset 9, but the bucket has records up to offset 99" in caplog.text
    bucket.close()


def test_a_topic_that_neither_has(tiered: TieredTopic) -> None:
    error = error_of(options_of(tiered) | {"subscribe": f"{tiered.topic},nowhere"})
    assert isinstance(error, ResourceNotFoundError)
    assert "there is no topic 'nowhere' in the bucket or on the broker" in str(error)


def test_a_broker_that_is_not_there(tiered: TieredTopic) -> None:
    with unanswered_port() as port:
        nobody = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "kafka.default.api.timeout.ms": "2000"}
        error = error_of(options_of(tiered) | nobody)
    assert isinstance(error, BrokerUnavailableError)
    assert nobody["kafka.bootstrap.servers"] in str(error)
    assert "\n" not in str(error)
    for wrong in ("0", "a minute", "9" * 400):
        error = error_of(options_of(tiered) | nobody | {"kafka.default.api.timeout.ms": wrong})
        assert isinstance(error, ConfigError)
        assert "the option kafka.default.api.timeout.ms is" in str(error)
        assert len(str(error)) < 200


def test_sentences_and_logins_in_spark(
    spark: SparkSession, tiered: TieredTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    seam = tiered.tier(but_last=1)
    listener = {"kafka.bootstrap.servers": tiered.server.sasl_servers, "kafka.security.protocol": "SASL_PLAINTEXT"}

    def login(password: str) -> dict[str, str]:
        jaas = f'{JAAS} required username="{USER}" password="{password}";'
        return {**listener, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}

    df = read(spark, options_of(tiered) | login(PASSWORD)).selectExpr("sum(offset) as total", "count(*) as count")
    df.explain(mode="extended")
    assert df.collect()[0].asDict() == {"total": sum(range(COUNT)), "count": COUNT}
    explained = capsys.readouterr().out
    assert "tieredstore" in explained
    refused = failure(spark, options_of(tiered) | login("not-the-password"))
    delete_records(tiered.server, tiered.topic, seam + 7)
    hole = failure(spark, options_of(tiered) | login(PASSWORD))
    assert "BrokerDeniedError" in refused
    assert f"DataLossError: offsets {seam} to {seam + 6} of {tiered.topic}-0 are not available" in hole
    for said in (explained, refused, hole):
        assert "Traceback" not in said
        assert PASSWORD not in said
        assert "not-the-password" not in said
    assert end_offset(tiered.server, tiered.topic) == COUNT


def failure(spark: SparkSession, options: dict[str, Any]) -> str:
    """Return Spark's message for a failing batch."""
    with pytest.raises(PySparkException) as raised:
        read(spark, options).collect()
    return str(raised.value)
