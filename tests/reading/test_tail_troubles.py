"""Tests of the losses and errors that a tail reports. A fake broker makes the timing exact."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tests.support.simulated_time import SimulatedClock
from tieredstore import live
from tieredstore.catalog.watermark import MoveBack, Watermark, watermark_key
from tieredstore.errors import BrokerUnavailableError, CorruptDataError, DataLossError, StoreUnavailableError
from tieredstore.live import EpochEnd, LiveEnd, LiveEvent, LiveTopic
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.position import Position
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading import snapshots, split_reads
from tieredstore.reading import tail as tail_module
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.tail import LogTail, TailRecords
from tieredstore.records.partition import RunRead
from tieredstore.records.settings import ReadSettings

ORDERS, BILLS = ("orders", 0), ("bills", 0)
SETTINGS = ReadSettings(columns=("offset",))
ALONE = LogQuery(Subscribe(("orders",)), on_data_loss="report")


class Broker:
    """A fake cluster with topics that have ids and one partition each, and with a consumer that has no new data."""

    topics_by_name: dict[str, Uuid]
    extents: dict[TopicPartition, tuple[int, int]]
    events: list[LiveEvent]
    """Events that the consumer returns next."""
    leaderless: frozenset[TopicPartition] = frozenset()
    leader_epoch: int | None = None
    epoch_end: EpochEnd | None = None
    """Answer to each epoch request."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.positions: dict[TopicPartition, int] = {}

    def topics(self) -> tuple[str, ...]:
        return tuple(self.topics_by_name)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        known = set(topics) & self.topics_by_name.keys()
        leaderless = {name: frozenset({0} if (name, 0) in self.leaderless else ()) for name in known}
        return {name: LiveTopic(name, self.topics_by_name[name], (0,), leaderless[name]) for name in known}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wheres = list(partitions)
        if not self.leaderless.isdisjoint(wheres):
            raise BrokerUnavailableError("a partition has no leader")
        return {where: self.extents[where][0] for where in wheres}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LiveEnd]:
        return {where: LiveEnd(self.extents[where][1], self.leader_epoch) for where in partitions}

    def effective_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return {}  # the login may not read the topics' settings

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        return {} if self.epoch_end is None else dict.fromkeys(epochs, self.epoch_end)

    def add(self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> None:
        """Assign partitions. Like a client, report a position that a later leader's log does not have."""
        self.positions.update(positions)
        for where, epoch in epochs.items():
            is_later = self.leader_epoch is not None and epoch < self.leader_epoch
            if is_later and self.epoch_end is not None and self.epoch_end.end < positions[where]:
                self.events.insert(0, LiveEvent(where, None, positions[where]))

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self.positions.pop(where, None)

    @property
    def is_ready(self) -> bool:
        return any(event.where in self.positions for event in self.events)

    def poll(self, timeout_s: float) -> LiveEvent | None:
        event = self.events.pop(0) if self.is_ready else None
        if event is not None and event.records is None:
            self.remove([event.where])
        return event

    def wait(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> type[Broker]:
    monkeypatch.setattr(live, "LiveCluster", Broker)
    monkeypatch.setattr(live, "LiveFollower", Broker)
    Broker.topics_by_name, Broker.extents, Broker.events = {}, {}, []
    Broker.leader_epoch, Broker.epoch_end, Broker.leaderless = None, None, frozenset()
    return Broker


def offsets_of(records: TailRecords) -> list[int]:
    columns: Any = records.records
    offsets: list[int] = columns.to_pydict()["offset"]
    return offsets


def lost_of(records: TailRecords) -> list[tuple[int, int]]:
    return [(extent.start, extent.stop) for extent in records.lost]


def all_of(tail: LogTail, polls: int = 20) -> list[TailRecords]:
    return [records for _ in range(polls) if (records := tail.poll(0)) is not None]


def poll_for(tail: LogTail, clock: SimulatedClock, seconds: int = 20) -> None:
    for _ in range(seconds):
        tail.poll(0)
        clock.now += 1


def test_a_loss_comes_with_the_records_behind_it(bucket: Bucket) -> None:
    for skip in (5, 10, 20):
        bucket.write(10, skip=skip)
    with LogTail(bucket.manager, ALONE, {ORDERS: 0}, settings=SETTINGS) as tail:
        batches = [(lost_of(records), offsets_of(records)[0], records.next_offset) for records in all_of(tail)]
    assert batches == [([(0, 5)], 5, 15), ([(15, 25)], 25, 35), ([(35, 55)], 55, 65)]


def test_a_loss_is_told_once_whatever_the_store_does(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.write(10, skip=5)
    bucket.write(10, skip=10)
    failures = iter([True, True, False, True])

    def reading(*arguments: Any) -> RunRead:
        if next(failures, False):
            raise StoreUnavailableError("the store is not there")
        return RunRead(*arguments)

    monkeypatch.setattr(split_reads, "RunRead", reading)
    batches: list[TailRecords] = []
    errors = 0
    with (
        caplog.at_level(logging.WARNING),
        LogTail(bucket.manager, ALONE, {ORDERS: 0}, settings=SETTINGS, look_s=0) as tail,
    ):
        for _ in range(10):
            try:
                batches += all_of(tail, polls=1)
            except StoreUnavailableError:
                errors += 1
    assert errors == 3
    assert [lost_of(records) for records in batches] == [[(0, 5)], [(15, 25)]]
    assert [offset for records in batches for offset in offsets_of(records)] == [*range(5, 15), *range(25, 35)]
    assert caplog.text.count("offsets 0 to 4") == 1


def test_what_goes_under_the_reader_is_among_the_losses(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [bucket.write(10) for _ in range(3)]

    def reading(*arguments: Any) -> RunRead:
        bucket.delete(segments[1])
        return RunRead(*arguments)

    monkeypatch.setattr(split_reads, "RunRead", reading)
    with LogTail(bucket.manager, ALONE, {ORDERS: 0}, settings=SETTINGS) as tail:
        batches = [(lost_of(records), offsets_of(records)) for records in all_of(tail)]
    assert batches == [([], list(range(10))), ([(10, 20)], list(range(20, 30)))]


def test_a_topic_that_is_followed_no_longer_is_nobodys_loss(bucket: Bucket, broker: type[Broker]) -> None:
    bucket.write(10)
    bucket.write(10, topic="bills")
    # The broker no longer has the topic ``bills``.
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 10)}
    query = LogQuery(Subscribe(("orders", "bills")), client={"bootstrap.servers": "localhost:1"})
    with LogTail(bucket.manager, query, {ORDERS: 0, BILLS: 0}, settings=SETTINGS, look_s=0) as tail:
        with pytest.raises(DataLossError, match="bills"):
            tail.poll(0)
        tail.forget([BILLS])
        records = tail.poll(0)
        assert records is not None
        assert offsets_of(records) == list(range(10))


def test_a_topic_created_again_while_the_bucket_is_read_is_not_followed(bucket: Bucket, broker: type[Broker]) -> None:
    bucket.write(10)
    bucket.write(10)
    broker.topics_by_name = {"orders": FIRST_ID, "bills": FIRST_ID}
    broker.extents = {ORDERS: (0, 20), BILLS: (0, 0)}
    clock = SimulatedClock()
    query = LogQuery(Subscribe(("orders", "bills")), client={"bootstrap.servers": "localhost:1"})
    with LogTail(bucket.manager, query, {ORDERS: 0, BILLS: 0}, settings=SETTINGS, clock=clock) as tail:
        assert tail.poll(0) is not None
        clock.now += 3600  # the reader takes time to process records
        broker.topics_by_name["orders"] = SECOND_ID
        broker.extents[ORDERS] = (0, 500)
        assert tail.poll(0) is not None
        assert tail.poll(0) is None
        clock.now += 2
        with pytest.raises(DataLossError, match=f"orders was created again: its id is {SECOND_ID}"):
            tail.poll(0)
        assert tail.positions == {ORDERS: 20, BILLS: 0}


def test_records_of_a_topic_that_was_created_again_are_not_given_as_the_old_ones(
    bucket: Bucket, broker: type[Broker]
) -> None:
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 3)}
    clock = SimulatedClock()
    query = LogQuery(Subscribe(("orders",)), client={"bootstrap.servers": "localhost:1"})
    records: Any = pa.RecordBatch.from_pydict({"offset": [0, 1, 2]})
    with LogTail(bucket.manager, query, {ORDERS: 0}, settings=SETTINGS, clock=clock) as tail:
        assert tail.poll(0) is None
        broker.events = [LiveEvent(ORDERS, records, 3)] * 2
        given = tail.poll(0)
        assert given is not None
        assert given.next_offset == 3
        clock.now += 1.5
        broker.topics_by_name["orders"] = SECOND_ID
        assert tail.poll(0) is None
        clock.now += 2
        with pytest.raises(DataLossError, match=f"orders was created again as {SECOND_ID}"):
            tail.poll(0)


