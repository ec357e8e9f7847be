"""Faults around a consumer: store, broker, keys, truncated logs, callbacks. Nothing is skipped without a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

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
    read_patiently,
    reader_of,
    until,
)
from tests.support.kafka.scripted_member import ScriptedBroker, ScriptedCluster, ScriptedLog, parts_of
from tests.support.records.topic_buckets import SECOND_ID, Bucket
from tests.support.stores.doubles import FaultyStore, Moment
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import Settings
from tieredstore.consumer.assembly import Makers
from tieredstore.consumer.partition import Bucket as InBucket
from tieredstore.consumer.partition import Live
from tieredstore.errors import BrokerUnavailableError, DataLossError, TieredStoreError
from tieredstore.model import RemoteLogSegmentMetadata
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


@pytest.mark.slow
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


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_a_partition_without_a_leader_holds_up_no_other(bucket: Bucket, mode: str) -> None:
    """Its error is reported if it lasts. Once there is a leader again, the partition is read."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 30), OTHERS: ScriptedLog(0, 10, has_leader=False)})
    with broker.consumer(bucket, ORDERS, OTHERS, mode=mode, timeout_ms=200) as (consumer, _):
        assert offsets_of(read_patiently(consumer, 30)) == list(range(30))
        assert "orders-1 has no leader now" in str(raised(consumer, BrokerUnavailableError))
        broker.logs[ORDERS].end = 40
        assert offsets_of(read_patiently(consumer, 10)) == list(range(30, 40))
        broker.logs[OTHERS].has_leader = True
        assert offsets_of(read_patiently(consumer, 10), 1) == list(range(10))


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_broker_that_refuses_an_offset_that_it_claims_to_have(bucket: Bucket, *, is_eager: bool) -> None:
    """For example, a broker with tiered storage that cannot find its remote segment. The refusals are reported if they
    last.
    """
    broker = ScriptedBroker({ORDERS: ScriptedLog(10, 20), OTHERS: ScriptedLog(0, 10)}, is_eager=is_eager)

    class Claims(ScriptedCluster):
        def earliest_offsets(self, wheres: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
            return dict.fromkeys(wheres, 0)

    makers = {"cluster": lambda *_, **__: Claims(broker)}
    with broker.consumer(bucket, ORDERS, OTHERS, makers=makers, timeout_ms=200) as (consumer, _):
        assert offsets_of(read_patiently(consumer, 10), 1) == list(range(10))
        for _ in range(2):
            error = raised(consumer, BrokerUnavailableError)
            assert "orders-0 cannot be read from offset 0: the requested offset is not available" in str(error)
        broker.logs[ORDERS].start = 0
        assert offsets_of(read_patiently(consumer, 20)) == list(range(20))


def test_an_offset_that_is_refused_once_after_an_outage_is_no_error(bucket: Bucket) -> None:
    """The pauses of the outage are longer than the time after which refusals are an error."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(10, 20)})

    class Claims(ScriptedCluster):
        def earliest_offsets(self, wheres: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
            super().earliest_offsets(wheres)
            broker.logs[ORDERS].start = next(starts, 0)
            return dict.fromkeys(wheres, 0)

    starts = iter([10])
    broker.failures = 30
    makers = {"cluster": lambda *_, **__: Claims(broker), "first_pause_s": 1e-6}
    errors: list[str] = []
    with broker.consumer(bucket, ORDERS, makers=makers, timeout_ms=200) as (consumer, _):
        messages: list[Any] = []
        end = time.monotonic() + DEADLINE_S
        while len(messages) < 20 and time.monotonic() < end:
            try:
                messages += consumer.consume(100, 0.05)
            except BrokerUnavailableError as error:
                errors.append(str(error))
    assert offsets_of(messages) == list(range(20))
    assert not [error for error in errors if "cannot be read from offset" in error]


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_log_that_was_cut_below_what_was_read(bucket: Bucket, policy: str) -> None:
    """The consumer passes a leader epoch to librdkafka, which needs it to detect the unclean election."""
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
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 50, cut_at=12)}, is_eager=is_eager)
    options: dict[str, Any] = {"on_data_loss": policy, "mode": "remote_preferred"}
    with broker.consumer(bucket, ORDERS, **options) as (consumer, member):
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
    options: dict[str, Any] = {"on_data_loss": policy, "mode": "remote_preferred"}
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


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_call_that_fails_after_its_partition_has_left_the_broker_loses_nothing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, is_eager: bool
) -> None:
    """One call takes records of the broker, meets a loss after these records, and fails in the user's callback."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 10)}, is_eager=is_eager)

    def refuse(_: object) -> NoReturn:
        raise RuntimeError("the user refuses the loss")

    options: dict[str, Any] = {"on_data_loss": "report", "loss_cb": refuse}
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

        monkeypatch.setattr(member, "consume", retain_between)
        with pytest.raises(RuntimeError, match="refuses the loss"):
            consumer.consume(100, DEADLINE_S)
        # The failed call has returned nothing, so none of its records may be skipped.
        assert consumer.position([PLACE])[0].offset == 10
        monkeypatch.undo()
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
def test_an_interrupted_call_during_which_the_topic_is_created_again(
    bucket: Bucket, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
                monkeypatch.undo()
                raise KeyboardInterrupt
            return given

        monkeypatch.setattr(member, "consume", create_again)
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


def damage(bucket: Bucket, segment: RemoteLogSegmentMetadata, where: float = 0.5) -> None:
    """Change a byte of the segment's log, at this fraction of its length."""
    (path,) = bucket.root.rglob(f"*-{segment.topic_id_partition.topic_id}/{segment.topic_id_partition.partition}/*.log")
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 0xFF
    path.write_bytes(bytes(content))


def test_a_loss_callback_that_raises_loses_no_records(bucket: Bucket) -> None:
    """One call takes all records of the bucket, then reports their damaged batch."""
    damage(bucket, bucket.write(200))
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


def test_a_damaged_batch_is_reported_even_if_the_read_ends_early(bucket: Bucket) -> None:
    """A seek ends the read after the records that follow the damaged batch."""
    damage(bucket, bucket.write(20_000), 0.25)
    lost: list[Any] = []
    own = {"tiered_storage_on_data_loss": "report", "loss_cb": lost.append, "tiered_storage_queued_max_kbytes": 64}
    with reader_of(bucket, PLACE, **own) as consumer:
        given = offsets_of(until(consumer, lambda messages: bool(messages) and messages[-1].offset() > 10_000))
        missing = sorted(set(range(given[-1])) - set(given))
        consumer.seek(at(19_990))
        assert len(read(consumer, 10)) == 10
        assert [one.start for one in lost] == [missing[0]]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("call", ["consume", "poll", "poll_arrow"])
@pytest.mark.parametrize("is_eager", [False, True])
def test_messages_that_an_interrupt_drops_are_read_again(
    bucket: Bucket, call: str, at_once: int, *, is_eager: bool
) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 60), OTHERS: ScriptedLog(0, 30)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, member):
        given: dict[int, list[int]] = {0: [], 1: []}
        interrupted = 0
        for number in range(1000):
            if sum(map(len, given.values())) >= 90:
                break
            member.interrupts += at_once if number % 5 == 0 else 0
            try:
                if call == "poll_arrow":
                    batch = consumer.poll_arrow(0.05, 7)
                    if batch is not None:
                        given[batch.partition] += batch.records.column("offset").to_pylist()
                else:
                    messages = consumer.consume(7, 0.05) if call == "consume" else [consumer.poll(0.05)]
                    for message in filter(None, messages):
                        given[message.partition()].append(message.offset())
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted
        assert given == {0: list(range(60)), 1: list(range(30))}


