"""Calls that assign, pause, seek and commit: our consumer accepts and refuses the same ones as confluent-kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_END, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from tests.consumer.buckets import ORDERS, OTHERS, offsets_of, raised, read, until
from tests.support.kafka.fatal_errors import FATAL, raise_fatal
from tests.support.kafka.scripted_member import SELDOM, ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import Bucket
from tieredstore.consumer import Consumer
from tieredstore.model import TopicPartition as Where

BOTH: Final = (ORDERS, OTHERS)
EAGER: Final = pytest.mark.parametrize("is_eager", [False, True])
MODES: Final = pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])


def places(*wheres: Where) -> list[TopicPartition]:
    return [TopicPartition(*where) for where in wheres]


def tail(count: int) -> int:
    """Return librdkafka's RD_KAFKA_OFFSET_TAIL."""
    return -2000 - count


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as error:
        call()
    code: int = error.value.args[0].code()
    return code


@pytest.mark.parametrize("mode", ["kafka_only", "kafka_preferred"])
@pytest.mark.parametrize(
    "call",
    [lambda one: one.poll(0.2), lambda one: one.consume(1, 0.2), Consumer.close],
    ids=["poll", "consume", "close"],
)
def test_a_fatal_error_of_the_client_is_an_exception(
    bucket: Bucket, call: Callable[[Consumer], object], mode: str
) -> None:
    """confluent-kafka raises a bare KafkaError. This is not an exception class, so raising it would end the process."""
    properties: dict[str, Any] = {
        "bootstrap.servers": "127.0.0.1:9", "group.id": "none", "log_level": 0, "statistics.interval.ms": 1,
        "stats_cb": raise_fatal, "tiered.storage.settings": bucket.options, "tiered.storage.mode": mode,
    }  # fmt: skip

    def call_until_statistics() -> None:
        while True:
            consumer = Consumer(properties)
            try:
                call(consumer)
            finally:
                with contextlib.suppress(KafkaException):
                    consumer.close()

    with pytest.raises(KafkaException) as error:
        call_until_statistics()
    assert error.value.args == (FATAL,)


# ---- leaving a group and joining it again


@EAGER
@MODES
def test_unsubscribed_and_subscribed_again(bucket: Bucket, mode: str, *, is_eager: bool) -> None:
    """All partitions are read first from the bucket, then from the broker, and continue at their committed offsets."""
    for partition in range(2):
        bucket.write(20, partition=partition)
    broker = ScriptedBroker({where: ScriptedLog(20, 40) for where in BOTH}, is_eager=is_eager)
    with broker.consumer(bucket, *BOTH, mode=mode) as (consumer, member):
        given = read(consumer, 80)
        for end in (60, 80):
            consumer.unsubscribe()
            assert consumer.assignment() == places(*BOTH)  # kept until a call reports the revocation
            assert until(consumer, lambda _: not consumer.assignment()) == []
            assert member.fetching == {}
            consumer.subscribe(["orders"])
            member.assign_by_group(*BOTH)
            for where in BOTH:
                broker.logs[where].end = end
            given += read(consumer, 40)
        for partition in range(2):
            assert offsets_of(given, partition) == list(range(80))


@EAGER
def test_revoked_partitions_can_be_committed_in_the_callback(bucket: Bucket, *, is_eager: bool) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)}, is_eager=is_eager)
    committed: list[Any] = []

    def on_revoke(consumer: Consumer, revoked: list[TopicPartition]) -> None:
        committed.append((revoked, consumer.commit(asynchronous=False), consumer.position(revoked)[0].offset))

    with broker.consumer(bucket, ORDERS) as (consumer, _):
        consumer.subscribe(["orders"], on_revoke=on_revoke)
        read(consumer, 20)
        consumer.unsubscribe()
        until(consumer, lambda _: bool(committed))
    assert broker.committed == {ORDERS: 20}
    assert [(revoked, position) for revoked, _, position in committed] == [(places(ORDERS), 20)]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_revocation_ends_only_after_the_commit(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, is_given_up: bool
) -> None:
    """The client may rejoin the group at its first call of ``incremental_unassign``, even if the user's callback makes
    this call. The next owner of the partition then reads the group's commit.
    """
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, client=SELDOM) as (consumer, member):
        unassign, committed = member.incremental_unassign, list[int | None]()

        def note(places: Any) -> None:
            committed.append(broker.committed.get(ORDERS))
            unassign(places)

        monkeypatch.setattr(member, "incremental_unassign", note)

        def on_revoke(consumer: Consumer, revoked: list[TopicPartition]) -> None:
            if is_given_up:
                consumer.incremental_unassign(revoked)

        consumer.subscribe(["orders"], on_revoke=on_revoke)
        read(consumer, 20)
        member.revoke_by_group(ORDERS)
        until(consumer, lambda _: bool(committed))
        assert set(committed) == {20}