def test_a_tail_that_may_look_at_any_time_does_not_list_without_pause(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[LogSnapshots] = []
    current = LogSnapshots.current

    def counted(snapshots: LogSnapshots, *selection: Any) -> LogSnapshot:
        looks.append(snapshots)
        return current(snapshots, *selection)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    clock = SimulatedClock()
    monkeypatch.setattr(LogSnapshots, "current", counted)
    monkeypatch.setattr(tail_module, "time", SimpleNamespace(sleep=sleep))
    with LogTail(bucket.manager, ALONE, {ORDERS: 0}, settings=SETTINGS, look_s=0, clock=clock) as tail:
        assert tail.poll(0.35) is None
    assert 2 <= len(looks) <= 6


def test_a_problem_that_comes_and_goes_is_told_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problems = iter([("a",), (), ("a", "b"), ("b",), ("a",), ("c",), ("a",)])

    def take(*given: Any, **named: Any) -> LogSnapshot:
        return LogSnapshot({}, next(problems))

    monkeypatch.setattr(snapshots, "survey_logs", take)
    logs = LogSnapshots(lambda: bucket.manager, ALONE, fresh_s=0)
    for _ in range(7):
        logs.current()
    assert [record.message for record in caplog.records] == ["a", "b", "c"]


LIVE = LogQuery(Subscribe(("orders",)), client={"bootstrap.servers": "localhost:1"})
WRITTEN = ((0, 0), (5, 20))


def test_an_election_that_cut_the_log_below_a_tail_is_told(bucket: Bucket, broker: type[Broker]) -> None:
    """The new leader's log ends beyond the read offsets. Offsets alone thus do not show that a log was cut."""
    bucket.write(60, epochs=WRITTEN)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 60)}
    broker.leader_epoch, broker.epoch_end = 5, EpochEnd(5, 60)
    clock = SimulatedClock()
    with LogTail(bucket.manager, LIVE, {ORDERS: 0}, settings=SETTINGS, clock=clock) as tail:
        assert sum(records.records.num_rows for records in all_of(tail)) == 60
        assert tail.places == {ORDERS: Position(60, 5)}
        broker.leader_epoch, broker.epoch_end, broker.extents = 6, EpochEnd(5, 25), {ORDERS: (0, 900)}
        broker.events.append(LiveEvent(ORDERS, None, 60))
        with pytest.raises(
            DataLossError, match="read up to offset 60, but an election truncated the log at offset 25"
        ) as error:
            poll_for(tail, clock)
        assert "offsets 25 to 59 are no longer part of it" in str(error.value)
        assert tail.places == {ORDERS: Position(60, 5)}


