"""Faults beneath a consumer: store, broker, keys, truncated logs. Nothing is skipped, and every fault is reported."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.consumer.buckets import (
    DEADLINE_S,
    ORDERS,
    OTHERS,
    PLACE,
    Fetches,
    offsets_of,
    raised,
    read,
    read_patiently,
    reader_of,
    until,
)
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import SECOND_ID, Bucket
from tests.support.stores.doubles import FaultyStore, Moment
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import Settings
from tieredstore.consumer.assembly import Makers
from tieredstore.errors import BrokerUnavailableError, DataLossError, TieredStoreError
from tieredstore.remote import RemoteStorageManager


class FaultyStores:
    """Faulty stores for consumers that use ``makers``."""

    def __init__(self) -> None:
        self.fail_at: int | None = None
        self.moment: Moment = "before"
        self.stores: list[FaultyStore] = []
        self.makers = Makers(manager=self._manager, first_pause_s=0.002)

    def _manager(self, chosen: Settings, **more: Any) -> RemoteStorageManager:
        store = FaultyStore(store_from_settings(chosen), self.fail_at, moment=self.moment)
        self.stores.append(store)
        return RemoteStorageManager(chosen, store=store, **more)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_the_store_fails_at_each_single_operation(bucket: Bucket, moment: Moment) -> None:
    for _ in range(2):
        bucket.write(20)
        bucket.write(20, partition=1)
    stores, places = FaultyStores(), (PLACE, TopicPartition(*OTHERS))
    with reader_of(bucket, *places, makers=stores.makers) as consumer:
        read(consumer, 80)
    operations = len(stores.stores[0].operations)
    assert operations >= 8
    stores.moment = moment
    for stores.fail_at in range(operations):
        with reader_of(bucket, *places, makers=stores.makers) as consumer:
            messages = read(consumer, 80)
        for partition in range(2):
            assert offsets_of(messages, partition) == list(range(40)), stores.stores[-1].failed


def test_a_broker_that_is_away_holds_up_nobody_who_reads_the_bucket(bucket: Bucket) -> None:
    """A lasting outage of the broker is reported; the consumer recovers by itself."""
    bucket.write(400)
    broker = ScriptedBroker({ORDERS: ScriptedLog(400, 430), OTHERS: ScriptedLog(0, 10)})
    with broker.consumer(bucket, ORDERS, timeout_ms=200) as (consumer, member):
        given = read(consumer, 5)
        broker.failures = 10**9
        member.assign_by_group(OTHERS)
        error: TieredStoreError | None = None
        end = time.monotonic() + DEADLINE_S
        while len(given) < 400 or error is None:
            assert time.monotonic() < end
            try:
                given += consumer.consume(50, 0.05)
            except BrokerUnavailableError as unavailable:
                error = unavailable
        assert offsets_of(given) == list(range(400))
        broker.failures = 0
        rest = read_patiently(consumer, 40)
    assert offsets_of(rest) == list(range(400, 430))
    assert offsets_of(rest, 1) == list(range(10))


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_log_that_was_cut_below_what_was_read(bucket: Bucket, policy: str) -> None:
    """The consumer passes a leader epoch to librdkafka, which detects the unclean election by it."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 50)})
    with broker.consumer(bucket, ORDERS, on_data_loss=policy) as (consumer, member):
        read(consumer, 50)
        member.truncated.add(ORDERS)
        broker.logs[ORDERS].end = 60
        if policy == "fail":
            for _ in range(2):
                assert "seek to another offset" in str(raised(consumer, DataLossError))
            consumer.seek(TopicPartition(*ORDERS, 55))
            assert offsets_of(read(consumer, 5)) == list(range(55, 60))
        else:
            assert offsets_of(read(consumer, 10)) == list(range(50, 60))


