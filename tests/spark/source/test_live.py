"""Bucket and broker read as one log: the same records as a Kafka consumer's, wherever the bucket ends."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.kafka_topics import (
    CODECS,
    Transaction,
    consumed,
    end_offset,
    produce_transaction,
    random_produced,
)
from tests.support.kafka.live_topics import TieredTopic
from tests.support.servers.kafka import KafkaServer

ISOLATIONS = ("read_committed", "read_uncommitted")


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    topic = TieredTopic(kafka, tmp_path)
    yield topic
    topic.close()


def write_all_kinds(tiered: TieredTopic, source: random.Random) -> None:
    """Write records with each codec, inside and outside transactions."""
    for codec in CODECS:
        tiered.produce(random_produced(source, 250), codec=codec)
        produce_transaction(
            tiered.server, tiered.topic, random_produced(source, 80), source.choice(["commit", "abort"])
        )
        produce_transaction(tiered.server, tiered.topic, random_produced(source, 20), "abort")
        produce_transaction(tiered.server, tiered.topic, random_produced(source, 20), "commit")


def test_rows_are_those_of_a_consumer_wherever_the_seam_is(spark: SparkSession, tiered: TieredTopic) -> None:
    source = random.Random(7)
    write_all_kinds(tiered, source)
    end = end_offset(tiered.server, tiered.topic)
    wanted = {isolation: consumed(tiered.server, tiered.topic, 0, end, isolation=isolation) for isolation in ISOLATIONS}
    assert tiered.rows(spark) == wanted["read_committed"]  # all from the broker
    seam = tiered.tier(but_last=2)
    assert 0 < seam < end
    for isolation in ISOLATIONS:
        assert tiered.rows(spark, isolationLevel=isolation) == wanted[isolation]
    for start, stop in [(0, seam), (seam, end), (seam - 1, seam + 1), *windows(source, seam, end)]:
        bounds = {"startingOffsets": offsets(tiered, start), "endingOffsets": offsets(tiered, stop)}
        isolation = source.choice(ISOLATIONS)
        inside = [row for row in wanted[isolation] if start <= row["offset"] < stop]
        assert tiered.rows(spark, isolationLevel=isolation, maxSplitBytes=5000, **bounds) == inside


def offsets(tiered: TieredTopic, offset: int) -> str:
    return json.dumps({tiered.topic: {"0": offset}})


def windows(source: random.Random, seam: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield random windows before, across and after the end of the bucket."""
    for low, high in [(0, end), (0, seam), (seam, end)]:
        start = source.randrange(low, high)
        yield start, source.randrange(start, high)


def test_a_time_is_found_on_either_side_of_the_seam(spark: SparkSession, tiered: TieredTopic) -> None:
    source = random.Random(8)
    write_all_kinds(tiered, source)
    tiered.tier(but_last=3)
    end = end_offset(tiered.server, tiered.topic)
    rows = consumed(tiered.server, tiered.topic, 0, end, isolation="read_committed")
    latest = max(row["timestamp"] for row in rows)
    for moment in (0, latest - 5_000_000, latest):
        # Control markers have the time of the broker's clock, which is later than all records' times.
        first = next(row["offset"] for row in rows if row["timestamp"] >= moment)
        read = tiered.rows(spark, startingTimestamp=moment, columns="partition,offset,timestamp")
        assert read
        assert read[0]["offset"] <= first
        assert [row["offset"] for row in read] == [r["offset"] for r in rows if r["offset"] >= read[0]["offset"]]


def test_an_open_transaction_ends_the_read_until_it_is_decided(spark: SparkSession, tiered: TieredTopic) -> None:
    source = random.Random(9)
    tiered.produce(random_produced(source, 100))
    opened = Transaction(tiered.server)
    opened.send(tiered.topic, random_produced(source, 5))
    tiered.produce(random_produced(source, 900))
    seam = tiered.tier()
    assert seam > 200  # a transaction is open at the end of the bucket, and at the end of the broker's log
    assert [row["offset"] for row in tiered.rows(spark)] == list(range(100))
    assert len(tiered.rows(spark, isolationLevel="read_uncommitted")) == 1005
    opened.end("commit")
    end = end_offset(tiered.server, tiered.topic)
    read = tiered.rows(spark)
    assert len(read) == 1005
    assert read == consumed(tiered.server, tiered.topic, 0, end, isolation="read_committed")


def test_partitions_that_only_one_of_the_two_has_are_read(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    tiered = TieredTopic(kafka, tmp_path, partitions=3)
    source = random.Random(10)
    for partition in (0, 2):
        tiered.produce(random_produced(source, 700), partition=partition)
        tiered.tier()
    tiered.produce(random_produced(source, 10), partition=1)
    wanted = [
        row
        for partition, count in enumerate((700, 10, 700))
        for row in consumed(kafka, tiered.topic, 0, count, isolation="read_committed", partition=partition)
    ]
    assert tiered.rows(spark, minPartitions=7) == wanted
    tiered.close()