def test_an_election_while_a_tail_comes_to_the_seam_is_told(bucket: Bucket, broker: type[Broker]) -> None:
    """The look-up of the broker was before the election. The broker's records at the seam now belong to another log."""
    bucket.write(60, epochs=WRITTEN)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 60)}
    broker.leader_epoch, broker.epoch_end = 5, EpochEnd(5, 60)
    clock = SimulatedClock()
    with LogTail(bucket.manager, LIVE, {ORDERS: 0}, settings=SETTINGS, clock=clock) as tail:
        given = tail.poll(0)
        assert given is not None
        assert given.next_offset == 60
        broker.leader_epoch, broker.epoch_end, broker.extents = 6, EpochEnd(5, 25), {ORDERS: (0, 900)}
        other: Any = pa.RecordBatch.from_pydict({"offset": [60, 61]})
        broker.events.append(LiveEvent(ORDERS, other, 62, 6))
        with pytest.raises(DataLossError, match="read up to offset 60, but an election truncated the log at offset 25"):
            poll_for(tail, clock)
        assert tail.places == {ORDERS: Position(60, 5)}


def test_a_place_that_only_the_client_doubts_is_followed_unchecked(bucket: Bucket, broker: type[Broker]) -> None:
    """The client refuses the position, but a look-up finds it in the leader's log. If the tail let the client check the
    position again, it would repeat the look-up forever.
    """
    bucket.write(60, epochs=WRITTEN)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 62)}
    broker.leader_epoch = 5
    clock = SimulatedClock()
    records: Any = pa.RecordBatch.from_pydict({"offset": [60, 61]})
    with LogTail(bucket.manager, LIVE, {ORDERS: 60}, settings=SETTINGS, clock=clock) as tail:
        broker.events += [LiveEvent(ORDERS, None, 60), LiveEvent(ORDERS, records, 62, 5)]
        assert tail.poll(0) is None
        clock.now += 20
        assert [given.next_offset for given in all_of(tail)] == [62]


