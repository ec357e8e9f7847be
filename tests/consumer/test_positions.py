"""Positions with their leader epoch and topic id: without a jump, after jumps, and beyond a truncation of the log."""

from __future__ import annotations

from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.consumer.buckets import DEADLINE_S, ORDERS, PLACE, offsets_of, raised, read, reader_of, until
from tests.support.kafka.mock_kafka import OFFSET_COMMIT, MockKafka, mock_kafka
from tests.support.kafka.scripted_member import SELDOM, ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket, value_of
from tieredstore.consumer import Consumer
from tieredstore.consumer.client import MemberClient
from tieredstore.errors import DataLossError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.live.cluster import GroupCommit
from tieredstore.model import TopicIdPartition
from tieredstore.testing.batches import ANONYMOUS, Producer, Record, build_batch, build_end_marker

MODES: Final = pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])


@MODES
@pytest.mark.parametrize("policy", ["fail", "report"])
@pytest.mark.parametrize("epoch", [None, 0])
def test_a_commit_beyond_a_cut_is_told(bucket: Bucket, mode: str, policy: str, epoch: int | None) -> None:
    """A deposed leader wrote the bucket's records 25 to 39. The group has committed 30, in that log or in its
    replacement.
    """
    bucket.write(40)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 60, cut_at=25, epoch=1)}, committed={ORDERS: 30})
    broker.commits[ORDERS, 30] = GroupCommit(30, None, epoch)
    with broker.consumer(bucket, ORDERS, mode=mode, on_data_loss=policy) as (consumer, _):
        if policy == "fail":
            assert "from offset 25 on" in str(raised(consumer, DataLossError))
            consumer.seek(TopicPartition(*ORDERS, 30))
            assert offsets_of(read(consumer, 30)) == list(range(30, 60))
        else:
            assert offsets_of(read(consumer, 35)) == list(range(25, 60))


@MODES
def test_what_was_read_after_the_cut_stands(bucket: Bucket, mode: str) -> None:
    """The commit has the new epoch, so it refers to the current log. So does an offset that the user assigns."""
    bucket.write(40)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 60, cut_at=25, epoch=1)}, committed={ORDERS: 30})
    broker.commits[ORDERS, 30] = GroupCommit(30, None, 1)
    with broker.consumer(bucket, ORDERS, mode=mode) as (consumer, _):
        assert offsets_of(read(consumer, 30)) == list(range(30, 60))
        consumer.assign([TopicPartition(*ORDERS, 33)])
        assert offsets_of(read(consumer, 27)) == list(range(33, 60))


def test_commits_tell_epoch_and_topic(bucket: Bucket) -> None:
    """Commits of returned records, stored offsets and messages have epoch and topic id. A user's metadata is kept."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 40)})
    ours = f"tieredstore topic.id={FIRST_ID}"
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        messages = read(consumer, 10)
        consumer.commit()
        read(consumer, 40 - len(messages))
        consumer.commit()
        commits = parts_of(consumer).commits
        for message in (messages[0], messages[-1]):
            place = commits.place_behind(message)
            assert (place.offset, place.leader_epoch, place.metadata) == (message.offset() + 1, 0, ours)
    assert broker.commits[ORDERS, len(messages)] == GroupCommit(len(messages), ours, 0)
    assert broker.commits[ORDERS, 40] == GroupCommit(40, ours, 0)
    with broker.consumer(bucket, ORDERS, client={"enable.auto.offset.store": False}) as (consumer, _):
        until(consumer, lambda _: bool(consumer.assignment()))
        for given, metadata in ((TopicPartition(*ORDERS, 5, "of a user", leader_epoch=0), "of a user"), (3, ours)):
            place = given if isinstance(given, TopicPartition) else TopicPartition(*ORDERS, given)
            consumer.store_offsets(offsets=[place])
            consumer.commit()
            assert broker.commits[ORDERS, place.offset].metadata == metadata


@MODES
@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_commit_of_another_life_is_told(bucket: Bucket, mode: str, policy: str) -> None:
    """If the commit's topic id is another topic's, the consumer neither resets nor reads on silently."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40)}, committed={ORDERS: 30})
    broker.commits[ORDERS, 30] = GroupCommit(30, f"tieredstore topic.id={SECOND_ID}", 0)
    with broker.consumer(bucket, ORDERS, mode=mode, on_data_loss=policy) as (consumer, _):
        if policy == "fail":
            told = f"created again as {FIRST_ID}, after orders-0 of {SECOND_ID} was read up to offset 30;"
            assert told in str(raised(consumer, DataLossError))
            consumer.seek(TopicPartition(*ORDERS, 35))
            assert offsets_of(read(consumer, 5)) == list(range(35, 40))
        else:
            assert offsets_of(read(consumer, 40)) == list(range(40))


