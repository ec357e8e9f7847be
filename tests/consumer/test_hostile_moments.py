"""Bucket, broker and user change something between two steps of a consumer. No record is lost without a report."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import pytest
from confluent_kafka import TopicPartition

from tests.consumer.buckets import (
    DEADLINE_S,
    ORDERS,
    OTHERS,
    PLACE,
    Fetches,
    at,
    offsets_of,
    raised,
    read,
    reader_of,
    until,
)
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import SECOND_ID, Bucket
from tieredstore.consumer.partition import Bucket as InBucket
from tieredstore.consumer.partition import Live
from tieredstore.errors import DataLossError


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_call_that_fails_after_its_partition_has_left_the_broker_loses_nothing(
    bucket: Bucket, *, is_eager: bool
) -> None:
    """One call takes records of the broker, meets a loss behind them, and fails in the user's callback."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 10)}, is_eager=is_eager)

    def refuse(_: object) -> NoReturn:
        raise RuntimeError("the user refuses the loss")

    options = {"on_data_loss": "report", "loss_cb": refuse}
    with broker.consumer(bucket, ORDERS, **options) as (consumer, member):
        assert offsets_of(read(consumer, 10)) == list(range(10))
        bucket.write(20)
        bucket.write(10, skip=5)  # the broker's retention soon deletes offsets 20 to 24
        consume, calls = member.consume, iter(range(1000))

        def retain_between(count: int, timeout_s: float) -> Any:
            if next(calls) == 0:
                broker.logs[ORDERS].end = 20
            elif broker.logs[ORDERS].start == 0:
                broker.logs[ORDERS] = ScriptedLog(35, 40)
            return consume(count, timeout_s)

        member.consume = retain_between  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="refuses the loss"):
            consumer.consume(100, DEADLINE_S)
        # The failed call has returned nothing, so none of its records may be skipped.
        assert consumer.position([PLACE])[0].offset == 10
        member.consume = consume  # type: ignore[method-assign]
        given = until(consumer, lambda messages: len(messages) >= 10, count=10)
        assert offsets_of(given) == list(range(10, 20))


def test_a_topic_created_again_while_its_partition_waits_for_its_first_resume(bucket: Bucket) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        read(consumer, 10)
        consumer.commit()
        member.revoke_by_group(ORDERS)
        consumer.poll(0)
        consumer.pause([PLACE])  # the pause outlasts the assignment
        member.assign_by_group(ORDERS)
        until(consumer, lambda _: consumer.position([PLACE])[0].offset >= 0)
        broker.topic_id = SECOND_ID
        broker.logs[ORDERS] = ScriptedLog(0, 30)
        consumer.resume([PLACE])
        assert "was created again" in str(raised(consumer, DataLossError))