def test_an_offset_that_the_broker_refuses_for_long_is_an_error(bucket: Bucket, broker: type[Broker]) -> None:
    """For example, a broker with tiered storage that cannot find its remote segment."""
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 20)}
    broker.events = [LiveEvent(ORDERS, None, 10)] * 1000
    clock = SimulatedClock()
    with LogTail(bucket.manager, LIVE, {ORDERS: 10}, settings=SETTINGS, clock=clock) as tail:
        for _ in range(2):
            poll_for(tail, clock, 50)
            with pytest.raises(BrokerUnavailableError, match="orders-0 cannot be read from offset 10: the broker has"):
                poll_for(tail, clock, 15)
        records: Any = pa.RecordBatch.from_pydict({"offset": list(range(10, 20))})
        broker.events = [LiveEvent(ORDERS, records, 20)]
        clock.now += 20
        assert [offsets_of(given) for given in all_of(tail)] == [list(range(10, 20))]


def test_an_offset_that_is_refused_once_after_an_outage_is_no_error(bucket: Bucket, broker: type[Broker]) -> None:
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 20)}
    clock = SimulatedClock()
    with LogTail(bucket.manager, LIVE, {ORDERS: 10}, settings=SETTINGS, clock=clock) as tail:
        for outage in (100, 0):
            broker.events = [LiveEvent(ORDERS, None, 10)]
            poll_for(tail, clock, 1)
            assert not broker.events
            broker.leaderless = frozenset({ORDERS})
            for _ in range(outage):
                with pytest.raises(BrokerUnavailableError, match="a partition has no leader"):
                    tail.poll(0)
                clock.now += 20
            broker.leaderless = frozenset()


def test_a_tail_that_puts_up_with_losses_goes_on_at_the_cut(
    bucket: Bucket, broker: type[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    """The tail starts from a stored position with its leader epoch, as after a restart of the reader."""
    bucket.write(60, epochs=WRITTEN)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 900)}
    broker.leader_epoch, broker.epoch_end = 6, EpochEnd(5, 25)
    lenient = replace(LIVE, on_data_loss="report")
    with (
        caplog.at_level(logging.WARNING),
        LogTail(bucket.manager, lenient, {ORDERS: Position(60, 5)}, settings=SETTINGS) as tail,
    ):
        assert all_of(tail) == []
        # The old log was cut within a segment of the bucket, so the tail reads on from the broker. The bucket has the
        # record before the cut, and knows its epoch.
        assert tail.places == {ORDERS: Position(25, 5)}
        restarted = tail.places
    assert caplog.text.count("an election truncated the log at offset 25") == 1
    with LogTail(bucket.manager, LIVE, restarted, settings=SETTINGS) as tail:
        assert all_of(tail) == []


@pytest.mark.parametrize(("position", "is_cut"), [(Position(60), True), (60, True), (Position(60, 6), False)])
def test_a_place_of_the_log_as_it_is_now_is_cut_off_by_nothing_before(
    bucket: Bucket, broker: type[Broker], position: Position | int, is_cut: bool
) -> None:
    """An offset without an epoch may belong to the old or the new log if it is beyond the cut."""
    bucket.write(60, epochs=WRITTEN)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 900)}
    broker.leader_epoch, broker.epoch_end = 6, EpochEnd(5, 25)
    with LogTail(bucket.manager, LIVE, {ORDERS: position}, settings=SETTINGS) as tail:
        if is_cut:
            with pytest.raises(DataLossError, match="an election truncated the log at offset 25"):
                all_of(tail)
        else:
            assert all_of(tail) == []
            assert tail.places == {ORDERS: Position(60, 6)}


def test_a_bucket_that_has_the_later_epoch_by_now_tells_it_without_a_broker(bucket: Bucket) -> None:
    bucket.write(60, epochs=WRITTEN)
    bucket.ends["orders", 0, FIRST_ID] = 25
    bucket.write(75, epochs=(*WRITTEN, (6, 25)))
    strict = replace(ALONE, on_data_loss="fail")
    with (
        LogTail(bucket.manager, strict, {ORDERS: Position(60, 5)}, settings=SETTINGS) as tail,
        pytest.raises(DataLossError, match="an election truncated the log at offset 25"),
    ):
        all_of(tail)
    with LogTail(bucket.manager, ALONE, {ORDERS: Position(60, 5)}, settings=SETTINGS) as tail:
        given = [offset for records in all_of(tail) for offset in offsets_of(records)]
    assert given == list(range(25, 100))