@pytest.mark.parametrize("is_eager", [False, True])
def test_lost_partitions_are_not_committed_even_if_the_callback_gives_them_up(
    bucket: Bucket, *, is_eager: bool
) -> None:
    """The usual callback of cooperative rebalancing gives partitions up. Another member may own lost ones."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS, client=SELDOM) as (consumer, member):
        called: list[int] = []

        def on_revoke(consumer: Consumer, lost: list[TopicPartition]) -> None:
            called.append(consumer.position(lost)[0].offset)
            if is_eager:
                consumer.unassign()
            else:
                consumer.incremental_unassign(lost)

        consumer.subscribe(["orders"], on_revoke=on_revoke)
        read(consumer, 20)
        member.revoke_by_group(ORDERS, are_lost=True)
        until(consumer, lambda _: bool(called))
        assert called == [20]
    assert broker.committed == {}


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_call_in_a_callback_does_not_commit_what_the_outer_call_has_collected(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, is_given_up: bool
) -> None:
    """The outer call drops the records of revoked partitions, so the next owner must return them."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        consume, revoked = member.consume, list[int]()

        def revoke_after(count: int, timeout_s: float) -> list[Any]:
            messages = consume(count, timeout_s)
            if messages:
                member.revoke_by_group(ORDERS)
            return messages

        def on_revoke(consumer: Consumer, places: list[TopicPartition]) -> None:
            if is_given_up:
                consumer.incremental_unassign(places)
            assert consumer.poll(0) is None
            revoked.extend(place.partition for place in places)

        monkeypatch.setattr(member, "consume", revoke_after)
        consumer.subscribe(["orders"], on_revoke=on_revoke)
        while not revoked:
            assert consumer.consume(100, 0.05) == []
        assert broker.committed.get(ORDERS, 0) == 0


def test_manually_assigned_partitions_stay_when_a_group_is_left(bucket: Bucket) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, OTHERS) as (consumer, member):
        member.rebalances.clear()
        consumer.assign([TopicPartition(*ORDERS, 5)])
        consumer.unsubscribe()
        assert offsets_of(read(consumer, 15)) == list(range(5, 20))
        assert consumer.assignment() == places(ORDERS)


def test_a_client_that_refuses_one_partition_takes_the_others(bucket: Bucket) -> None:
    """The call raises the client's error. A later call tries this partition again, and uses the result that the look-up
    had for the other partition.
    """
    broker = ScriptedBroker({where: ScriptedLog(0, 20) for where in BOTH})
    with broker.consumer(bucket, *BOTH) as (consumer, member):
        member.fetching[ORDERS] = 0
        error = raised(consumer, KafkaException)
        assert error.args[0].code() == KafkaError._CONFLICT
        del member.fetching[ORDERS]
        messages = read(consumer, 40)
        assert [offsets_of(messages, number) for number in range(2)] == [list(range(20))] * 2


