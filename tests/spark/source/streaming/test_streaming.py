"""The stream reader driven as by Spark, but without Spark: batches, growing topics, restarts, limits and data
loss.
"""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, values
from tests.support.spark.spark_stream_topics import Bucket, Query, over_the_wire, rows_between
from tieredstore.errors import ConfigError, DataLossError, ResourceNotFoundError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.model import TopicIdPartition
from tieredstore.spark.source.streaming import StreamReader
from tieredstore.testing.segments import Producer, Record, build_batch


def test_segments_that_arrive_are_read_once_each(bucket: Bucket) -> None:
    bucket.write(30)
    query = Query(bucket.reader())
    assert query.trigger() == values(range(30))
    assert query.trigger() == []
    bucket.write(5)
    bucket.write(12)
    assert query.trigger() == values(range(30, 47))
    assert query.trigger() == []


def test_the_checkpoint_says_topics_partitions_offsets_and_ids(bucket: Bucket) -> None:
    bucket.write(30)
    bucket.write(4, partition=1)
    query = Query(bucket.reader())
    query.run()
    assert query.start == {
        "version": 1,
        "offsets": {"orders": {"0": 30, "1": 4}},
        "topicIds": {"orders": str(FIRST_ID)},
        "epochs": {"orders": {"0": 0, "1": 0}},
        "initialOffsets": {"orders": {"0": 0, "1": 0}},
    }


def test_latest_begins_at_the_end(bucket: Bucket) -> None:
    bucket.write(30)
    query = Query(bucket.reader(startingOffsets="latest"))
    assert query.trigger() == []
    bucket.write(5)
    assert query.trigger() == values(range(30, 35))


def test_a_new_partition_and_a_new_topic_begin_at_their_beginning(bucket: Bucket) -> None:
    bucket.write(30)
    query = Query(bucket.reader(subscribePattern="ord.*", startingOffsets="latest"))
    assert query.trigger() == []
    bucket.write(3, partition=1)
    assert query.trigger() == values(range(3), partition=1)
    bucket.write(4, "ordinary", topic_id=SECOND_ID)
    bucket.write(4, "other", topic_id=SECOND_ID)
    assert query.trigger() == values(range(4), "ordinary")


def waits_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "the stream waits for it" in message]