def test_a_seek_in_the_loss_callback_is_obeyed(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    broker = ScriptedBroker({ORDERS: ScriptedLog(50, 50)})
    sought: list[int] = []

    def go_back(_: object) -> None:
        if not sought:
            sought.append(5)
            consumer.seek(TopicPartition(*ORDERS, 5))

    with broker.consumer(bucket, ORDERS, on_data_loss="report", loss_cb=go_back) as (consumer, _):
        given = offsets_of(read(consumer, 55))
        assert given == [*range(20), *range(5, 20), *range(30, 50)]


def test_a_partition_given_up_in_the_loss_callback_stays_given_up(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    bucket.write(20, partition=1)
    broker = ScriptedBroker({ORDERS: ScriptedLog(50, 50), OTHERS: ScriptedLog(20, 25)})
    gone: list[object] = []

    def give_up(lost: object) -> None:
        gone.append(lost)
        consumer.incremental_unassign([PLACE])

    with broker.consumer(bucket, ORDERS, OTHERS, on_data_loss="report", loss_cb=give_up) as (consumer, _):
        given = until(consumer, lambda got: len(got) >= 45 and bool(gone))
        assert offsets_of(given) == list(range(20))
        assert offsets_of(given, 1) == list(range(25))


def test_everything_given_up_in_the_loss_callback(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    bucket.write(2000, partition=1)
    broker = ScriptedBroker({ORDERS: ScriptedLog(50, 50), OTHERS: ScriptedLog(2000, 2000)})
    gone: list[object] = []

    def give_up(lost: object) -> None:
        gone.append(lost)
        consumer.incremental_unassign(consumer.assignment())

    with broker.consumer(bucket, ORDERS, OTHERS, on_data_loss="report", loss_cb=give_up) as (consumer, _):
        until(consumer, lambda _: bool(gone), count=7)
        assert consumer.assignment() == []
        assert consumer.consume(10, 0.01) == []


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_an_interrupted_call_during_which_the_topic_is_created_again(bucket: Bucket, policy: str) -> None:
    """The call has taken records of the old topic. The new topic is read from its beginning, or not at all."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    with broker.consumer(bucket, ORDERS, mode="remote_preferred", on_data_loss=policy) as (consumer, member):
        read(consumer, 30)
        broker.logs[ORDERS].end = 35
        consume, taken = member.consume, [0]

        def create_again(count: int, timeout_s: float) -> Any:
            given = consume(count, timeout_s)
            taken[0] += len(given)
            if taken[0] == 5 and broker.topic_id != SECOND_ID:
                broker.topic_id = SECOND_ID
                broker.logs[ORDERS] = ScriptedLog(0, 40)
            known = parts_of(consumer).core.partitions[ORDERS]
            if broker.topic_id == SECOND_ID and not isinstance(known.phase, Live) and given == []:
                member.consume = consume  # type: ignore[method-assign]
                raise KeyboardInterrupt
            return given

        member.consume = create_again  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(1000, DEADLINE_S)
        if policy == "fail":
            assert "was created again" in str(raised(consumer, DataLossError))
            assert consumer.position([PLACE])[0].offset == 30
        else:
            assert offsets_of(read(consumer, 40)) == list(range(40))


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_reads_that_fail_for_want_of_memory_are_repeated(bucket: Bucket, fetches: Fetches, policy: str) -> None:
    """The records are not damaged, so nothing is skipped. The threads that read survive each failure."""
    bucket.write(20)
    lost: list[Any] = []
    own = {"tiered_storage_on_data_loss": policy, "loss_cb": lost.append, "tiered_storage_partitions_at_once": 1}
    with reader_of(bucket, PLACE, **own) as consumer:
        for _ in range(3):
            fetches.fail(MemoryError("no memory is left"))
            assert "no memory is left" in str(raised(consumer, Exception))
            fetches.go_on()
            consumer.seek(at(0))
            assert offsets_of(read(consumer, 20)) == list(range(20))
            consumer.seek(at(0))
        assert lost == []
        assert offsets_of(read(consumer, 20)) == list(range(20))


def test_a_loss_callback_that_raises_loses_no_records(bucket: Bucket) -> None:
    """One call takes all records of the bucket, then reports their damaged batch."""
    segment = bucket.write(200)
    (path,) = bucket.root.rglob(f"{segment.start_offset:020d}-*.log")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    failures = [RuntimeError("the user refuses the loss")]

    def refuse_once(_: object) -> None:
        if failures:
            raise failures.pop()

    own = {"tiered_storage_on_data_loss": "report", "loss_cb": refuse_once}
    with reader_of(bucket, PLACE, **own) as consumer:
        core, end = parts_of(consumer).core, time.monotonic() + DEADLINE_S
        while not (core.readable and isinstance(core.readable[0].phase, InBucket) and _is_read(core.readable[0].phase)):
            assert time.monotonic() < end
            core.tick()
        with pytest.raises(RuntimeError, match="refuses the loss"):
            consumer.consume(1000, DEADLINE_S)
        assert consumer.position([PLACE])[0].offset == 0
        assert len(until(consumer, lambda given: len(given) >= 190)) == 190


def _is_read(phase: InBucket) -> bool:
    return phase.stream.is_done