@pytest.mark.parametrize("policy", ["fail", "report"])
@pytest.mark.parametrize("is_eager", [False, True])
def test_a_log_that_was_cut_below_the_bucket_and_has_grown_beyond(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: str, *, is_eager: bool
) -> None:
    """At the switch to the broker, only a seek tells the client the leader epoch of the bucket's last record. The
    client accepts the seek only after it has started to fetch the partition.
    """
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 50, cut_at=12)})
    options = {"on_data_loss": policy, "mode": "remote_preferred"}
    with broker.consumer(bucket, ORDERS, **options) as (consumer, member):
        parts_of(consumer).core.live.is_eager = is_eager
        member.is_eager = is_eager
        seek, refusals = member.seek, iter([True, True])

        def slow(where: Any, offset: int, epoch: int | None = None) -> None:
            if next(refusals, False):
                raise KafkaException(KafkaError(KafkaError._STATE, "it is not being fetched yet"))
            seek(where, offset, epoch)

        monkeypatch.setattr(member, "seek", slow)
        if policy == "fail":
            assert offsets_of(read(consumer, 20)) == list(range(20))
            assert "seek to another offset" in str(raised(consumer, DataLossError))
        else:
            # The replacement records are returned too, from the offset on where the log was truncated.
            assert offsets_of(read(consumer, 58)) == [*range(20), *range(12, 50)]
            assert "the requested offset is not available" in caplog.text


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_broker_whose_log_ends_before_what_was_read(bucket: Bucket, policy: str) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 12)})
    with broker.consumer(bucket, ORDERS, on_data_loss=policy, mode="remote_preferred") as (
        consumer,
        _,
    ):
        read(consumer, 20)
        if policy == "fail":
            assert "ends at offset 12" in str(raised(consumer, DataLossError))
            consumer.seek(TopicPartition(*ORDERS, 12))
        else:
            until(consumer, lambda _: _phase(consumer) == "live")
        # The log was truncated. From that offset on, the bucket's records belong to a discarded log.
        broker.logs[ORDERS].end = 25
        assert offsets_of(read(consumer, 13)) == list(range(12, 25))


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_bucket_whose_log_is_another_one_than_was_read(bucket: Bucket, policy: str) -> None:
    """The record before the position has epoch 0. A later upload shows that epoch 1 began before that record."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    options = {"on_data_loss": policy, "mode": "remote_preferred"}
    with broker.consumer(bucket, ORDERS, **options) as (consumer, _):
        read(consumer, 30)  # the broker returns ten of these records
        for _ in range(2):
            bucket.write(10, epochs=((0, 0), (1, 20)))
        broker.logs[ORDERS] = ScriptedLog(40, 40)
        if policy == "fail":
            assert "leader epochs differ" in str(raised(consumer, DataLossError))
        else:
            assert offsets_of(read(consumer, 20)) == list(range(20, 40))


def test_a_topic_that_is_created_again_is_not_read_on(bucket: Bucket) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    with broker.consumer(bucket, ORDERS, mode="remote_preferred") as (consumer, _):
        read(consumer, 30)
        broker.topic_id = SECOND_ID
        broker.logs[ORDERS] = ScriptedLog(0, 30)
        assert "was created again" in str(raised(consumer, DataLossError))
        consumer.seek(TopicPartition(*ORDERS, 10))
        assert offsets_of(read(consumer, 20)) == list(range(10, 30))


def _phase(consumer: Any) -> str | None:
    known = consumer.tiered_stats().get(ORDERS)
    return None if known is None else known["phase"]


def test_each_call_serves_the_client_while_the_store_hangs(bucket: Bucket, fetches: Fetches) -> None:
    """A client that is not polled leaves the group. A slow store must not cause that."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 20), OTHERS: ScriptedLog(0, 5)})
    goes_on = fetches.hold()
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        until(consumer, lambda _: _phase(consumer) == "bucket")
        for call in (lambda: consumer.poll(0.05), lambda: consumer.consume(9, 0.05), lambda: consumer.poll_arrow(0.05)):
            before = member.calls
            assert not call()
            assert member.calls > before
        member.assign_by_group(OTHERS)  # a rebalance during the call
        assert offsets_of(until(consumer, lambda given: len(given) >= 5), 1) == list(range(5))
        goes_on.set()
        assert offsets_of(read(consumer, 20)) == list(range(20))