def test_a_callback_for_losses_that_raises_ends_no_partition(bucket: Bucket) -> None:
    """The call raises the callback's error. The partition continues as soon as the callback succeeds."""
    bucket.write(10)
    lost: list[Any] = []

    def loss_cb(extent: Any) -> None:
        lost.append(extent)
        if len(lost) < 3:
            raise ValueError("not now")

    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 30)})
    own: dict[str, Any] = {"on_data_loss": "report", "loss_cb": loss_cb}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        given = until(consumer, lambda messages: len(messages) == 10, count=5)
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                until(consumer, lambda _: len(lost) >= 3)
        given += read(consumer, 10)
        assert {(one.start, one.stop) for one in lost} == {(10, 20)}
        assert offsets_of(given) == [*range(10), *range(20, 30)]


# ---- pauses


@EAGER
@MODES
def test_a_pause_outlives_the_assignment(bucket: Bucket, mode: str, *, is_eager: bool) -> None:
    """A pause made while reading the broker also holds for the bucket. A resume ends the pause in both."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40), OTHERS: ScriptedLog(0, 10)}, is_eager=is_eager)
    with broker.consumer(bucket, *BOTH, mode=mode) as (consumer, member):
        read(consumer, 50)
        consumer.pause(places(ORDERS))
        member.revoke_by_group(*BOTH)
        assert until(consumer, lambda _: not consumer.assignment()) == []
        broker.committed.clear()
        member.assign_by_group(*BOTH)
        assert offsets_of(read(consumer, 10), 1) == list(range(10))
        assert consumer.tiered_stats()[ORDERS]["paused"]
        consumer.resume(places(ORDERS))
        assert offsets_of(read(consumer, 40)) == list(range(40))


@EAGER
def test_paused_or_resumed_between_two_assignments(bucket: Bucket, *, is_eager: bool) -> None:
    """Test assignments by hand. As in librdkafka, only partitions that were ever assigned can be paused."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40), OTHERS: ScriptedLog(0, 10)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        member.rebalances.clear()
        consumer.pause(places(*BOTH))  # nothing is assigned yet
        consumer.assign(places(*BOTH))
        read(consumer, 50)
        consumer.unassign()
        consumer.pause(places(ORDERS))
        consumer.assign([TopicPartition(*where, 0) for where in BOTH])
        assert offsets_of(read(consumer, 10), 1) == list(range(10))
        consumer.unassign()
        consumer.resume(places(ORDERS))
        consumer.assign([TopicPartition(*ORDERS, 0)])
        assert offsets_of(read(consumer, 40)) == list(range(40))


@EAGER
@MODES
@pytest.mark.parametrize(("offset", "start"), [(OFFSET_END, 40), (tail(3), 37), (tail(25), 15)])
def test_a_place_by_the_end_is_looked_up_while_paused(
    bucket: Bucket, mode: str, offset: int, start: int, *, is_eager: bool
) -> None:
    """Records written between the seek and the resume are returned."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS, mode=mode) as (consumer, _):
        read(consumer, 40)
        consumer.pause(places(ORDERS))
        consumer.seek(TopicPartition(*ORDERS, offset))
        assert until(consumer, lambda _: consumer.position(places(ORDERS))[0].offset == start) == []
        broker.logs[ORDERS].end = 45
        consumer.resume(places(ORDERS))
        assert offsets_of(read(consumer, 45 - start)) == list(range(start, 45))


# ---- logical offsets, and positions


@MODES
def test_a_count_from_the_end(bucket: Bucket, mode: str) -> None:
    """The count starts at the broker's end, in the bucket too. If there are fewer records, all are read."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40)})
    with broker.consumer(bucket, ORDERS, mode=mode) as (consumer, member):
        member.rebalances.clear()
        for count in (5, 30, 500):
            consumer.assign([TopicPartition(*ORDERS, tail(count))])
            assert offsets_of(read(consumer, min(count, 40))) == list(range(max(0, 40 - count), 40))
            consumer.seek(TopicPartition(*ORDERS, tail(count)))
            assert offsets_of(read(consumer, min(count, 40))) == list(range(max(0, 40 - count), 40))