def test_a_watermark_that_was_moved_back_tells_it_before_that(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """The tail returns the later leader's records as soon as the bucket has that leader's first segment."""
    bucket.write(60, epochs=WRITTEN)
    clock, where = SimulatedClock(), TopicIdPartition(FIRST_ID, *ORDERS)
    with LogTail(bucket.manager, ALONE, {ORDERS: 0}, settings=SETTINGS, clock=clock) as tail:
        assert [offset for records in all_of(tail) for offset in offsets_of(records)] == list(range(60))
        mark = Watermark(where, 25, 6, moved_back=(MoveBack(60, 25, 6, 0),))
        bucket.manager.store.put(watermark_key("", where), mark.to_bytes())
        poll_for(tail, clock)
        assert tail.places == {ORDERS: Position(25, 5)}
        assert caplog.text.count("read up to offset 60, but an election truncated the log at offset 25") == 1
        bucket.ends["orders", 0, FIRST_ID] = 25
        bucket.write(75, epochs=(*WRITTEN, (6, 25)))
        clock.now += 20
        assert [offset for records in all_of(tail) for offset in offsets_of(records)] == list(range(25, 100))


def damage(bucket: Bucket, segment: RemoteLogSegmentMetadata) -> None:
    log = next(bucket.root.rglob(f"{segment.start_offset:020d}-*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)


@pytest.mark.parametrize("policy", ["fail", "report"])
@pytest.mark.parametrize("begins", [0, 10, 15])
def test_damaged_records_that_the_broker_has_are_read_there(
    bucket: Bucket, broker: type[Broker], caplog: pytest.LogCaptureFixture, policy: Any, begins: int
) -> None:
    bucket.write(10)
    damaged = bucket.write(10)
    bucket.write(10, skip=5 if policy == "report" else 0)
    damage(bucket, damaged)
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (begins, 40)}
    records: Any = pa.RecordBatch.from_pydict({"offset": list(range(10, 40))})
    broker.events = [LiveEvent(ORDERS, records, 40)]
    query = LogQuery(Subscribe(("orders",)), client={"bootstrap.servers": "localhost:1"}, on_data_loss=policy)
    with caplog.at_level(logging.WARNING), LogTail(bucket.manager, query, {ORDERS: 0}, settings=SETTINGS) as tail:
        if begins > 10:
            with pytest.raises(CorruptDataError):
                all_of(tail)
            return
        given = all_of(tail)
    assert [offset for records in given for offset in offsets_of(records)] == list(range(40))
    assert not any(lost_of(records) for records in given)
    assert caplog.text.count("orders-0 is read from the broker from offset 10 on") == 1


def test_damaged_records_that_the_broker_refuses_are_an_error(bucket: Bucket, broker: type[Broker]) -> None:
    """The broker's log ends before the bucket's."""
    bucket.write(10)
    damage(bucket, bucket.write(10))
    broker.topics_by_name, broker.extents = {"orders": FIRST_ID}, {ORDERS: (0, 5)}
    broker.events = [LiveEvent(ORDERS, None, 10)]
    query = LogQuery(Subscribe(("orders",)), client={"bootstrap.servers": "localhost:1"}, on_data_loss="report")
    with LogTail(bucket.manager, query, {ORDERS: 0}, settings=SETTINGS, look_s=0) as tail:
        for _ in range(2):
            with pytest.raises(CorruptDataError):
                all_of(tail)
        assert tail.positions == {ORDERS: 10}


def test_a_partition_without_a_leader_holds_up_no_other(
    bucket: Bucket, broker: type[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    bucket.write(10)
    bucket.write(10, topic="bills")
    broker.topics_by_name = {"orders": FIRST_ID, "bills": FIRST_ID}
    broker.extents, broker.leaderless = {ORDERS: (0, 10), BILLS: (0, 10)}, frozenset({BILLS})
    query = LogQuery(Subscribe(("orders", "bills")), client={"bootstrap.servers": "localhost:1"})
    with LogTail(bucket.manager, query, {ORDERS: 0, BILLS: 0}, settings=SETTINGS, look_s=0) as tail:
        assert [(records.where, records.next_offset) for records in all_of(tail)] == [(ORDERS, 10)]
        assert caplog.text.count("bills-0 has no leader now") == 1
        tail.forget([ORDERS])
        with pytest.raises(BrokerUnavailableError):
            tail.poll(0)
        broker.leaderless = frozenset()
        assert [(records.where, records.next_offset) for records in all_of(tail)] == [(BILLS, 10)]
