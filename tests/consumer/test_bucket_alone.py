"""A consumer of the bucket alone: each offset once, in order, and no hole in silence."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as LibraryConsumer

from tests.consumer.buckets import DEADLINE_S, offsets_of, raised, read, reader_of, until
from tests.support.spark_stream_topics import SECOND_ID, Bucket
from tieredstore.consumer import Consumer, Message
from tieredstore.consumer.client import MemberClient
from tieredstore.errors import ConfigError, DataLoss, StoreUnavailable
from tieredstore.remote import RemoteStorageManager

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


def at(offset: int, partition: int = 0) -> TopicPartition:
    return TopicPartition("orders", partition, offset)


def test_all_there_is_and_then_what_comes(bucket: Bucket) -> None:
    for _ in range(3):
        bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        assert offsets_of(read(consumer, 60)) == list(range(60))
        assert consumer.consume(10, 0.1) == []
        bucket.write(20)
        assert offsets_of(read(consumer, 20)) == list(range(60, 80))


@pytest.mark.parametrize(
    ("start", "first"), [(0, 0), (19, 19), (20, 20), (59, 59), (OFFSET_BEGINNING, 0), (OFFSET_END, 60)]
)
def test_where_it_starts(bucket: Bucket, start: int, first: int) -> None:
    for _ in range(3):
        bucket.write(20)
    with reader_of(bucket, at(start)) as consumer:
        until(consumer, lambda _: consumer.position([ORDERS])[0].offset >= 0 or first < 60, count=1)
        bucket.write(5)
        assert offsets_of(read(consumer, 65 - first)) == list(range(first, 65))


def test_one_by_one_many_and_in_columns_together(bucket: Bucket) -> None:
    for _ in range(3):
        bucket.write(20)
    given: list[int] = []
    with reader_of(bucket, ORDERS) as consumer:
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
                assert batch.start_offset == given[-1] + 1 if given else 0
                given += columns.to_pydict()["offset"]
                assert batch.next_offset == given[-1] + 1 == consumer.position([ORDERS])[0].offset
    assert given == list(range(60))


def test_batches_go_on_until_the_consumer_is_closed(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        rows = 0
        for batch in consumer.batches():
            rows += batch.records.num_rows
            if rows == 20:
                consumer.close()
    assert rows == 20


def test_seek_pause_and_position(bucket: Bucket) -> None:
    for _ in range(3):
        bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        read(consumer, 5)
        position = consumer.position([ORDERS])[0].offset
        consumer.pause([ORDERS])
        assert consumer.consume(10, 0.2) == []
        consumer.resume([ORDERS])
        assert offsets_of(read(consumer, 60 - position)) == list(range(position, 60))
        consumer.seek(at(7))
        assert consumer.position([ORDERS])[0].offset == 7
        assert offsets_of(read(consumer, 53)) == list(range(7, 60))
        with pytest.raises(KafkaException) as error:
            consumer.seek(at(0, partition=5))
        assert error.value.args[0].code() == KafkaError._STATE
        unknown = consumer.position([TopicPartition("orders", 5)])
        assert unknown[0].offset == -1001


def test_a_seek_while_paused_counts_at_the_resume(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        consumer.pause([ORDERS])
        consumer.seek(at(15))
        assert consumer.consume(1, 0.2) == []
        consumer.resume([ORDERS])
        assert offsets_of(read(consumer, 5)) == list(range(15, 20))


def test_all_paused_waits_and_does_not_spin(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        consumer.pause([ORDERS])
        consumer.poll(0.5)
        # Of this thread: others of the process may be of tests before.
        used, begun = time.thread_time(), time.monotonic()
        assert consumer.poll(1.0) is None
        assert time.monotonic() - begun >= 0.9
        assert time.thread_time() - used < 0.5


def test_a_hole_fails_until_a_seek(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    with reader_of(bucket, ORDERS) as consumer:
        read(consumer, 20)
        for _ in range(2):
            error = raised(consumer, DataLoss)
            assert "offsets 20 to 29 of orders-0 are in no segment" in str(error)
            assert "tiered.storage.on.data.loss=report" in str(error)
        consumer.seek(at(30))
        assert offsets_of(read(consumer, 20)) == list(range(30, 50))


def test_a_hole_is_told_of_where_losses_are_reported(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    lost: list[Any] = []
    reporting = {"tiered_storage_on_data_loss": "report", "loss_cb": lost.append}
    with caplog.at_level(logging.WARNING), reader_of(bucket, ORDERS, **reporting) as consumer:
        assert offsets_of(read(consumer, 40)) == [*range(20), *range(30, 50)]
    assert [(extent.partition.topic, extent.start, extent.stop) for extent in lost] == [("orders", 20, 30)]
    assert caplog.text.count("offsets 20 to 29 of orders-0") == 1


def test_a_copy_that_comes_late_fills_a_hole(bucket: Bucket) -> None:
    late = bucket.write(20)
    bucket.write(20)
    files = dict(_objects(bucket, late))
    for path in files:
        path.unlink()
    with reader_of(bucket, at(20)) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(20, 40))
        for path, content in files.items():
            path.write_bytes(content)
        consumer.seek(at(0))
        assert offsets_of(read(consumer, 40)) == list(range(40))


def _objects(bucket: Bucket, segment: Any) -> Iterator[tuple[Path, bytes]]:
    prefix = f"{segment.start_offset:020d}-"
    for path in sorted(bucket.root.rglob(f"{prefix}*"), key=lambda path: path.suffix != ".rsm-manifest", reverse=True):
        yield path, path.read_bytes()


def test_what_retention_took_before_the_position_is_a_reset(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20, skip=100)
    with reader_of(bucket, at(5)) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(100, 120))
    assert "offset 5 of orders-0 is neither in the bucket nor on the broker" in caplog.text


def test_a_reset_of_error_is_the_librarys_message(bucket: Bucket) -> None:
    bucket.write(20, skip=100)
    with reader_of(bucket, at(5), auto_offset_reset="error") as consumer:
        (message,) = until(consumer, bool, count=1)
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert (message.topic(), message.partition()) == ("orders", 0)
        consumer.seek(at(110))
        assert offsets_of(read(consumer, 10)) == list(range(110, 120))


def test_the_end_is_told_of_once(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, ORDERS, enable_partition_eof=True) as consumer:
        messages = until(consumer, lambda given: len(given) > 20)
        assert messages[-1].error().code() == KafkaError._PARTITION_EOF
        assert messages[-1].offset() == 20
        assert consumer.consume(1, 0.3) == []
        bucket.write(5)
        messages = until(consumer, lambda given: len(given) > 5)
        assert [message.error() is None for message in messages] == [True] * 5 + [False]


def test_damage_fails_until_a_seek_and_is_left_out_where_losses_are_reported(bucket: Bucket) -> None:
    bucket.write(200)
    damaged = bucket.write(200)
    bucket.write(200)
    path = next(path for path, _ in _objects(bucket, damaged) if path.suffix == ".log")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with reader_of(bucket, ORDERS) as consumer:
        given = until(consumer, lambda given: len(given) >= 200)
        first = raised(consumer, Exception)
        assert str(raised(consumer, type(first))) == str(first)
        assert consumer.tiered_stats()["orders", 0]["phase"] == "failed"
        consumer.seek(at(400))
        assert offsets_of(read(consumer, 200)) == list(range(400, 600))
    assert offsets_of(given) == list(range(len(given)))
    lost: list[Any] = []
    with reader_of(bucket, ORDERS, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        offsets = offsets_of(until(consumer, lambda given: bool(given) and given[-1].offset() == 599))
    assert len(lost) == 1
    assert 200 <= lost[0].start < 400
    assert len(offsets) == 590
    assert offsets == sorted(set(offsets))


def test_two_partitions_take_turns(bucket: Bucket) -> None:
    for partition in range(6):
        for _ in range(3):
            bucket.write(20, partition=partition)
    assigned = [TopicPartition("orders", partition) for partition in range(6)]
    with reader_of(bucket, *assigned, tiered_storage_partitions_at_once=2) as consumer:
        messages = read(consumer, 360)
    for partition in range(6):
        assert offsets_of(messages, partition) == list(range(60))


def test_what_waits_is_bounded(bucket: Bucket) -> None:
    for _ in range(4):
        bucket.write(2000)
    with reader_of(bucket, ORDERS, tiered_storage_queued_max_kbytes=64) as consumer:
        read(consumer, 1)
        time.sleep(0.3)
        assert consumer.tiered_stats()["orders", 0]["queued_bytes"] < 3 * 64 * 1024
        assert len(read(consumer, 7000)) >= 7000


def test_a_store_that_keeps_failing_is_told_of_and_tried_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.write(20)
    fails = threading.Event()
    fails.set()
    fetch = RemoteStorageManager.fetch_log_segment

    def failing(self: RemoteStorageManager, *arguments: Any, **named: Any) -> Any:
        if fails.is_set():
            raise StoreUnavailable("the store is away")
        return fetch(self, *arguments, **named)

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", failing)
    with reader_of(bucket, ORDERS, tiered_storage_timeout_ms=200) as consumer:
        assert "the store is away" in str(raised(consumer, StoreUnavailable))
        assert "the store is away" in str(raised(consumer, StoreUnavailable))
        fails.clear()
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_a_call_never_outlasts_its_time_whatever_the_store_does(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write(20)
    goes_on = threading.Event()
    fetch = RemoteStorageManager.fetch_log_segment

    def slow(self: RemoteStorageManager, *arguments: Any, **named: Any) -> Any:
        goes_on.wait(DEADLINE_S)
        return fetch(self, *arguments, **named)

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", slow)
    with reader_of(bucket, ORDERS) as consumer:
        begun = time.monotonic()
        assert consumer.consume(5, 0.2) == []
        assert consumer.poll(0) is None
        assert consumer.poll_arrow(0.1) is None
        assert time.monotonic() - begun < 40
        goes_on.set()
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_one_slow_partition_keeps_no_other_waiting(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.write(20)
    bucket.write(20, partition=1)
    goes_on = threading.Event()
    fetch = RemoteStorageManager.fetch_log_segment

    def slow(self: RemoteStorageManager, metadata: Any, *arguments: Any, **named: Any) -> Any:
        if metadata.topic_id_partition.partition == 0:
            goes_on.wait(DEADLINE_S)
        return fetch(self, metadata, *arguments, **named)

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", slow)
    with reader_of(bucket, at(0), at(0, partition=1)) as consumer:
        assert offsets_of(read(consumer, 20), partition=1) == list(range(20))
        goes_on.set()
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_nothing_of_what_was_given_up_comes(bucket: Bucket) -> None:
    bucket.write(200)
    bucket.write(20, partition=1)
    with reader_of(bucket, ORDERS) as consumer:
        read(consumer, 1)
        consumer.incremental_assign([at(0, partition=1)])
        consumer.incremental_unassign([ORDERS])
        messages = read(consumer, 20)
        assert {message.partition() for message in messages} == {1}
        consumer.assign([at(190)])
        assert offsets_of(read(consumer, 10)) == list(range(190, 200))
        consumer.unassign()
        assert consumer.assignment() == []
        assert consumer.consume(1, 0.1) == []


def test_without_a_broker_there_is_no_group(bucket: Bucket) -> None:
    with reader_of(bucket) as consumer:
        for call in (lambda: consumer.subscribe(["orders"]), consumer.commit, lambda: consumer.committed([ORDERS])):
            with pytest.raises(ConfigError, match="needs the group's broker"):
                call()


def test_watermarks_and_times_of_the_bucket(bucket: Bucket) -> None:
    bucket.write(20, skip=10)
    with reader_of(bucket, at(10)) as consumer:
        assert consumer.get_watermark_offsets(ORDERS, 10) == (10, 30)
        read(consumer, 20)
        assert consumer.get_watermark_offsets(ORDERS, cached=True) == (10, 30)
        bucket.write(5)
        assert consumer.get_watermark_offsets(ORDERS, 10) == (10, 35)
        first, none = (consumer.offsets_for_times([at(moment)], 10)[0].offset for moment in (0, 2**50))
        assert (first, none) == (10, -1)


def test_another_life_of_a_topic_is_not_guessed(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, topic_id=SECOND_ID)
    with reader_of(bucket, ORDERS) as consumer:
        # All copies of the second one were made after all of the first.
        assert len(read(consumer, 20)) == 20


def test_closed(bucket: Bucket) -> None:
    bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        read(consumer, 1)
        consumer.close()
        consumer.close()
        for call in (consumer.poll, consumer.consume, consumer.assignment, consumer.unassign, consumer.poll_arrow):
            with pytest.raises(RuntimeError, match="Consumer closed"):
                call()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tieredstore-consumer")]


def test_an_interrupt_loses_nothing(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call had taken when it was interrupted comes with the next one."""
    bucket.write(20)
    with reader_of(bucket, ORDERS) as consumer:
        real, interrupted = MemberClient.consume, threading.Event()

        def interrupting(self: MemberClient, count: int, timeout_s: float) -> list[Any]:
            if timeout_s and consumer.position([ORDERS])[0].offset > 5 and not interrupted.is_set():
                interrupted.set()
                raise KeyboardInterrupt
            return real(self, count, timeout_s)

        monkeypatch.setattr(MemberClient, "consume", interrupting)
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(1000, 30)
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_messages_are_of_the_compiled_class(bucket: Bucket) -> None:
    bucket.write(1)
    with reader_of(bucket, ORDERS) as consumer:
        (message,) = read(consumer, 1)
    assert type(message) is Message


def test_no_partition_of_an_unknown_topic_is_an_error_yet(bucket: Bucket) -> None:
    """The bucket may get it: segments of new topics come late."""
    with reader_of(bucket, ORDERS) as consumer:
        assert consumer.poll(0.2) is None
        bucket.write(20)
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_it_is_a_consumer_of_the_library(bucket: Bucket) -> None:
    with reader_of(bucket) as consumer:
        assert isinstance(consumer, LibraryConsumer)
        assert isinstance(consumer, Consumer)