def test_the_end_is_the_last_stable_offset(bucket: Bucket) -> None:
    """For ``read_committed`` the end is the broker's last stable offset, whatever the reset."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40, stable=30)})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        member.rebalances.clear()
        for offset, first in ((OFFSET_END, 30), (tail(5), 25)):
            consumer.assign([TopicPartition(*ORDERS, offset)])
            assert read(consumer, 40 - first)[0].offset() == first


def test_seeks(bucket: Bucket) -> None:
    """A seek without an offset goes to the reset position. The committed offset is not a valid seek target."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40)}, committed={ORDERS: 35})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert offsets_of(read(consumer, 5)) == list(range(35, 40))
        for refused in (OFFSET_STORED, -3, -999):
            assert code_of(partial(consumer.seek, TopicPartition(*ORDERS, refused))) == KafkaError._INVALID_ARG
        assert code_of(lambda: consumer.seek(TopicPartition(*OTHERS, 5))) == KafkaError._STATE
        assert consumer.consume(1, 0.01) == []
        consumer.seek(TopicPartition(*ORDERS))
        assert offsets_of(read(consumer, 40)) == list(range(40))


# ---- commits


def test_commits_of_partitions_with_and_without_a_position(bucket: Bucket) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20), OTHERS: ScriptedLog(0, 0)})

    def committed(consumer: Consumer) -> dict[int, int]:
        return {place.partition: place.offset for place in consumer.commit(asynchronous=False)}

    with broker.consumer(bucket, *BOTH, client={"enable.auto.commit": False}) as (consumer, _):
        assert code_of(lambda: consumer.commit(asynchronous=False)) == KafkaError._NO_OFFSET
        assert consumer.commit() is None
        read(consumer, 20)
        assert committed(consumer) == {0: 20, 1: -1001}
        assert code_of(lambda: consumer.commit(asynchronous=False)) == KafkaError._NO_OFFSET
        broker.logs[OTHERS].end = 7
        read(consumer, 7)
        assert committed(consumer) == {0: -1001, 1: 7}
        assert broker.committed == {ORDERS: 20, OTHERS: 7}


def test_a_commit_of_the_same_offset_after_another_member_went_back(bucket: Bucket) -> None:
    """Between the two commits, another member had the partition, and committed a lower offset."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, client={"enable.auto.commit": False}) as (consumer, member):
        read(consumer, 20)
        consumer.commit(asynchronous=False)
        member.revoke_by_group(ORDERS)
        assert until(consumer, lambda _: not consumer.assignment()) == []
        broker.committed[ORDERS] = 10
        member.assign_by_group(ORDERS)
        assert offsets_of(read(consumer, 10)) == list(range(10, 20))
        consumer.commit(asynchronous=False)
        assert broker.committed == {ORDERS: 20}


@pytest.mark.parametrize("call", ["commit", "offsets", "automatic"])
def test_a_commit_of_the_same_offset_after_an_asynchronous_commit(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The last commit that this member has waited for is not the group's last commit."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40)})
    with broker.consumer(bucket, ORDERS, client=SELDOM) as (consumer, member):
        until(consumer, lambda given: len(given) == 20, count=20)
        consumer.commit(asynchronous=False)
        until(consumer, lambda given: len(given) == 20, count=20)
        if call == "automatic":
            parts_of(consumer).commits.commit_auto()
        elif call == "commit":
            consumer.commit()
        else:
            with monkeypatch.context() as patched:
                # The call goes to confluent-kafka's class, which is written in C: its methods cannot be replaced.
                base = SimpleNamespace(commit=lambda _, offsets, **__: member.commit(offsets))
                patched.setattr("tieredstore.consumer.consumer._base", base)
                consumer.commit(offsets=[TopicPartition(*ORDERS, 40)])
        assert broker.committed == {ORDERS: 40}
        consumer.seek(TopicPartition(*ORDERS, 20))
        consumer.commit(asynchronous=False)
        assert broker.committed == {ORDERS: 20}


def test_a_commit_right_after_a_seek_is_of_where_it_stands(bucket: Bucket) -> None:
    """A commit right after a seek has the sought offset, even before the look-up, and even if the consumer closes."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        read(consumer, 20)
        consumer.seek(TopicPartition(*ORDERS, 5))
        consumer.commit(asynchronous=False)
        assert broker.committed == {ORDERS: 5}
        consumer.seek(TopicPartition(*ORDERS, 7))
    assert broker.committed == {ORDERS: 7}


