"""Consumer of the bucket alone: slow and failing stores, turns of partitions, limits of queues, and waits."""

from __future__ import annotations

import random
import threading
import time

import pytest
from confluent_kafka import TopicPartition

from tests.consumer.buckets import PLACE, Fetches, at, offsets_of, raised, read, read_patiently, reader_of, until
from tests.support.kafka.scripted_member import parts_of
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.waiting import wait_until
from tieredstore.consumer import Consumer
from tieredstore.consumer.partition import Bucket as InBucket
from tieredstore.consumer.streams import Turn
from tieredstore.errors import StoreUnavailableError
from tieredstore.model import TopicIdPartition
from tieredstore.testing.segments import Record, build_batch


@pytest.mark.slow
def test_all_paused_waits_and_does_not_spin(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, PLACE) as consumer:
        consumer.pause([PLACE])
        consumer.poll(0.5)
        # CPU time of this thread only, because other threads may belong to earlier tests.
        used, begun = time.thread_time(), time.monotonic()
        assert consumer.poll(1.0) is None
        assert time.monotonic() - begun >= 0.9
        assert time.thread_time() - used < 0.5


def test_two_partitions_take_turns(bucket: Bucket) -> None:
    for partition in range(6):
        for _ in range(3):
            bucket.write(20, partition=partition)
    assigned = [TopicPartition("orders", partition) for partition in range(6)]
    with reader_of(bucket, *assigned, tiered_storage_partitions_at_once=2) as consumer:
        messages = read(consumer, 360)
    for partition in range(6):
        assert offsets_of(messages, partition) == list(range(60))


def rests(consumer: Consumer) -> bool:
    """Return True if the partition's stream rests because its read-ahead is full."""
    phase = parts_of(consumer).core.partitions["orders", 0].phase
    return isinstance(phase, InBucket) and phase.stream.turn is Turn.RESTING


def test_what_waits_is_bounded(bucket: Bucket) -> None:
    for _ in range(4):
        bucket.write(2000)
    with reader_of(bucket, PLACE, tiered_storage_queued_max_kbytes=64) as consumer:
        read(consumer, 1)
        wait_until(lambda: rests(consumer))
        assert consumer.tiered_stats()["orders", 0]["queued_bytes"] < 3 * 64 * 1024
        assert len(read(consumer, 7000)) >= 7000


def all_are_read(consumer: Consumer) -> bool:
    """Return True if each partition has a stream. Only polling starts streams."""
    return all(isinstance(one.phase, InBucket) for one in parts_of(consumer).core.partitions.values())


def waits_to_be_taken(consumer: Consumer, limit: int) -> bool:
    """Return True if no stream can read before the caller takes records: all streams rest, or the queue is full."""
    core = parts_of(consumer).core
    phases = [partition.phase for partition in core.partitions.values()]
    rest = [isinstance(phase, InBucket) and phase.stream.turn is Turn.RESTING for phase in phases]
    return all(rest) or core.streams.queued_bytes >= limit


def test_streams_share_what_is_read_ahead(bucket: Bucket) -> None:
    """The limit of the read-ahead exceeds a segment. If it applied to each of the four partitions alone, all four
    segments would be read ahead.
    """
    draw, ahead, piece = random.Random(3), 512 * 1024, 64 * 1024
    for partition in range(4):
        batches = [build_batch([Record(draw.randbytes(1000))] * 10, start) for start in range(0, 400, 10)]
        bucket.copy(TopicIdPartition(FIRST_ID, "orders", partition), batches, range(400))
    options = bucket.options | {"chunk.size": "16384", "fetch.chunk.cache.prefetch.max.size": str(ahead)}
    own = {"tiered_storage_settings": options, "tiered_storage_queued_max_kbytes": piece // 1024}
    with reader_of(bucket, *(at(0, partition=number) for number in range(4)), **own) as consumer:
        given = len(until(consumer, lambda given: bool(given) and all_are_read(consumer), count=1))
        manager = parts_of(consumer).manager
        wait_until(lambda: manager.fetch_stats.bytes_fetched >= ahead and waits_to_be_taken(consumer, piece))
        # In addition to the read-ahead, each thread may have one piece queued and one returned, and each stream holds
        # its current chunk. Records given to the caller make room for as many bytes.
        most = ahead + 5 * 2 * piece + 4 * 2 * 16384 + given * 2048
        assert ahead <= manager.fetch_stats.bytes_fetched <= most
        assert given + len(until(consumer, lambda rest: given + len(rest) >= 1600)) == 1600


@pytest.mark.slow
def test_a_store_that_keeps_failing_is_told_of_and_tried_again(bucket: Bucket, fetches: Fetches) -> None:
    bucket.write(20)
    fetches.fail(StoreUnavailableError("the store is away"))
    with reader_of(bucket, PLACE, tiered_storage_timeout_ms=200) as consumer:
        assert "the store is away" in str(raised(consumer, StoreUnavailableError))
        assert "the store is away" in str(raised(consumer, StoreUnavailableError))
        fetches.go_on()
        assert offsets_of(read_patiently(consumer, 20)) == list(range(20))


def test_a_call_never_outlasts_its_time_whatever_the_store_does(bucket: Bucket, fetches: Fetches) -> None:
    bucket.write(20)
    goes_on = fetches.hold()
    with reader_of(bucket, PLACE) as consumer:
        begun = time.monotonic()
        assert consumer.consume(5, 0.2) == []
        assert consumer.poll(0) is None
        assert consumer.poll_arrow(0.1) is None
        assert time.monotonic() - begun < 40
        goes_on.set()
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_one_slow_partition_keeps_no_other_waiting(bucket: Bucket, fetches: Fetches) -> None:
    bucket.write(20)
    bucket.write(20, partition=1)
    goes_on = fetches.hold(partition=0)
    with reader_of(bucket, at(0), at(0, partition=1)) as consumer:
        assert offsets_of(read(consumer, 20), partition=1) == list(range(20))
        goes_on.set()
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_closed(bucket: Bucket) -> None:
    before = set(threading.enumerate())  # threads of earlier tests may end during the test
    bucket.write(20)
    with reader_of(bucket, PLACE) as consumer:
        read(consumer, 1)
        consumer.close()
        consumer.close()
        for call in (consumer.poll, consumer.consume, consumer.assignment, consumer.unassign, consumer.poll_arrow):
            with pytest.raises(RuntimeError, match="Consumer closed"):
                call()
    own = set(threading.enumerate()) - before
    assert not [thread for thread in own if thread.name.startswith("tieredstore-consumer")]
