"""Streams whose offsets cannot be read: they fail with one sentence, or warn once and continue."""

from __future__ import annotations

import logging

import pytest

from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, values
from tests.support.spark.spark_stream_topics import Bucket, Query, rows_between
from tieredstore.errors import DataLossError


def two_queries(bucket: Bucket) -> tuple[Query, Query]:
    """Return two queries that have read everything: one fails on data loss, the other continues."""
    queries = Query(bucket.reader()), Query(bucket.reader(failOnDataLoss="false"))
    for query in queries:
        query.run()
        query.rows.clear()
    return queries


def check_loss(queries: tuple[Query, Query], caplog: pytest.LogCaptureFixture, sentence: str) -> list[bytes]:
    """Assert that the strict query fails with this sentence; return the lenient query's values."""
    strict, lenient = queries
    for _ in range(2):  # a retry fails too
        with pytest.raises(DataLossError, match="failOnDataLoss") as error:
            strict.trigger()
        assert str(error.value).startswith(sentence)
    assert strict.rows == []
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        lenient.run()
        lenient.run()
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1, caplog.text
    return lenient.rows


def test_retention_passing_by(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    first = bucket.write(10)
    queries = two_queries(bucket)
    bucket.delete(first, bucket.write(10))
    bucket.write(10)
    sentence = f"orders-0 ({FIRST_ID}) begins at offset 20, but was read up to 10"
    assert check_loss(queries, caplog, sentence) == values(range(20, 30))


def test_retention_of_what_was_read_is_no_loss(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    first = bucket.write(10)
    queries = two_queries(bucket)
    bucket.write(10)
    bucket.delete(first)
    for query in queries:
        assert query.trigger() == values(range(10, 20))
    assert [one.message for one in caplog.records if one.name.startswith("tieredstore.")] == []


def test_a_hole_between_segments(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(10)
    strict, lenient = two_queries(bucket)
    bucket.write(5, skip=5)
    with pytest.raises(DataLossError, match="10 to 14 of orders-0"):
        strict.trigger()
    assert lenient.trigger() == values(range(15, 20))
    assert "10" in caplog.text


def test_a_topic_created_again(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    segments = [bucket.write(10), bucket.write(10, partition=1)]
    queries = two_queries(bucket)
    bucket.delete(*segments)
    bucket.write(3, topic_id=SECOND_ID)
    sentence = (
        f"topic orders was created again as {SECOND_ID}, and {FIRST_ID} was read up to offsets orders-0 10, orders-1 10"
    )
    assert check_loss(queries, caplog, sentence) == values(range(3))
    assert queries[1].start["offsets"] == {"orders": {"0": 3}}
    assert queries[1].start["topicIds"] == {"orders": str(SECOND_ID)}


def test_a_topic_created_again_beside_the_old_one(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(10)
    queries = two_queries(bucket)
    bucket.write(3, topic_id=SECOND_ID)
    sentence = f"topic orders was created again as {SECOND_ID}, and {FIRST_ID} was read up to offsets orders-0 10"
    assert check_loss(queries, caplog, sentence) == values(range(3))


def test_the_old_one_can_be_held_on_to(bucket: Bucket) -> None:
    bucket.write(10)
    query = Query(bucket.reader(topicIds=f'{{"orders": "{FIRST_ID}"}}'))
    bucket.write(3, topic_id=SECOND_ID)
    assert query.trigger() == values(range(10))
    assert query.trigger() == []


def test_a_partition_that_is_gone_and_comes_back(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    gone = bucket.write(10, partition=1)
    bucket.write(10)
    queries = two_queries(bucket)
    bucket.delete(gone)
    sentence = f"orders-1 ({FIRST_ID}) is gone, but was read up to offset 10"
    assert check_loss(queries, caplog, sentence) == []
    bucket.write(5, partition=1)
    for query in queries:
        assert query.trigger() == values(range(10, 15), partition=1)


def test_a_topic_that_is_gone(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    gone = bucket.write(10)
    queries = two_queries(bucket)
    bucket.delete(gone)
    assert check_loss(queries, caplog, f"orders-0 ({FIRST_ID}) is gone, but was read up to offset 10") == []


def test_a_log_that_lost_its_end(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(10)
    lost = bucket.write(10)
    queries = two_queries(bucket)
    bucket.delete(lost)
    bucket.ends["orders", 0, FIRST_ID] = 10
    sentence = f"orders-0 ({FIRST_ID}) ends at offset 10, but was read up to 20"
    assert check_loss(queries, caplog, sentence) == []
    bucket.write(3)
    assert queries[1].trigger() == values(range(10, 13))


def test_a_new_partition_without_its_beginning(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(10)
    queries = two_queries(bucket)
    bucket.write(4, partition=1, skip=6)
    sentence = "orders-1 is new, but begins at offset 6 instead of 0"
    assert check_loss(queries, caplog, sentence) == values(range(6, 10), partition=1)


def test_a_batch_read_again_whose_offsets_are_gone(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    segments = [bucket.write(10), bucket.write(10)]
    bucket.write(10)
    query = Query(bucket.reader())
    start = query.start
    query.trigger()
    bucket.delete(*segments)
    with pytest.raises(DataLossError, match="begins at offset 20, but was read up to 0"):
        rows_between(bucket.reader(), start, query.start)
    lenient = bucket.reader(failOnDataLoss="false")
    assert rows_between(lenient, start, query.start) == values(range(20, 30))
    assert caplog.text.count("begins at offset 20") == 1
