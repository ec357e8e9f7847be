"""Faults of Pinterest's consumer of bucket and broker, which ours must not have.

Tested here: an index of two entries, and positions cleared by a cooperative rebalance. Other tests cover the rest: a
stall at a hole, a pause of all partitions, reading that ends one segment early (``test_bucket_alone``), returned
markers, commit before delivery, patterns (``test_live``), membership lost through a slow store (``test_faults``).
"""

from __future__ import annotations

from typing import Final

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.consumer.buckets import ORDERS, OTHERS, Fetches, offsets_of, raised, read, reader_of, until
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import FIRST_ID, Bucket, value_of
from tieredstore.errors import SegmentNotFoundError
from tieredstore.model import IndexType, TopicIdPartition
from tieredstore.testing.segments import Record, build_batch

_PADDING: Final = (("padding", b"." * 4000),)


@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_each_start_in_a_segment_whose_index_is_short(bucket: Bucket, batches: int) -> None:
    """The index has an entry about every 4 KiB, so it has zero to three entries."""
    where = TopicIdPartition(FIRST_ID, *ORDERS)
    built = [
        build_batch([Record(value_of(*ORDERS, at), None, headers=_PADDING) for at in (start, start + 1)], start)
        for start in range(0, 2 * batches, 2)
    ]
    segment = bucket.copy(where, built, range(2 * batches))
    with bucket.manager.fetch_index(segment, IndexType.OFFSET) as index:
        assert len(index.read()) == 8 * (batches - 1)
    with reader_of(bucket) as consumer:
        for start in range(2 * batches):
            consumer.assign([TopicPartition(*ORDERS, start)])
            assert offsets_of(read(consumer, 2 * batches - start)) == list(range(start, 2 * batches))


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_what_a_cooperative_rebalance_leaves_goes_on_undisturbed(bucket: Bucket, mode: str) -> None:
    """The partition that stays assigned keeps its position and its read. The other partition begins at its committed
    offset.
    """
    for partition in range(2):
        bucket.write(400, partition=partition)
    broker = ScriptedBroker({where: ScriptedLog(400, 410) for where in (ORDERS, OTHERS)})
    with broker.consumer(bucket, ORDERS, OTHERS, mode=mode) as (consumer, member):
        given = until(consumer, lambda messages: {one.partition() for one in messages} == {0, 1}, count=10)
        parts = parts_of(consumer)
        kept = parts.core.partitions[ORDERS]
        member.revoke_by_group(OTHERS)
        given += consumer.consume(1, 0)
        assert OTHERS not in parts.core.partitions
        assert parts.core.partitions[ORDERS] is kept
        member.assign_by_group(OTHERS)
        given += until(consumer, lambda messages: len(given + messages) == 820)
    assert offsets_of(given) == list(range(410))
    assert offsets_of(given, 1) == list(range(410))


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_the_beginning_is_none_that_an_old_listing_tells(bucket: Bucket, mode: str) -> None:
    """A segment is found even if it was copied after the listing, and the broker then deleted its own copy."""
    bucket.write(20, partition=1)
    broker = ScriptedBroker({OTHERS: ScriptedLog(20, 25)})
    with broker.consumer(bucket, OTHERS, mode=mode, refresh_ms=600_000) as (consumer, member):
        read(consumer, 25)
        bucket.write(20)
        broker.logs[ORDERS] = ScriptedLog(20, 30)
        member.assign_by_group(ORDERS)
        assert offsets_of(until(consumer, lambda given: len(given) >= 30)) == list(range(30))


@pytest.mark.parametrize("deleted", [1, 2])
def test_segments_that_retention_takes_while_they_are_looked_at(bucket: Bucket, deleted: int) -> None:
    """The bucket is listed again without an error; reading continues with the remaining segments."""
    segments = [bucket.write(20), bucket.write(20)]
    bucket.write(20, partition=1)
    broker = ScriptedBroker({ORDERS: ScriptedLog(40, 50), OTHERS: ScriptedLog(0, 20)}, committed={ORDERS: 5, OTHERS: 0})
    with broker.consumer(bucket, OTHERS, mode="remote_preferred", refresh_ms=600_000) as (
        consumer,
        member,
    ):
        read(consumer, 20)
        bucket.delete(*segments[:deleted])
        member.assign_by_group(ORDERS)
        messages = until(consumer, lambda given: len(given) >= 50 - 20 * deleted)
        assert offsets_of(messages) == list(range(20 * deleted, 50))


def test_a_segment_that_each_listing_names_and_nobody_can_fetch(bucket: Bucket, fetches: Fetches) -> None:
    """The error is reported after a while. The topic is listed at increasing intervals."""
    segment = bucket.write(20)
    fetches.fail(SegmentNotFoundError(f"{segment} is not in the store"))
    with reader_of(bucket, TopicPartition(*ORDERS, 0), tiered_storage_timeout_ms=100) as consumer:
        assert "is not in the store" in str(raised(consumer, SegmentNotFoundError))
        refreshes = parts_of(consumer).core.lookups.refreshes
        assert refreshes <= 5
        assert "is not in the store" in str(raised(consumer, SegmentNotFoundError))
        assert parts_of(consumer).core.lookups.refreshes > refreshes


@pytest.mark.parametrize("is_eager", [False, True])
def test_holes_of_compaction_at_a_segments_end(bucket: Bucket, *, is_eager: bool) -> None:
    """After ten fetches that begin in a hole, librdkafka reports an oversized record and continues. Our consumer does
    the same.
    """
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40, hole=range(15, 20))}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert offsets_of(read(consumer, 35)) == [*range(15), *range(20, 40)]
        for start in (*broker.logs[ORDERS].hole, 17, 17):
            consumer.seek(TopicPartition(*ORDERS, start))
            assert offsets_of(read(consumer, 20)) == list(range(20, 40))
        broker.logs[ORDERS].stays_in_hole = True
        consumer.seek(TopicPartition(*ORDERS, 17))
        (message,) = until(consumer, bool, count=1)
        assert message.error().code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_client_that_gives_nothing_though_the_broker_has_more(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, *, is_eager: bool
) -> None:
    """The consumer assigns the partition again, as after an outage, whether or not it has returned anything yet."""
    caplog.set_level("INFO")
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20), OTHERS: ScriptedLog(0, 20)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS, OTHERS, makers={"silent_s": 0.05}, timeout_ms=100) as (consumer, member):
        read(consumer, 40)
        for position in (20, 30):
            before = caplog.text.count("assigning the partition again")  # more than 0 if the machine was slow
            member.stuck.add(ORDERS)
            broker.logs[ORDERS].end = position + 10
            assert offsets_of(read(consumer, 10)) == list(range(position, position + 10))
            assert caplog.text.count("assigning the partition again") > before
        # A hole must not count as an endless stall.
        before = caplog.text.count("assigning the partition again")
        broker.logs[ORDERS].hole, broker.logs[ORDERS].stays_in_hole = range(40, 50), True
        broker.logs[ORDERS].end = 50
        member.stuck.add(ORDERS)
        until(consumer, lambda _: caplog.text.count("assigning the partition again") > before)