def test_a_commit_of_another_life_is_replaced_by_the_same_offset(bucket: Bucket) -> None:
    """Otherwise the group's next member would meet the loss again."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40)}, committed={ORDERS: 0})
    broker.commits[ORDERS, 0] = GroupCommit(0, f"tieredstore topic.id={SECOND_ID}", 0)
    with broker.consumer(bucket, ORDERS, mode="kafka_preferred", on_data_loss="fail") as (consumer, _):
        assert f"created again as {FIRST_ID}" in str(raised(consumer, DataLossError))
        consumer.seek(TopicPartition(*ORDERS, 35))
        assert offsets_of(read(consumer, 5)) == list(range(35, 40))
        consumer.seek(TopicPartition(*ORDERS, 0))
        consumer.commit(asynchronous=False)
        assert broker.commits[ORDERS, 0].metadata == f"tieredstore topic.id={FIRST_ID}"


def config_of(mocked: MockKafka, bucket: Bucket) -> dict[str, Any]:
    return {
        "bootstrap.servers": mocked.bootstrap_servers, "group.id": "readers", "log_level": 0,
        "tiered.storage.mode": "remote_only", "tiered.storage.settings": bucket.options,
    }  # fmt: skip


@pytest.mark.parametrize("code", [KafkaError.REBALANCE_IN_PROGRESS, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_an_automatic_commit_that_the_coordinator_refuses_is_repeated(bucket: Bucket, code: int) -> None:
    """No further records arrive. The client and the mock coordinator are librdkafka's; the user's callback is called
    for each answer.
    """
    bucket.write(20)
    answers: list[int | None] = []

    def on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
        first = error or places[0].error
        answers.append(None if first is None else first.code())

    with mock_kafka() as mocked:
        mocked.make_topic("orders")
        config = config_of(mocked, bucket)
        config |= {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 0, "on_commit": on_commit}
        broker = ScriptedBroker({ORDERS: ScriptedLog(0, 0)})
        with broker.reader(config, client=MemberClient) as consumer:
            consumer.assign([TopicPartition(*ORDERS, 0)])
            mocked.push_errors(OFFSET_COMMIT, code)
            read(consumer, 20)
            until(consumer, lambda _: None in answers)
            assert consumer.committed([PLACE], DEADLINE_S)[0].offset == 20
    assert answers == [code, None]


@pytest.mark.parametrize("has_callback", [False, True])
def test_a_last_commit_that_the_coordinator_refuses_is_logged(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, *, has_callback: bool
) -> None:
    """Nobody repeats it. The client and the mock coordinator are librdkafka's."""
    bucket.write(20)
    answers: list[KafkaError] = []
    with mock_kafka() as mocked:
        mocked.make_topic("orders")
        config = {**config_of(mocked, bucket), **SELDOM, "auto.offset.reset": "earliest"}
        config |= {"on_commit": lambda error, _: answers.append(error)} if has_callback else {}
        with ScriptedBroker({ORDERS: ScriptedLog(0, 0)}).reader(config, client=MemberClient) as consumer:
            consumer.assign([TopicPartition(*ORDERS, 0)])
            read(consumer, 20)
            consumer.committed([PLACE], DEADLINE_S)  # the coordinator is known from now on
            mocked.push_errors(OFFSET_COMMIT, KafkaError.REBALANCE_IN_PROGRESS)
    assert "offset 20 of orders-0 was not committed: Broker: Group rebalance in progress" in caplog.text
    assert len(answers) == has_callback


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0, -1])
def test_a_callback_of_close_may_poll_before_the_answer_to_a_commit(bucket: Bucket, timeout: float) -> None:
    """The client and the mock coordinator are librdkafka's. The call returns even without a timeout, because no more
    records arrive.
    """
    given: list[object] = []

    def on_revoke(consumer: Any, _: object) -> None:
        consumer.commit(offsets=[TopicPartition(*ORDERS, 2)])
        given.append(consumer.poll(timeout))

    with mock_kafka() as mocked:
        mocked.make_topic("orders")
        config = config_of(mocked, bucket)
        with ScriptedBroker({ORDERS: ScriptedLog(0, 0)}).reader(config, client=MemberClient) as consumer:
            consumer.subscribe(["orders"], on_revoke=on_revoke)
            until(consumer, lambda _: bool(consumer.assignment()))
        assert given == [None]


@pytest.mark.slow
def test_a_callback_of_close_may_list_topics_before_the_answer_to_a_commit(bucket: Bucket) -> None:
    """The clients and the mock coordinator are librdkafka's."""
    topics: list[str] = []

    def on_revoke(consumer: Any, _: object) -> None:
        consumer.commit(offsets=[TopicPartition(*ORDERS, 2)])
        topics.extend(consumer.list_topics(timeout=DEADLINE_S).topics)

    with mock_kafka() as mocked:
        mocked.make_topic("orders")
        config = config_of(mocked, bucket)
        with Consumer(config) as consumer:
            consumer.subscribe(["orders"], on_revoke=on_revoke)
            until(consumer, lambda _: bool(consumer.assignment()))
        assert topics == ["orders"]


