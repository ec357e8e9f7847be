"""Tests of windows across the seam: a reader gets the bucket's records and then the broker's, each once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.kafka_topics import Produced, delete_records, produce_transaction
from tests.support.kafka.live_topics import TieredTopic
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Assign, Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.survey import survey_logs
from tieredstore.records.settings import ReadSettings

COUNT = 1000
SETTINGS = ReadSettings(columns=("offset", "value"))


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield a topic. The value of each record is its offset."""
    topic = TieredTopic(kafka, tmp_path)
    topic.produce([Produced(b"k" * 100, b"%d" % at) for at in range(COUNT)])
    yield topic
    topic.close()


def query_of(tiered: TieredTopic, **more: Any) -> LogQuery:
    return LogQuery(Subscribe((tiered.topic,)), client={"bootstrap.servers": tiered.server.bootstrap_servers}, **more)


def log_of(tiered: TieredTopic, query: LogQuery) -> PartitionLog:
    return survey_logs(tiered.manager, query).logs[tiered.topic, 0]


def reader_of(topics: TieredTopic | Bucket, query: LogQuery) -> TopicReader:
    return TopicReader(lambda: topics.manager, query, SETTINGS)


def offsets(batches: Iterator[Any], values: bool = True) -> list[int]:
    """Return the offsets after comparing them with the values."""
    read: list[int] = []
    for batch in batches:
        assert batch.num_rows
        columns = batch.to_pydict()
        if values:
            assert columns["value"] == [b"%d" % offset for offset in columns["offset"]]
        read += columns["offset"]
    return read


def test_windows_on_both_sides_of_the_seam_and_across(tiered: TieredTopic) -> None:
    seam = tiered.tier(but_last=1)
    query = query_of(tiered)
    log = log_of(tiered, query)
    assert (log.earliest, log.seam, log.end) == (0, seam, COUNT)
    with reader_of(tiered, query) as reader:
        for start, stop in ((0, COUNT), (3, seam), (seam, COUNT - 1), (seam - 1, seam + 1), (seam, seam), (7, 8)):
            assert offsets(reader.read(log, start, stop)) == list(range(start, stop))


def test_the_columns_are_those_asked_for_on_both_sides(tiered: TieredTopic) -> None:
    tiered.tier(but_last=1)
    query = query_of(tiered)
    for columns in (("value",), ("timestamp", "key", "headers")):
        with TopicReader(lambda: tiered.manager, query, ReadSettings(columns=columns)) as reader:
            batches = list(reader.read(log_of(tiered, query), 0, COUNT))
        assert {tuple(batch.schema.names) for batch in batches} == {columns}
        assert len({str(batch.schema) for batch in batches}) == 1
        assert sum(batch.num_rows for batch in batches) == COUNT


def test_records_copied_and_deleted_meanwhile_come_from_the_bucket(tiered: TieredTopic) -> None:
    tiered.tier(but_last=3)
    query = query_of(tiered)
    log = log_of(tiered, query)
    delete_records(tiered.server, tiered.topic, tiered.tier())
    with reader_of(tiered, query) as reader:
        assert offsets(reader.read(log, 0, COUNT)) == list(range(COUNT))


def test_a_hole_at_the_seam_by_the_querys_policy(tiered: TieredTopic, caplog: pytest.LogCaptureFixture) -> None:
    seam = tiered.tier(but_last=1)
    delete_records(tiered.server, tiered.topic, seam + 7)
    query = query_of(tiered)
    log = log_of(tiered, query)
    with pytest.raises(DataLossError, match=f"offsets {seam} to {seam + 6} of {tiered.topic}-0 are not available"):
        TopicReader(lambda: tiered.manager, query).read(log, 0, COUNT)
    with reader_of(tiered, replace(query, on_data_loss="report")) as reader, caplog.at_level(logging.WARNING):
        read = offsets(reader.read(log, 0, COUNT))
    assert read == [*range(seam), *range(seam + 7, COUNT)]
    assert f"offsets {seam} to {seam + 6}" in caplog.text


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions_on_both_sides(tiered: TieredTopic, isolation: Any) -> None:
    aborted = [Produced(b"k" * 100, b"aborted") for _ in range(150)]
    plain = [Produced(b"k" * 100, b"plain") for _ in range(400)]
    # The bucket has the outcome of the first transaction. Only the broker has that of the second.
    produce_transaction(tiered.server, tiered.topic, aborted, "abort")
    tiered.produce(plain)
    tiered.tier()
    produce_transaction(tiered.server, tiered.topic, aborted, "abort")
    query = query_of(tiered, isolation=isolation)
    log = log_of(tiered, query)
    assert COUNT + 150 < log.seam < log.end == COUNT + 702
    of_plain = [*range(COUNT), *range(COUNT + 151, COUNT + 551)]
    of_aborted = [*range(COUNT, COUNT + 150), *range(COUNT + 551, COUNT + 701)]
    everything = isolation == "read_uncommitted"
    with reader_of(tiered, query) as reader:
        read = offsets(reader.read(log, 0, log.end), values=False)
    assert read == sorted([*of_plain, *(of_aborted if everything else [])])


def test_a_segment_that_goes_under_the_reader(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    segments = [bucket.write(100) for _ in range(3)]
    query = LogQuery(Assign((("orders", 0),)))
    log = survey_logs(bucket.manager, query).logs["orders", 0]
    bucket.delete(segments[1])
    with pytest.raises(DataLossError, match=r"offsets 100 to 199 of .* were deleted while they were read"):
        list(reader_of(bucket, query).read(log, 0, 300))
    batches = reader_of(bucket, replace(query, on_data_loss="report")).read(log, 0, 300)
    assert offsets(batches, values=False) == [*range(100), *range(200, 300)]
    assert "were deleted while they were read" in caplog.text


def test_offsets_that_there_are_not(bucket: Bucket) -> None:
    bucket.write(20)
    query = LogQuery(Assign((("orders", 0),)))
    log = survey_logs(bucket.manager, query).logs["orders", 0]
    with pytest.raises(DataLossError, match="offsets 20 to 24 of orders-0 are not available"):
        reader_of(bucket, query).read(log, 0, 25)
    with pytest.raises(ConfigError, match="there are no offsets from 5 up to 4"):
        reader_of(bucket, query).read(log, 5, 4)