def test_a_topic_that_is_not_there_yet_is_waited_for(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(bucket.reader())
    query.reader.initialOffset()  # Spark calls this twice
    assert query.trigger() == []
    assert query.trigger() == []
    (sentence,) = waits_told(caplog)
    assert "orders" in sentence
    bucket.write(3)
    assert query.trigger() == values(range(3))


def test_each_start_tells_of_a_topic_that_is_not_there(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(3)
    options = {"subscribe": "orders,nope"}
    first = Query(bucket.reader(**options))
    first.run()
    later = bucket.reader(**options)
    for _ in range(2):
        assert later.latestOffset(first.start, later.getDefaultReadLimit()) == first.start
    assert len(waits_told(caplog)) == 2


UNTIL_IT_ENDS = {"availableNow": None, "once": ReadAllAvailable()}
"""Triggers that end by themselves, with Spark's read limit. For availableNow, the source sets the limit itself."""


def run_that_ends(reader: StreamReader, limit: ReadLimit | None) -> Query:
    if limit is None:
        reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    query.trigger(limit)
    return query


@pytest.mark.parametrize("limit", UNTIL_IT_ENDS.values(), ids=UNTIL_IT_ENDS)
@pytest.mark.parametrize(
    "options",
    [{"subscribe": "nope"}, {"subscribe": "orders,nope"}, {"assign": '{"orders":[0,7]}'}, {"maxBytesPerTrigger": "1"}],
    ids=["topic", "one of two", "partition", "none at all"],
)
def test_a_run_that_ends_fails_where_a_batch_query_does(
    bucket: Bucket, options: dict[str, str], limit: ReadLimit | None
) -> None:
    if "maxBytesPerTrigger" not in options:
        bucket.write(3)
    with pytest.raises(ResourceNotFoundError):
        run_that_ends(bucket.reader(**options), limit)


@pytest.mark.parametrize("limit", UNTIL_IT_ENDS.values(), ids=UNTIL_IT_ENDS)
def test_a_later_run_that_ends_fails_too(bucket: Bucket, limit: ReadLimit | None) -> None:
    bucket.write(3)
    first = run_that_ends(bucket.reader(), limit)
    reader = bucket.reader(subscribe="orders,nope")
    if limit is None:
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(ResourceNotFoundError, match="nope"):
        reader.latestOffset(first.start, limit or reader.getDefaultReadLimit())


@pytest.mark.parametrize("limit", UNTIL_IT_ENDS.values(), ids=UNTIL_IT_ENDS)
def test_a_topic_that_was_read_and_is_gone_is_a_loss_and_no_misspelt_name(
    bucket: Bucket, limit: ReadLimit | None
) -> None:
    segment = bucket.write(3)
    first = run_that_ends(bucket.reader(), limit)
    bucket.delete(segment)
    for on_loss in ("true", "false"):
        reader = bucket.reader(failOnDataLoss=on_loss)
        if limit is None:
            reader.prepareForTriggerAvailableNow()
        with pytest.raises(DataLossError, match="orders") if on_loss == "true" else nullcontext():
            assert reader.latestOffset(first.start, limit or reader.getDefaultReadLimit()) == first.start


def test_without_limits_a_trigger_reads_all_there_is(bucket: Bucket) -> None:
    bucket.write(300)
    reader = bucket.reader()
    assert not isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)  # Spark's limit for Trigger.Once
    assert Query(reader).trigger() == values(range(300))


def test_max_offsets_splits_over_partitions_and_reads_all_in_the_end(bucket: Bucket) -> None:
    bucket.write(90)
    bucket.write(10, partition=1)
    query = Query(bucket.reader(maxOffsetsPerTrigger="20"))
    first = query.trigger()
    assert len(first) == 20
    assert sum(row.startswith(b"orders-1") for row in first) == 2
    query.run()
    assert sorted(query.rows) == sorted(values(range(90)) + values(range(10), partition=1))


def test_max_bytes_is_about_that_much(bucket: Bucket) -> None:
    size = bucket.write(100).segment_size_in_bytes
    query = Query(bucket.reader(maxBytesPerTrigger=str(size // 4)))
    assert 20 <= len(query.trigger()) <= 25
    assert 3 <= query.run() <= 5
    assert query.rows == values(range(100))


def test_the_engine_may_ask_for_everything(bucket: Bucket) -> None:
    bucket.write(90)
    query = Query(bucket.reader(maxOffsetsPerTrigger="20", minOffsetsPerTrigger="5"))
    assert query.trigger(ReadAllAvailable()) == values(range(90))


def test_few_offsets_wait_for_more_or_for_the_delay(bucket: Bucket) -> None:
    bucket.write(30)
    query = Query(bucket.reader(minOffsetsPerTrigger="20", maxTriggerDelay="1h"))
    assert len(query.trigger()) == 30
    bucket.write(19)
    assert query.trigger() == []
    bucket.write(1)
    assert query.trigger() == values(range(30, 50))
    bucket.write(1)
    assert query.trigger() == []
    bucket.clock.now += 3600
    assert query.trigger() == values(range(50, 51))


def test_the_bucket_is_listed_once_a_second_at_the_most(bucket: Bucket) -> None:
    bucket.write(3)
    bucket.clock.step = 0.0
    query = Query(bucket.reader())
    query.run()
    bucket.write(3)
    bucket.clock.now += 0.9
    assert query.trigger() == []
    bucket.clock.now += 0.2
    assert query.trigger() == values(range(3, 6))


def test_available_now_ends_where_it_began(bucket: Bucket) -> None:
    bucket.write(30)
    reader = bucket.reader(maxOffsetsPerTrigger="7", minOffsetsPerTrigger="3")
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    query.trigger()
    bucket.write(30)
    bucket.write(5, partition=1)
    query.run()
    assert query.rows == values(range(30))
    assert query.start["offsets"] == {"orders": {"0": 30}}
    assert reader.reportLatestOffset() == {
        "version": 1,
        "offsets": {"orders": {"0": 60, "1": 5}},
        "topicIds": {"orders": str(FIRST_ID)},
        "epochs": {"orders": {"0": 0, "1": 0}},
    }


@pytest.mark.parametrize("topic_id", [FIRST_ID, SECOND_ID])
def test_available_now_ends_when_a_partition_vanishes_or_comes_again(bucket: Bucket, topic_id: object) -> None:
    bucket.write(30)
    gone = [bucket.write(20, partition=1), bucket.write(20, partition=1)]
    reader = bucket.reader(maxOffsetsPerTrigger="10", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    query.trigger()
    bucket.delete(*gone)
    if topic_id == SECOND_ID:
        bucket.write(9, partition=1, topic_id=SECOND_ID)
        bucket.write(9, topic_id=SECOND_ID)
    query.run()
    assert len(query.rows) == len(set(query.rows))
    assert not any(row in values(range(30, 99), partition=1) for row in query.rows)


def test_available_now_ends_when_the_end_of_a_log_vanishes(bucket: Bucket) -> None:
    bucket.write(30)
    last = bucket.write(30)
    reader = bucket.reader(maxOffsetsPerTrigger="7", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    query.trigger()
    bucket.delete(last)
    query.run()
    assert query.rows == values(range(30))
    assert query.start["offsets"] == {"orders": {"0": 30}}


def test_available_now_leaves_what_comes_after_a_log_was_cut_back(bucket: Bucket) -> None:
    bucket.write(10)
    last = bucket.write(10)
    query = Query(bucket.reader(failOnDataLoss="false"))
    query.run()
    bucket.delete(last)
    reader = query.reader = bucket.reader(failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    bucket.write(5)  # after the loss
    query.run()
    assert query.rows == values(range(20))
    assert query.start["offsets"] == {"orders": {"0": 20}}


def test_a_restart_reads_the_batch_that_was_not_committed_again(bucket: Bucket) -> None:
    bucket.write(30)
    query = Query(bucket.reader(maxOffsetsPerTrigger="7"))
    for _ in range(3):
        before, rows = query.start, query.trigger()
        bucket.write(11)
        again = bucket.reader(maxOffsetsPerTrigger="7")
        assert rows_between(again, before, query.start) == rows


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_read_again_from_where_it_began(bucket: Bucket, starting: str) -> None:
    bucket.write(30)
    reader = bucket.reader(startingOffsets=starting)
    start = over_the_wire(reader.initialOffset())
    bucket.write(5)
    end = over_the_wire(reader.latestOffset(start, ReadAllAvailable()))
    rows = rows_between(reader, start, end)
    assert rows == values(range(35) if starting == "earliest" else range(30, 35))
    for later in (0, 40):
        if later:
            bucket.write(later)
        restarted = bucket.reader(startingOffsets="latest")
        assert rows_between(restarted, over_the_wire(restarted.initialOffset()), end) == rows


def test_a_segment_that_is_not_whole_is_told_once_and_read_when_it_is(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.write(3)
    query = Query(bucket.reader())
    query.run()
    bucket.write(4)
    (manifest,) = (path for path in bucket.root.rglob("*.rsm-manifest") if "/00000000000000000003-" in str(path))
    hidden = manifest.rename(bucket.root.parent / "manifest")
    assert query.trigger() == []
    assert query.trigger() == []
    assert caplog.text.count("is ignored") == 1
    hidden.rename(manifest)
    assert query.trigger() == values(range(3, 7))


def test_a_transaction_that_is_open_is_not_told_every_second(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    opened = build_batch([Record(b"open")], 0, producer=Producer(7, 0, 0, transactional=True))
    state = ProducerState(7, 0, 0, 0, 0, 0, 0, 0)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [opened], range(1), producers=[state])
    query = Query(bucket.reader())
    assert query.run() == 0
    assert [one.message for one in caplog.records if one.name.startswith("tieredstore.")] == []


def test_a_checkpoint_of_something_else_is_refused(bucket: Bucket) -> None:
    bucket.write(3)
    with pytest.raises(ConfigError, match="checkpoint"):
        bucket.reader().latestOffset({"orders": {"0": 3}}, ReadAllAvailable())


def test_a_reader_travels_without_what_it_has_open(bucket: Bucket) -> None:
    bucket.write(3)
    query = Query(bucket.reader())
    query.run()
    fresh = pickle.loads(pickle.dumps(query.reader))
    assert fresh.reportLatestOffset() is None
    assert len(pickle.dumps(query.reader)) == len(pickle.dumps(bucket.reader()))


def test_stopping_is_safe_at_any_time(bucket: Bucket) -> None:
    reader = bucket.reader()
    reader.stop()
    bucket.write(3)
    query = Query(reader)
    query.run()
    reader.stop()
    reader.stop()
    assert query.rows == values(range(3))