@pytest.mark.parametrize("given", [0, 10])
def test_messages_that_an_interrupt_drops_are_not_committed(bucket: Bucket, given: int) -> None:
    """The program ends after Ctrl-C. The group's next member reads the dropped messages."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, given)})
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        read(consumer, given)
        member.interrupts = 1
        broker.logs[ORDERS].end = 30
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(100, DEADLINE_S)
    assert broker.committed.get(ORDERS, 0) == given


def test_the_end_of_a_partition_that_a_failed_call_has_met_is_reported_by_the_next(bucket: Bucket) -> None:
    """The call reaches the end of one partition, then a damaged batch of another, and the user's callback raises."""
    bucket.write(20)
    damage(bucket, bucket.write(200, partition=1))
    failures = [RuntimeError("the user refuses the loss")]

    def refuse_once(_: object) -> None:
        if failures:
            raise failures.pop()

    own = {"tiered_storage_on_data_loss": "report", "loss_cb": refuse_once, "enable_partition_eof": True}
    with reader_of(bucket, at(0), at(0, 1), **own) as consumer:
        consumer.pause([TopicPartition(*OTHERS)])
        core, end = parts_of(consumer).core, time.monotonic() + DEADLINE_S
        assert len(consumer.consume(20, DEADLINE_S)) == 20
        while not core.events:
            assert time.monotonic() < end
            core.tick()
            assert core.next_readable() is None
        consumer.resume([TopicPartition(*OTHERS)])
        while not (core.readable and isinstance(core.readable[0].phase, InBucket) and _is_read(core.readable[0].phase)):
            assert time.monotonic() < end
            core.tick()
        with pytest.raises(RuntimeError, match="refuses the loss"):
            consumer.consume(1000, DEADLINE_S)
        messages = until(consumer, lambda given: len(given) >= 192)
        ends = [one.partition() for one in messages if one.error() is not None]
        assert ends == [0, 1]


@pytest.mark.parametrize("is_eager", [False, True])
def test_the_end_that_the_broker_reports_comes_after_the_records_of_a_failed_call(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, is_eager: bool
) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 10)}, is_eager=is_eager)
    with broker.consumer(bucket, ORDERS) as (consumer, member):
        member.emits_eof = True
        tick, ended = parts_of(consumer).core.tick, member._ended_at  # pyright: ignore[reportPrivateUsage]

        def interrupt() -> None:
            if ended:
                monkeypatch.undo()
                raise KeyboardInterrupt
            tick()

        monkeypatch.setattr(parts_of(consumer).core, "tick", interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(100, DEADLINE_S)
        given = until(consumer, lambda messages: len(messages) >= 11, count=20)
        assert [one.error() is None for one in given] == [True] * 10 + [False]
        assert consumer.consume(10, 0.01) == []


@pytest.mark.parametrize("is_of_client", [False, True])
def test_each_error_is_raised_by_a_call_for_columns(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, is_of_client: bool
) -> None:
    """Several partitions have an error at the same time."""
    broker = ScriptedBroker({where: ScriptedLog(0, 0) for where in (ORDERS, OTHERS)})
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, member):
        until(consumer, lambda _: all(one.phase.word == "live" for one in parts_of(consumer).core.partitions.values()))
        core = parts_of(consumer).core
        if is_of_client:
            denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            errors = [Message(topic=topic, partition=number, error=denied) for topic, number in (ORDERS, OTHERS)]
            monkeypatch.setattr(member, "consume", lambda *_: [errors.pop(), errors.pop()] if errors else [])
        else:
            core.events += [(ORDERS, "unset", -1), (OTHERS, "unset", -1)]
        for _ in range(2):
            with pytest.raises(KafkaException):
                consumer.poll_arrow(DEADLINE_S)
        assert consumer.poll_arrow(0.01) is None