@pytest.mark.parametrize("metadata", ["", "of a user", "tieredstore topic.id=", "tieredstore topic.id=abc"])
def test_metadata_of_others_say_nothing(bucket: Bucket, metadata: str) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 40)}, committed={ORDERS: 30})
    broker.commits[ORDERS, 30] = GroupCommit(30, metadata, 0)
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert offsets_of(read(consumer, 10)) == list(range(30, 40))


def test_a_marker_of_a_new_leader_at_the_buckets_end_is_no_cut(bucket: Bucket) -> None:
    """The marker is the first record of its epoch, and is never returned. Records after it continue the same log, so
    the new epoch is no truncation.
    """
    bucket.write(20)
    marker = build_end_marker(20, Producer(7, 0, -1), commit=True)
    bucket.copy(TopicIdPartition(FIRST_ID, *ORDERS), [marker], range(20, 21), epochs=((0, 0), (1, 20)))
    with reader_of(bucket, TopicPartition(*ORDERS, 0)) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(20))
        until(consumer, lambda _: consumer.position([PLACE])[0].offset == 21)
        bucket.write(9, epochs=((0, 0), (1, 20)))
        assert offsets_of(read(consumer, 9)) == list(range(21, 30))


def copy_aborted_across_segments(bucket: Bucket, number: int) -> None:
    """Copy one of two segments. Records 10 to 24 are of one transaction, which the second segment's marker at 25
    aborts. Record 26 and later ones are of no transaction.
    """
    where, own = TopicIdPartition(FIRST_ID, *ORDERS), Producer(7, 0, 0, transactional=True)

    def batch(offsets: range, producer: Producer = ANONYMOUS) -> bytes:
        records = [Record(value_of(*ORDERS, offset)) for offset in offsets]
        return build_batch(records, offsets.start, producer=producer)

    if number == 0:
        batches = [batch(range(10)), batch(range(10, 20), own)]
        bucket.copy(where, batches, range(20), producers=[ProducerState(7, 0, 9, 19, 9, 0, 0, 10)])
    else:
        later = Producer(7, 0, 10, transactional=True)
        batches = [batch(range(20, 25), later), build_end_marker(25, own, commit=False), batch(range(26, 40))]
        bucket.copy(where, batches, range(20, 40), aborted=[AbortedTransaction(7, 10, 25, 26)])


@MODES
@pytest.mark.parametrize("start", [26, 30, 40])
@pytest.mark.parametrize("is_late", [False, True])
def test_an_aborted_transaction_across_segments_and_the_seam(
    bucket: Bucket, mode: str, start: int, *, is_late: bool
) -> None:
    """The broker's log begins after the transaction. The segment with the marker may arrive late."""
    copy_aborted_across_segments(bucket, 0)
    if not is_late:
        copy_aborted_across_segments(bucket, 1)
    broker = ScriptedBroker({ORDERS: ScriptedLog(start, 50)})
    with broker.consumer(bucket, ORDERS, mode=mode) as (consumer, _):
        given = read(consumer, 10)
        if is_late:
            until(consumer, lambda _: consumer.tiered_stats()[ORDERS]["phase"] == "waiting")
            copy_aborted_across_segments(bucket, 1)
        given += read(consumer, 34 - len(given))
        assert offsets_of(given) == [*range(10), *range(26, 50)]


def test_a_new_leader_within_a_hole_is_no_cut(bucket: Bucket) -> None:
    lost: list[Any] = []
    bucket.write(20)
    bucket.write(10, skip=10, epochs=((0, 0), (1, 25)))
    reporting = {"tiered_storage_on_data_loss": "report", "loss_cb": lost.append}
    with reader_of(bucket, TopicPartition(*ORDERS, 0), **reporting) as consumer:
        assert offsets_of(read(consumer, 30)) == [*range(20), *range(30, 40)]
    assert [(one.start, one.stop) for one in lost] == [(20, 30)]


def test_segments_of_a_deposed_leader_are_not_read_further(bucket: Bucket) -> None:
    """The commit has a later epoch than the bucket's records at its offset, because the segments of the later epoch are
    not uploaded yet.
    """
    bucket.write(40)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 0)}, committed={ORDERS: 30})
    broker.commits[ORDERS, 30] = GroupCommit(30, None, 1)
    with broker.consumer(bucket, ORDERS, mode="remote_only") as (consumer, _):
        until(consumer, lambda _: consumer.tiered_stats().get(ORDERS, {}).get("phase") == "waiting")
        bucket.ends["orders", 0, FIRST_ID] = 25
        bucket.write(25, epochs=((0, 0), (1, 25)))
        assert offsets_of(read(consumer, 20)) == list(range(30, 50))
