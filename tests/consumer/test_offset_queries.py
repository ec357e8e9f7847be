"""Ends of logs, offsets of times, and events for a member. A script in this process plays the broker."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, TopicPartition

from tests.consumer.buckets import DEADLINE_S, ORDERS, OTHERS, PLACE, offsets_of, read, reader_of, until
from tests.support.kafka.live_reads import refuse_message
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket, value_of
from tieredstore.consumer import Consumer, PartitionBatch
from tieredstore.errors import AlreadyClosedError, BatchCorruptError, ConfigError
from tieredstore.live.messages import MessageColumns
from tieredstore.model import TopicIdPartition
from tieredstore.reading import stored_logs
from tieredstore.testing.segments import Record, build_batch


def write_timed(bucket: Bucket, offsets: range) -> None:
    """Write a segment whose records have their offsets as timestamps."""
    records = [Record(value_of(*ORDERS, offset), timestamp_ms=offset) for offset in offsets]
    bucket.copy(TopicIdPartition(FIRST_ID, *ORDERS), [build_batch(records, offsets.start)], offsets)


def times(consumer: Consumer, *moments: int) -> list[int]:
    places = [TopicPartition(*ORDERS, moment) for moment in moments]
    return [consumer.offsets_for_times([place], DEADLINE_S)[0].offset for place in places]


def test_ends_and_times_are_those_of_bucket_and_broker_together(bucket: Bucket) -> None:
    write_timed(bucket, range(10, 30))
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 50)})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (10, 50)
        moments = (0, 15, 29, 30, 49, 50, OFFSET_BEGINNING, OFFSET_END)
        assert times(consumer, *moments) == [10, 15, 29, 30, 49, -1, 10, -1]
        read(consumer, 40)
        # The cached values are the broker's at the last look-up.
        assert consumer.get_watermark_offsets(PLACE, cached=True) == (10, 50)
        member.is_silent = True
        assert consumer.get_watermark_offsets(PLACE, 0.01) is None


def test_offsets_that_the_bucket_lacks_are_requested_from_the_broker(bucket: Bucket) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 50)})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (20, 50)
        assert times(consumer, 0, 40, OFFSET_BEGINNING) == [20, 40, 20]


def test_a_time_is_found_in_segments_that_are_newer_than_the_last_listing(bucket: Bucket) -> None:
    """The broker has uploaded and deleted more records since the consumer has listed the bucket."""
    write_timed(bucket, range(20))
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 60)})
    with broker.consumer(bucket, ORDERS, refresh_ms=3_600_000) as (consumer, _):
        assert times(consumer, 10) == [10]
        write_timed(bucket, range(20, 40))
        broker.logs[ORDERS].start = 40
        assert times(consumer, 19, 20, 33, 40) == [19, 20, 33, 40]


def test_a_time_is_found_in_the_first_segments_of_a_topic(bucket: Bucket) -> None:
    """The bucket had no segment of the topic at the last listing."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 60)})
    with broker.consumer(bucket, ORDERS, refresh_ms=3_600_000) as (consumer, _):
        assert times(consumer, 10) == [10]
        write_timed(bucket, range(40))
        broker.logs[ORDERS].start = 40
        assert times(consumer, 10, 40) == [10, 40]
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 60)


def test_segments_uploaded_while_the_broker_is_asked_for_a_time(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timed(bucket, range(20))
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 60)})
    with broker.consumer(bucket, ORDERS, refresh_ms=3_600_000) as (consumer, member):
        assert times(consumer, 10) == [10]
        ask = member.offsets_for_times

        def retain_before(*given: Any) -> Any:
            # Let the bucket's thread answer first, if it was asked already.
            parts_of(consumer).core.lookups.call(lambda _: None).result(DEADLINE_S)
            if broker.logs[ORDERS].start == 0:
                write_timed(bucket, range(20, 40))
                broker.logs[ORDERS].start = 40
            return ask(*given)

        monkeypatch.setattr(member, "offsets_for_times", retain_before)
        assert times(consumer, 33) == [33]


def test_a_time_before_the_bucket_begins_is_found_on_the_broker(bucket: Bucket) -> None:
    """Retention in the bucket is shorter than on the broker."""
    first = bucket.write(20)
    write_timed(bucket, range(20, 40))
    bucket.delete(first)
    broker = ScriptedBroker({ORDERS: ScriptedLog(5, 60)})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (5, 60)
        assert times(consumer, 0, 7, 25, 50, OFFSET_BEGINNING) == [5, 7, 25, 50, 5]