# ---- refused calls change nothing


def test_refused_assignments_leave_what_there_is(bucket: Bucket) -> None:
    bucket.write(20)
    broker = ScriptedBroker({where: ScriptedLog(20, 40) for where in BOTH})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        given = until(consumer, bool, count=3)
        member.is_group_cooperative = True
        assert code_of(lambda: consumer.assign(places(OTHERS))) == KafkaError._STATE
        assert code_of(consumer.unassign) == KafkaError._STATE
        for twice in (consumer.assign, consumer.incremental_assign):
            assert code_of(partial(twice, places(OTHERS, OTHERS))) == KafkaError._INVALID_ARG
        assert code_of(lambda: consumer.incremental_assign([TopicPartition(*OTHERS, -3)])) == KafkaError._INVALID_ARG
        assert code_of(lambda: consumer.incremental_assign(places(OTHERS, ORDERS))) == KafkaError._CONFLICT
        assert code_of(lambda: consumer.incremental_unassign(places(ORDERS, OTHERS))) == KafkaError._INVALID_ARG
        assert code_of(lambda: consumer.incremental_unassign(places(ORDERS, ORDERS))) == KafkaError._INVALID_ARG
        assert consumer.assignment() == places(ORDERS)
        given += until(consumer, lambda messages: len(given + messages) >= 40)
        assert offsets_of(given) == list(range(40))


def test_members_that_assign_all_at_once_are_refused_single_ones(bucket: Bucket) -> None:
    broker = ScriptedBroker({where: ScriptedLog(0, 20) for where in BOTH}, is_eager=True)
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        read(consumer, 20)
        assert code_of(lambda: consumer.incremental_assign(places(OTHERS))) == KafkaError._STATE
        assert code_of(lambda: consumer.incremental_unassign(places(ORDERS))) == KafkaError._STATE
        assert consumer.assignment() == places(ORDERS)
        broker.logs[ORDERS].end = 30
        assert offsets_of(read(consumer, 10)) == list(range(20, 30))


CALLS: Final = (
    "assign", "incremental_assign", "incremental_unassign", "pause", "resume", "position", "seek", "committed",
    "get_watermark_offsets", "offsets_for_times",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("argument", [3, (), [3], None])
def test_arguments_of_the_wrong_type(bucket: Bucket, call: str, argument: Any) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS) as (consumer, _), pytest.raises(TypeError):
        getattr(consumer, call)(argument)


def test_arguments_of_store_offsets_and_commit(bucket: Bucket) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    unsettled: Any = 3
    with broker.consumer(bucket, ORDERS, client={"enable.auto.offset.store": False}) as (consumer, _):
        message = read(consumer, 20)[0]
        for refused, kind in (
            ({}, ValueError), ({"message": message, "offsets": places(ORDERS)}, ValueError),
            ({"message": unsettled}, TypeError), ({"offsets": (places(ORDERS)[0],)}, TypeError),
        ):  # fmt: skip
            with pytest.raises(kind):
                consumer.store_offsets(**refused)
        assert code_of(lambda: consumer.store_offsets(offsets=[TopicPartition(*OTHERS, 3)])) == KafkaError._STATE
        # Accept assigned partitions, and ignore an invalid offset.
        consumer.store_offsets(offsets=[TopicPartition(*ORDERS, 3), TopicPartition(*OTHERS, 3)])
        assert consumer.commit(asynchronous=False) == [TopicPartition(*ORDERS, 3)]
        consumer.store_offsets(offsets=places(ORDERS))
        assert code_of(lambda: consumer.commit(asynchronous=False)) == KafkaError._NO_OFFSET
        for refused, kind in (
            ({"message": message, "offsets": places(ORDERS)}, ValueError), ({"message": unsettled}, TypeError),
            ({"offsets": unsettled}, TypeError),
        ):  # fmt: skip
            with pytest.raises(kind):
                consumer.commit(**refused)
