"""A consumer of the bucket alone: each offset once, and in order."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as LibraryConsumer

from tests.consumer.buckets import DEADLINE_S, PLACE, at, offsets_of, read, reader_of, until
from tests.support.kafka.scripted_member import parts_of
from tests.support.records.topic_buckets import FIRST_ID, Bucket, value_of
from tieredstore.catalog.watermark import MoveBack, ShippedSegment, Watermark, watermark_key
from tieredstore.consumer import Message
from tieredstore.consumer.client import MemberClient
from tieredstore.errors import ConfigError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.model import TopicIdPartition
from tieredstore.testing.segments import Producer, Record, build_batch

TAIL_BASE: Final = -2000
"""librdkafka's RD_KAFKA_OFFSET_TAIL_BASE."""


@pytest.mark.parametrize("start", [PLACE, at(200), at(201)], ids=["earliest", "its_beginning", "in_the_hole"])
def test_a_log_that_begins_in_a_hole(bucket: Bucket, start: TopicPartition) -> None:
    """Compaction has removed the first records of the first segment."""
    values = [Record(value_of("orders", 0, offset)) for offset in range(203, 213)]
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [build_batch(values, 203)], range(200, 220))
    bucket.write(20)
    with reader_of(bucket, start) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (200, 240)
        assert offsets_of(read(consumer, 30)) == [*range(203, 213), *range(220, 240)]


def test_all_there_is_and_then_what_comes(bucket: Bucket) -> None:
    """A topic missing in the bucket is no error yet, because segments of new topics arrive late."""
    with reader_of(bucket, PLACE) as consumer:
        assert isinstance(consumer, LibraryConsumer)
        assert consumer.poll(0.2) is None
        for _ in range(3):
            bucket.write(20)
        messages = read(consumer, 60)
        assert offsets_of(messages) == list(range(60))
        assert {type(message) for message in messages} == {Message}
        assert consumer.consume(10, 0.1) == []
        bucket.write(20)
        assert offsets_of(read(consumer, 20)) == list(range(60, 80))


@pytest.mark.parametrize(
    ("start", "first"),
    [(0, 0), (19, 19), (20, 20), (59, 59), (OFFSET_BEGINNING, 0), (OFFSET_END, 60), (TAIL_BASE - 3, 57)],
)
def test_where_it_starts(bucket: Bucket, start: int, first: int) -> None:
    for _ in range(3):
        bucket.write(20)
    with reader_of(bucket, at(start)) as consumer:
        messages = until(consumer, lambda _: consumer.position([PLACE])[0].offset >= 0, count=1)
        bucket.write(5)
        messages += read(consumer, 65 - first - len(messages))
        assert offsets_of(messages) == list(range(first, 65))


def test_the_end_is_behind_a_gap_with_the_outcome_of_a_transaction(bucket: Bucket) -> None:
    values = [Record(value_of("orders", 0, offset)) for offset in range(10)]
    opened = build_batch(values, 0, producer=Producer(1, 0, 0, transactional=True))
    producers = [ProducerState(1, 0, 9, 9, 9, 0, 0, 0)]
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [opened], range(10), producers=producers)
    bucket.write(20, skip=10)
    with reader_of(bucket, at(OFFSET_END)) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 40)
        assert until(consumer, lambda _: consumer.position([PLACE])[0].offset >= 0) == []
        assert consumer.position([PLACE])[0].offset == 40


def test_it_waits_where_a_watermark_says_that_a_later_leader_goes_on(bucket: Bucket) -> None:
    """The bucket's later segments are of a deposed leader."""
    epochs = ((0, 0), (3, 20))
    bucket.write(60, epochs=epochs)
    where = TopicIdPartition(FIRST_ID, "orders", 0)
    mark = Watermark(where, 25, 4, moved_back=(MoveBack(60, 25, 4, 0),))
    bucket.manager.store.put(watermark_key("", where), mark.to_bytes())
    with reader_of(bucket, PLACE) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 25)
        (found,) = consumer.offsets_for_times([TopicPartition("orders", 0, OFFSET_END)], DEADLINE_S)
        assert found.offset == 25
        assert offsets_of(read(consumer, 25)) == list(range(25))
        assert consumer.consume(10, 0.1) == []
        bucket.ends["orders", 0, FIRST_ID] = 25
        bucket.write(75, epochs=(*epochs, (4, 25)))
        assert offsets_of(read(consumer, 75)) == list(range(25, 100))