@pytest.mark.parametrize("has_broker", [False, True])
def test_the_beginning_moves_when_retention_deletes_the_first_segments_of_the_bucket(
    bucket: Bucket, has_broker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query lists one partition again. It does not read all manifests of the topic."""
    first = bucket.write(20)
    write_timed(bucket, range(20, 40))
    with contextlib.ExitStack() as opened:
        if has_broker:
            broker = ScriptedBroker({ORDERS: ScriptedLog(40, 60)})
            consumer, _ = opened.enter_context(broker.consumer(bucket, ORDERS, refresh_ms=3_600_000))
        else:
            consumer = opened.enter_context(reader_of(bucket, PLACE, tiered_storage_refresh_ms=3_600_000))
        end = 60 if has_broker else 40
        assert times(consumer, OFFSET_BEGINNING) == [0]
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, end)
        bucket.delete(first)
        monkeypatch.setattr(stored_logs, "load_catalog", None)
        assert times(consumer, 5, OFFSET_BEGINNING) == [20, 20]
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (20, end)


def test_a_query_lists_a_partition_once_after_retention(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bucket.write(20)
    write_timed(bucket, range(20, 40))
    broker = ScriptedBroker({ORDERS: ScriptedLog(40, 60)})
    with broker.consumer(bucket, ORDERS, refresh_ms=3_600_000) as (consumer, _):
        assert times(consumer, OFFSET_BEGINNING) == [0]
        bucket.delete(first)
        refreshes = parts_of(consumer).core.lookups.refreshes
        assert times(consumer, 5) == [20]
        assert parts_of(consumer).core.lookups.refreshes == refreshes + 1


def test_a_query_finds_the_topic_that_replaced_all_known_segments(bucket: Bucket) -> None:
    first = bucket.write(20)
    with reader_of(bucket) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 20)
        bucket.delete(first)
        bucket.write(30, topic_id=SECOND_ID)
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 30)


def test_a_query_of_a_closed_consumer_does_not_wait(bucket: Bucket) -> None:
    """The user's callback of a revocation asks it while the consumer closes."""
    with reader_of(bucket, PLACE) as consumer:
        parts_of(consumer).begin_closing()
        with pytest.raises(AlreadyClosedError):
            times(consumer, 5)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_ends_and_times_of_the_bucket_alone(bucket: Bucket, isolation: str) -> None:
    with reader_of(bucket, PLACE, isolation_level=isolation) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 0)
        assert consumer.get_watermark_offsets(PLACE, cached=True) == (-1001, -1001)
        assert times(consumer, 5, OFFSET_BEGINNING, OFFSET_END) == [-1, -1, -1]
    write_timed(bucket, range(10, 30))
    with reader_of(bucket, PLACE, isolation_level=isolation) as consumer:
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (10, 30)
        assert times(consumer, 12, 30, OFFSET_BEGINNING, OFFSET_END) == [12, -1, 10, 30]


def test_a_store_that_does_not_answer_in_time(bucket: Bucket) -> None:
    write_timed(bucket, range(10, 30))
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 50)})
    goes_on = threading.Event()
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        parts_of(consumer).core.lookups.call(lambda _: goes_on.wait(DEADLINE_S))
        assert consumer.get_watermark_offsets(PLACE, 0.05) is None
        with pytest.raises(KafkaException, match="Timed out"):
            consumer.offsets_for_times([TopicPartition(*ORDERS, 5)], 0.05)
        goes_on.set()
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (10, 50)


def test_a_query_is_taken_by_one_thread_alone(bucket: Bucket) -> None:
    """A thread that closes the consumer takes queries too, to fail them. So taking a query needs the lock."""
    write_timed(bucket, range(10))
    with reader_of(bucket, PLACE) as consumer:
        lookups: Any = parts_of(consumer).core.lookups
        are_locked: list[bool] = []

        class Watched(deque[Any]):
            def popleft(self) -> Any:
                are_locked.append(lookups._changed._is_owned())
                return super().popleft()

        lookups._calls = Watched()
        assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, 10)
        assert are_locked == [True]


def test_no_offset_to_start_at_is_told_as_the_library_tells_it(bucket: Bucket) -> None:
    write_timed(bucket, range(10, 30))
    with reader_of(bucket, TopicPartition(*ORDERS, 5), auto_offset_reset="error") as consumer:
        (event,) = until(consumer, bool)
        assert event.error() is not None
        assert "offset range" in event.error().str()
        consumer.seek(TopicPartition(*ORDERS, 20))
        assert offsets_of(read(consumer, 10)) == list(range(20, 30))


def batches(consumer: Consumer, rows: int, most: int | None = None) -> list[PartitionBatch]:
    given: list[PartitionBatch] = []
    while sum(batch.records.num_rows for batch in given) < rows:
        batch = consumer.poll_arrow(DEADLINE_S, most, ("offset", "value"))
        assert batch is not None
        given.append(batch)
    return given


def offsets_in(given: list[PartitionBatch], partition: int) -> list[int]:
    columns: list[Any] = [batch.records.column("offset") for batch in given if batch.partition == partition]
    return [offset for column in columns for offset in column.to_pylist()]


def test_live_records_in_columns_wait_for_their_turn(bucket: Bucket) -> None:
    """Two partitions alternate, with a few rows per call. Records queued at a pause come after the resume."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 60), OTHERS: ScriptedLog(0, 40)})
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, _):
        first = batches(consumer, 30, 7)
        consumer.pause([PLACE])
        others = batches(consumer, 40 - len(offsets_in(first, 1)), 7)
        assert {batch.partition for batch in others} == {1}
        consumer.resume([PLACE])
        rest = batches(consumer, 60 - len(offsets_in(first, 0)), 7)
        given = [*first, *others, *rest]
        assert offsets_in(given, 0) == list(range(60))
        assert offsets_in(given, 1) == list(range(40))
        assert all(batch.records.num_rows <= 7 for batch in given)
        assert [batch.next_offset for batch in given if batch.partition == 1][-1] == 40


@pytest.mark.parametrize("refused", [{"columns": ["valeu"]}, {"columns": []}, {"max_rows": 0}, {"max_rows": -1}])
def test_a_refused_call_for_columns_takes_no_records(bucket: Bucket, refused: dict[str, Any]) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 20), OTHERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, _):
        given = batches(consumer, 20, 7)
        with pytest.raises(ConfigError):
            consumer.poll_arrow(DEADLINE_S, **refused)
        given += batches(consumer, 40 - sum(batch.records.num_rows for batch in given), 7)
        assert [offsets_in(given, number) for number in range(2)] == [list(range(20))] * 2


def test_live_records_that_make_no_batch_are_not_skipped(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has a header that the client cannot return. Without the column of headers, all records are returned."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        build = MessageColumns.build

        def refuse_headers(self: MessageColumns, messages: Any) -> Any:
            if "headers" in self.schema.names:
                raise BatchCorruptError("a header's key is not UTF-8")
            return build(self, messages)

        monkeypatch.setattr(MessageColumns, "build", refuse_headers)
        for _ in range(2):
            with pytest.raises(BatchCorruptError):
                consumer.poll_arrow(DEADLINE_S)
        assert consumer.position([PLACE])[0].offset == 0
        batch = consumer.poll_arrow(DEADLINE_S, columns=["offset"])
        assert batch is not None
        assert offsets_in([batch], 0) == list(range(20))


def test_a_record_that_the_client_cannot_return_holds_up_none_before_it(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_message(monkeypatch, 13)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        offsets: list[int] = []
        while len(offsets) < 13:
            batch = consumer.poll_arrow(DEADLINE_S)
            assert batch is not None
            offsets += batch.records.to_pydict()["offset"]
            assert batch.next_offset == offsets[-1] + 1 == consumer.position([PLACE])[0].offset
        assert offsets == list(range(13))
        for _ in range(2):
            with pytest.raises(BatchCorruptError):
                consumer.poll_arrow(DEADLINE_S)
        assert consumer.position([PLACE])[0].offset == 13
        monkeypatch.undo()
        batch = consumer.poll_arrow(DEADLINE_S)
        assert batch is not None
        assert batch.records.to_pydict()["offset"] == list(range(13, 20))


def test_calls_for_columns_that_fail_hold_no_more_and_more(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes at least one record of the client, so that the consumer stays in its group."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 5000)})
    with broker.consumer(bucket, ORDERS, makers={"held_bytes": 6400}) as (consumer, _):
        build, most = MessageColumns.build, 0

        def refuse(*_: object) -> Any:
            raise BatchCorruptError("a header's key is not UTF-8")

        monkeypatch.setattr(MessageColumns, "build", refuse)
        for _ in range(300):
            with pytest.raises(BatchCorruptError):
                consumer.poll_arrow(DEADLINE_S)
            most = max(most, sum(len(one.held) for one in parts_of(consumer).core.partitions.values()))
        assert most <= 101
        assert consumer.position([PLACE])[0].offset == 0
        monkeypatch.setattr(MessageColumns, "build", build)
        assert offsets_in(batches(consumer, 500), 0)[:500] == list(range(500))


def test_what_waits_of_the_broker_comes_before_what_the_client_gets_later(bucket: Bucket) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20), OTHERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, _):
        first = batches(consumer, 20)
        for log in broker.logs.values():
            log.end = 40
        rest = read(consumer, 60)
        for number in range(2):
            assert offsets_in(first, number) + offsets_of(rest, number) == list(range(40))


def test_a_call_that_fails_gives_what_it_had_taken_to_the_next_one(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records from the bucket and from the broker behave the same."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 20), OTHERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, _):
        given = read(consumer, 1)
        tick, calls = parts_of(consumer).core.tick, iter(range(100))

        def interrupted() -> None:
            """At every other call, raise a signal after the client has returned and before our call returns."""
            if next(calls, 1) % 2 == 0:
                raise KeyboardInterrupt
            tick()

        monkeypatch.setattr(parts_of(consumer).core, "tick", interrupted)
        broker.logs[ORDERS].end = 30
        interrupts = 0
        while len(given) < 50:
            try:
                given += consumer.consume(9, 0.05)
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts
        assert offsets_of(given) == list(range(30))
        assert offsets_of(given, 1) == list(range(20))