def test_a_watermark_that_names_a_segment_after_the_listing_is_no_cut(bucket: Bucket) -> None:
    """After two unclean elections, the last leader uploads its records of an earlier epoch again."""
    for _ in range(3):
        bucket.write(20, epochs=((0, 0), (3, 20)))
    where = TopicIdPartition(FIRST_ID, "orders", 0)
    bucket.ends["orders", 0, FIRST_ID] = 20

    def upload() -> None:
        segment = bucket.write(20, epochs=((0, 0),))
        shipped = ShippedSegment(str(segment.remote_log_segment_id.id), segment.start_offset, segment.end_offset)
        mark = Watermark(where, segment.end_offset + 1, 4, segment=shipped, moved_back=(MoveBack(60, 20, 4, 0),))
        bucket.manager.store.put(watermark_key("", where), mark.to_bytes())

    upload()
    with reader_of(bucket, PLACE) as consumer:
        assert offsets_of(read(consumer, 40)) == list(range(40))
        upload()
        assert offsets_of(read(consumer, 20)) == list(range(40, 60))


def test_one_by_one_many_and_in_columns_together(bucket: Bucket) -> None:
    for _ in range(3):
        bucket.write(20)
    given: list[int] = []
    with reader_of(bucket, PLACE) as consumer:
        end = time.monotonic() + DEADLINE_S
        while len(given) < 60:
            assert time.monotonic() < end
            message = consumer.poll(0.1)
            given += [] if message is None else [message.offset()]
            given += offsets_of(consumer.consume(3, 0.01))
            batch = consumer.poll_arrow(0.1, max_rows=7, columns=["value", "offset"])
            if batch is not None:
                columns: Any = batch.records
                assert columns.schema.names == ["value", "offset"]
                assert columns.num_rows <= 7
                assert batch.start_offset == (given[-1] + 1 if given else 0)
                given += columns.to_pydict()["offset"]
                assert batch.next_offset == given[-1] + 1 == consumer.position([PLACE])[0].offset
    assert given == list(range(60))


def test_batches_go_on_until_the_consumer_is_closed(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, PLACE) as consumer:
        rows = 0
        for batch in consumer.batches():
            rows += batch.records.num_rows
            if rows == 20:
                consumer.close()
    assert rows == 20
    with pytest.raises(RuntimeError, match="Consumer closed"):
        next(consumer.batches())


def test_seek_pause_and_position(bucket: Bucket) -> None:
    for _ in range(3):
        bucket.write(20)
    with reader_of(bucket, PLACE) as consumer:
        read(consumer, 5)
        position = consumer.position([PLACE])[0].offset
        consumer.pause([PLACE])
        assert consumer.consume(10, 0.2) == []
        consumer.resume([PLACE])
        assert offsets_of(read(consumer, 60 - position)) == list(range(position, 60))
        consumer.pause([PLACE])
        consumer.seek(at(55))
        assert consumer.consume(1, 0.2) == []
        consumer.resume([PLACE])
        assert offsets_of(read(consumer, 5)) == list(range(55, 60))
        consumer.seek(at(7))
        assert consumer.position([PLACE])[0].offset == 7
        assert offsets_of(read(consumer, 53)) == list(range(7, 60))
        with pytest.raises(KafkaException) as error:
            consumer.seek(at(0, partition=5))
        assert error.value.args[0].code() == KafkaError._STATE
        unknown = consumer.position([TopicPartition("orders", 5)])
        assert unknown[0].offset == -1001


def test_the_end_is_told_of_once(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, PLACE, enable_partition_eof=True) as consumer:
        messages = until(consumer, lambda given: len(given) > 20)
        assert messages[-1].error().code() == KafkaError._PARTITION_EOF
        assert messages[-1].offset() == 20
        assert consumer.consume(1, 0.3) == []
        bucket.write(5)
        messages = until(consumer, lambda given: len(given) > 5)
        assert [message.error() is None for message in messages] == [True] * 5 + [False]


@pytest.mark.parametrize("is_assigned_again", [False, True])
def test_an_end_that_no_call_has_returned_is_not_reported_after_a_seek(
    bucket: Bucket, *, is_assigned_again: bool
) -> None:
    """Otherwise, a caller that reads up to the end would stop before the first record."""
    for partition in range(2):
        bucket.write(20, partition=partition)
    with reader_of(bucket, at(20), at(20, 1), enable_partition_eof=True) as consumer:
        core, parts = parts_of(consumer).core, parts_of(consumer)
        while len(core.events) < 2:
            assert parts.news.wait(DEADLINE_S)
            parts.news.clear()
            core.tick()
        first = consumer.poll(0)
        assert first is not None
        assert first.error() is not None
        other = at(0, 1 - first.partition())
        if is_assigned_again:
            consumer.incremental_unassign([TopicPartition(other.topic, other.partition)])
            consumer.incremental_assign([other])
        else:
            consumer.seek(other)
        messages = until(consumer, lambda given: len(given) > 20)
        assert [one.error() is None for one in messages] == [True] * 20 + [False]
        assert messages[-1].error().code() == KafkaError._PARTITION_EOF
        assert {one.partition() for one in messages} == {other.partition}


def test_nothing_of_what_was_given_up_comes(bucket: Bucket) -> None:
    bucket.write(200)
    bucket.write(20, partition=1)
    with reader_of(bucket, PLACE) as consumer:
        read(consumer, 1)
        consumer.incremental_assign([at(0, partition=1)])
        consumer.incremental_unassign([PLACE])
        messages = read(consumer, 20)
        assert {message.partition() for message in messages} == {1}
        consumer.assign([at(190)])
        assert offsets_of(read(consumer, 10)) == list(range(190, 200))
        consumer.unassign()
        assert consumer.assignment() == []
        assert consumer.consume(1, 0.1) == []


def test_without_a_broker_there_is_no_group(bucket: Bucket) -> None:
    with reader_of(bucket) as consumer:
        for call in (lambda: consumer.subscribe(["orders"]), consumer.commit, lambda: consumer.committed([PLACE])):
            with pytest.raises(ConfigError, match="needs the group's broker"):
                call()


def test_watermarks_and_times_of_the_bucket(bucket: Bucket) -> None:
    bucket.write(20, skip=10)
    with reader_of(bucket, at(10)) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (10, 30)
        read(consumer, 20)
        assert consumer.get_watermark_offsets(PLACE, cached=True) == (10, 30)
        bucket.write(5)
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (10, 35)
        first, none = (consumer.offsets_for_times([at(moment)], 10)[0].offset for moment in (0, 2**50))
        assert (first, none) == (10, -1)


def test_an_interrupt_loses_nothing(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records taken by an interrupted call are returned by the next one."""
    bucket.write(20)
    with reader_of(bucket, PLACE) as consumer:
        real, interrupted = MemberClient.consume, threading.Event()

        def interrupting(self: MemberClient, count: int, timeout_s: float) -> list[Any]:
            if timeout_s and consumer.position([PLACE])[0].offset > 5 and not interrupted.is_set():
                interrupted.set()
                raise KeyboardInterrupt
            return real(self, count, timeout_s)

        monkeypatch.setattr(MemberClient, "consume", interrupting)
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(1000, 30)
        assert offsets_of(read(consumer, 20)) == list(range(20))
