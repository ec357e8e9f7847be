"""Tests of bucket and broker after elections: their leader epochs show if both have the same log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.records.small_segments import new_metadata
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.stores.doubles import CountingStore
from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.watermark import Hole, MoveBack, ShippedSegment, StoredWatermarks, Watermark, watermark_key
from tieredstore.config import settings_from
from tieredstore.errors import BrokerUnavailableError, DataLossError
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState
from tieredstore.kafka.records.columns import int64_values
from tieredstore.live import EpochEnd, LiveCluster, LiveEnd, LiveTopic
from tieredstore.model import Isolation, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.history import Cut, History, cut_by_broker, cut_by_watermark
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.position import Position, stand
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.epoch_inquiry import EpochInquiry
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.omitted_records import LeftOut
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.survey import survey_logs
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import ANONYMOUS
from tieredstore.testing.segments import Producer, Record, build_batch, build_end_marker

ORDERS: TopicPartition = ("orders", 0)
WHERE = TopicIdPartition(FIRST_ID, *ORDERS)

WHO = Producer(7, 0, 0, transactional=True)

LOST: LeaderEpochs = ((0, 0), (3, 20))
"""Leader epochs in the bucket: epoch 3 begins at offset 20. Its leader was deposed."""


class Broker:
    """A broker with one log. It answers each request for the end of an epoch with ``answer``."""

    def __init__(self, start: int, end: int, epoch: int | None, answer: EpochEnd | None = None) -> None:
        self.start, self.end, self.epoch, self.answer = start, end, epoch, answer
        self.settings: dict[str, str] = {}
        self.calls: Counter[str] = Counter()

    def topics(self) -> tuple[str, ...]:
        return ("orders",)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        return {name: LiveTopic(name, FIRST_ID, (0,)) for name in topics}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.start)

    def ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, LiveEnd]:
        return dict.fromkeys(places, LiveEnd(self.end, self.epoch))

    def effective_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(topics, self.settings)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.calls["epoch_ends"] += 1
        assert set(epochs.values()) == {3}
        return {} if self.answer is None else dict.fromkeys(epochs, self.answer)


class AskedBroker(Broker):
    """A broker that answers from the leader epochs of its log, as Kafka does. The log begins with the first epoch, and
    ends at offset 100. Only the first ``answers`` requests are answered.
    """

    def __init__(self, epochs: LeaderEpochs, answers: int = 10) -> None:
        super().__init__(epochs[0][1], 100, epochs[-1][0])
        self.epochs, self.answers = epochs, answers
        self.asked: list[int] = []

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.asked += epochs.values()
        return {where: self._end_of(epoch) for where, epoch in epochs.items() if len(self.asked) <= self.answers}

    def _end_of(self, epoch: int) -> EpochEnd:
        later = [start for own, start in self.epochs if own > epoch]
        known = [own for own, _ in self.epochs if own <= epoch]
        return EpochEnd(known[-1] if known else epoch, later[0] if later else self.end)


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    """Return three segments: 0 to 19 of epoch 0, and 20 to 39 and 40 to 59 of epoch 3."""
    for _ in range(3):
        bucket.write(20, epochs=LOST)
    return bucket


def taken(
    bucket: Bucket,
    broker: Broker | None,
    *,
    lenient: bool = False,
    before: LogSnapshot | None = None,
    isolation: Isolation = "read_uncommitted",
) -> LogSnapshot:
    query = LogQuery(Subscribe(("orders",)), isolation=isolation, on_data_loss="report" if lenient else "fail")
    return survey_logs(bucket.manager, query, cluster=cast("LiveCluster", broker), before=before)


def extent(log: PartitionLog) -> tuple[int, int, int]:
    return log.earliest, log.seam, log.end


def lineage(epochs: LeaderEpochs, stop: int) -> Lineage:
    # The test compares only epochs, so any segment will do.
    return Lineage(WHERE, epochs, (Span(new_metadata(100), 0, stop),))


@pytest.mark.parametrize(
    ("epochs", "answer", "at"),
    [
        (LOST, EpochEnd(3, 60), None),
        (LOST, EpochEnd(3, 70), None),
        (LOST, EpochEnd(3, 59), 59),
        (LOST, EpochEnd(3, 20), 20),
        (LOST, EpochEnd(0, 20), 20),
        (LOST, EpochEnd(0, 7), 7),
        (LOST, EpochEnd(2, 0), 0),
        # The broker's leader of epoch 0 wrote beyond offset 20, where the bucket's epoch 3 begins. So there was a
        # second unclean election.
        (LOST, EpochEnd(0, 30), 20),
        (LOST, EpochEnd(0, 99), 20),
        (((0, 0), (1, 10), (3, 20)), EpochEnd(0, 99), 10),
        (((0, 0), (1, 10), (3, 20)), EpochEnd(1, 15), 15),
    ],
)
def test_the_last_epoch_that_both_have_tells_where_they_part(
    epochs: LeaderEpochs, answer: EpochEnd, at: int | None
) -> None:
    assert cut_by_broker(lineage(epochs, 60), answer) == (None if at is None else Cut(at, 3, "broker"))


def test_a_watermark_that_was_moved_back_for_a_later_epoch_tells_it_too() -> None:
    moves = MoveBack(50, 5, 3, 0), MoveBack(60, 30, 5, 0), MoveBack(60, 40, 4, 0)
    mark = Watermark(WHERE, 30, 5, moved_back=moves)
    assert cut_by_watermark(lineage(LOST, 60), mark) == Cut(30, 3, "watermark")
    assert cut_by_watermark(lineage(LOST, 60), replace(mark, moved_back=moves[:1])) is None
    assert cut_by_watermark(lineage(LOST, 30), mark) is None
    assert cut_by_watermark(lineage(LOST, 60), None) is None


def test_a_log_that_a_later_epoch_has_left_is_read_up_to_there_and_from_the_broker_on(bucket: Bucket) -> None:
    snapshot = taken(bucket, Broker(5, 100, 4, EpochEnd(3, 27)))
    log = snapshot.logs[ORDERS]
    assert extent(log) == (0, 27, 100)
    assert log.cut == Cut(27, 3, "broker")
    (problem,) = snapshot.problems
    assert problem.startswith(f"offsets 27 to 59 of {WHERE} in the bucket are not read: a later leader epoch than 3")
    given = TopicReader(lambda: bucket.manager, LogQuery(Subscribe(("orders",)))).read(log, 0, 27)
    assert list(itertools.chain.from_iterable(int64_values(batch, "offset") for batch in given)) == list(range(27))


@pytest.mark.parametrize(
    ("epochs", "at", "asked"),
    [
        (((0, 0), (2, 10), (4, 30)), 10, [3, 0]),
        (((0, 0), (1, 5), (2, 10), (4, 30)), 5, [3, 0]),
        (((2, 5), (4, 30)), 5, [3, 0]),
        (((0, 0), (4, 15)), 15, [3]),
        (((0, 0), (3, 20), (4, 50)), 50, [3]),
    ],
)
def test_a_broker_that_names_an_epoch_not_in_the_bucket_is_asked_for_an_earlier_one(
    bucket: Bucket, epochs: LeaderEpochs, at: int, asked: list[int]
) -> None:
    """After three unclean elections, the broker may have other records before the bucket's last epoch, too."""
    broker = AskedBroker(epochs)
    log = taken(bucket, broker).logs[ORDERS]
    assert (log.seam, log.cut, broker.asked) == (at, Cut(at, 3, "broker"), asked)


def test_a_broker_that_does_not_answer_the_second_question_leaves_it_to_the_watermark(bucket: Bucket) -> None:
    broker = AskedBroker(((0, 0), (2, 10), (4, 30)), answers=1)
    with pytest.raises(BrokerUnavailableError, match=r"where leader epoch 3 of orders-0 .* ends"):
        taken(bucket, broker)
    note_move(bucket, 10, 4)
    log = taken(bucket, AskedBroker(broker.epochs, answers=1)).logs[ORDERS]
    assert log.cut == Cut(10, 3, "watermark")


def test_what_a_clean_election_kept_is_one_history_though_the_end_lags(bucket: Bucket) -> None:
    snapshot = taken(bucket, Broker(0, 55, 4, EpochEnd(3, 60)))
    assert (extent(snapshot.logs[ORDERS]), snapshot.problems) == ((0, 60, 60), ())


@pytest.mark.parametrize("epoch", [None, 3])
def test_where_no_epoch_tells_more_a_log_that_ends_before_the_bucket_is_a_loss(
    bucket: Bucket, epoch: int | None
) -> None:
    broker = Broker(0, 55, epoch)
    with pytest.raises(DataLossError, match="ends at offset 54, but the bucket has records up to offset 59"):
        taken(bucket, broker)
    assert extent(taken(bucket, broker, lenient=True).logs[ORDERS]) == (0, 60, 60)
    assert extent(taken(bucket, Broker(0, 90, epoch)).logs[ORDERS]) == (0, 60, 90)
    assert not broker.calls


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_broker_is_read_from_the_first_offset_that_only_it_has(tmp_path: Path, isolation: Isolation) -> None:
    """The bucket has offsets 30 to 49 and 60 to 79. Its first segment, 0 to 29, is unreadable."""
    with closing(Bucket(tmp_path)) as bucket:
        bucket.write(30)
        next(bucket.root.rglob(f"{0:020d}-*.rsm-manifest")).write_bytes(b"{}")
        bucket.write(20)
        bucket.write(20, skip=10)
        before: LogSnapshot | None = None
        for start, log_extent, lost in (
            (0, (0, 0, 100), ()),
            (30, (30, 50, 100), ()),
            (50, (30, 50, 100), ()),
            (55, (30, 55, 100), ((50, 55),)),
            (60, (30, 80, 100), ((50, 60),)),
        ):
            before = taken(bucket, Broker(start, 100, 0), isolation=isolation, before=before)
            log = before.logs[ORDERS]
            losses = [(one.start, one.stop) for one in losses_between(log, log.earliest, log.end)]
            assert (extent(log), losses) == (log_extent, list(lost))
            if start == 0:
                Losses(LogQuery(Subscribe(("orders",)))).check_readable(before, {ORDERS: (0, 100)})
        with pytest.raises(DataLossError, match="ends at offset 69, but the bucket has records up to offset 79"):
            taken(bucket, Broker(30, 70, 0), isolation=isolation)
        # A broker that tiers the topic itself reads from the same bucket, so what the bucket lacks is lost.
        tiering = Broker(0, 100, 0)
        tiering.settings = {"remote.storage.enable": "true"}
        snapshot = taken(bucket, tiering, isolation=isolation)
        assert extent(snapshot.logs[ORDERS]) == (30, 80, 100)
        with pytest.raises(DataLossError, match="at offset 0 is ignored"):
            Losses(LogQuery(Subscribe(("orders",)))).check_readable(snapshot, {ORDERS: (30, 100)})


@pytest.mark.parametrize("first", [25, 35])
def test_a_gap_before_the_end_of_a_transaction_is_read_from_the_broker(tmp_path: Path, first: int) -> None:
    """The broker's last stable offset is below the bucket's end, because a transaction has been open since then."""
    with closing(Bucket(tmp_path)) as bucket:
        bucket.write(20)
        batches = [build_batch([Record(b"v")] * 5, 30), build_batch([Record(b"v")] * 5, 35, producer=WHO)]
        bucket.copy(WHERE, batches, range(30, 40), producers=[ProducerState(7, 0, 4, 39, 4, 0, 0, first)])
        log = taken(bucket, Broker(0, first, 0), isolation="read_committed").logs[ORDERS]
        assert (extent(log), [*losses_between(log, 0, first)]) == ((0, 20, first), [])


def test_a_transaction_before_a_gap_hides_no_offset_of_the_broker(tmp_path: Path) -> None:
    """The transaction began before the broker's log."""
    with closing(Bucket(tmp_path)) as bucket:
        batch = build_batch([Record(b"v")] * 10, 0, producer=WHO)
        bucket.copy(WHERE, [batch], range(10), producers=[ProducerState(7, 0, 9, 9, 9, 0, 0, 0)])
        bucket.write(10, skip=10)
        log = taken(bucket, Broker(15, 40, 0), lenient=True, isolation="read_committed").logs[ORDERS]
        assert (extent(log), [(one.start, one.stop) for one in losses_between(log, 0, 40)]) == ((0, 15, 40), [(10, 15)])


def test_a_leader_that_does_not_know_its_end_yet_makes_no_gap_a_loss(bucket: Bucket) -> None:
    """The bucket has offsets 0 to 59 and 70 to 89, and the broker has all of them."""
    bucket.write(20, skip=10, epochs=LOST)
    answer = EpochEnd(3, 90)
    log = taken(bucket, Broker(0, 55, 4, answer)).logs[ORDERS]
    assert (extent(log), [*losses_between(log, 0, 90)]) == ((0, 60, 90), [])
    for offset in (0, 60, 80, 90):
        assert stand(Position(offset, 3), log, answer).kind == "stands"


def test_a_broker_that_has_caught_up_makes_no_gap_a_loss(bucket: Bucket) -> None:
    """An earlier snapshot has accepted that the broker's log ends before the bucket's."""
    bucket.write(20, skip=10, epochs=LOST)
    before = taken(bucket, Broker(0, 55, 3), lenient=True)
    assert extent(before.logs[ORDERS]) == (0, 90, 90)
    assert extent(taken(bucket, Broker(0, 95, 3), before=before).logs[ORDERS]) == (0, 60, 95)
    with pytest.raises(DataLossError, match="ends at offset 54, but the bucket has records up to offset 89"):
        taken(bucket, Broker(0, 55, 3), before=taken(bucket, Broker(0, 95, 3)))


def stored_offsets(bucket: Bucket, log: PartitionLog) -> Iterator[int]:
    """Read the bucket's part of the log, and yield the offsets of its records."""
    query = LogQuery(Subscribe(("orders",)), on_data_loss="report")
    for batch in TopicReader(lambda: bucket.manager, query).read(log, log.earliest, log.seam):
        yield from int64_values(batch, "offset")


@pytest.mark.parametrize("missing", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("first", [0, 7, 12, 20])
def test_no_offset_of_the_broker_is_lost_to_a_gap_and_a_transaction(
    tmp_path: Path, missing: tuple[int, ...], first: int
) -> None:
    """The log has five segments of five offsets. The transaction begins at ``first``. Its marker, if any, is the first
    offset of a later segment. For each first offset of the broker's log, the bucket's part of the read and the broker's
    part together have all records of the broker, and all records of the bucket before the transaction.
    """
    for last in (*range(first // 5 * 5 + 5, 25, 5), None):
        with closing(Bucket(tmp_path / str(last))) as bucket:
            for start in sorted({0, 5, 10, 15, 20} - {5 * number for number in missing}):
                stop = start + 5
                batches = [
                    build_end_marker(at, WHO, commit=True)
                    if at == last
                    else build_batch([Record(b"v")], at, producer=WHO if at == first else ANONYMOUS)
                    for at in range(start, stop)
                ]
                is_open = first < stop and (last is None or stop <= last)
                states = [ProducerState(7, 0, 0, first, 0, 0, 0, first)] if is_open else []
                bucket.copy(WHERE, batches, range(start, stop), producers=states)
            for start in range(26):
                end = 25 if last is not None else max(start, first)
                log = taken(bucket, Broker(start, end, 0), isolation="read_committed").logs[ORDERS]
                offsets = {*stored_offsets(bucket, log), *range(max(start, log.seam), end)}
                copied = {at for at in range(min(first, start)) if at // 5 not in missing}
                records = {*copied, *range(start, end)} - {last}
                case = last, start, extent(log)
                assert records <= offsets | {last}, case
                assert log.end == max(end, log.seam), case


def test_records_that_wait_for_an_outcome_are_named_as_left_out(tmp_path: Path) -> None:
    """The broker's log begins within the transaction, whose outcome is not uploaded yet."""
    with closing(Bucket(tmp_path)) as bucket:
        batch = build_batch([Record(b"v")] * 10, 0, producer=WHO)
        bucket.copy(WHERE, [batch], range(10), producers=[ProducerState(7, 0, 9, 9, 9, 0, 0, 0)])
        log = taken(bucket, Broker(5, 40, 0), isolation="read_committed").logs[ORDERS]
    left_out = LeftOut(LogQuery(Subscribe(("orders",))))
    left_out.begin(log, 0, log.end_from(0))
    (sentence,) = left_out.sentences(asks=False)
    assert sentence.startswith("offsets 0 to 39 of orders-0, held back by a transaction that has no outcome")
    assert sentence.endswith("in the segments, which end at offset 9")
    left_out.begin(log, 5, log.end_from(5))
    left_out.note_end()
    assert left_out.sentences(asks=False) == []


def test_an_earlier_epoch_is_none_of_the_log_that_was_copied(bucket: Bucket) -> None:
    broker = Broker(10, 90, 2)
    with pytest.raises(DataLossError, match="has leader epoch 2, but the bucket has records of epoch 3"):
        taken(bucket, broker)
    assert extent(taken(bucket, broker, lenient=True).logs[ORDERS]) == (10, 10, 90)


def note_move(bucket: Bucket, to_offset: int, epoch: int) -> None:
    mark = Watermark(WHERE, to_offset, epoch, moved_back=(MoveBack(60, to_offset, epoch, 0),))
    bucket.manager.store.put(watermark_key("", WHERE), mark.to_bytes())


def test_a_broker_that_does_not_answer_leaves_it_to_the_watermark(bucket: Bucket) -> None:
    broker = Broker(0, 100, 4)
    with pytest.raises(BrokerUnavailableError, match=r"where leader epoch 3 of orders-0 .* ends.* the leader's is 4"):
        taken(bucket, broker)
    note_move(bucket, 30, 4)
    log = taken(bucket, broker).logs[ORDERS]
    assert (extent(log), log.cut) == ((0, 30, 100), Cut(30, 3, "watermark"))


def test_a_log_that_begins_behind_the_bucket_leaves_it_to_the_watermark_as_well(bucket: Bucket) -> None:
    """If retention has deleted an epoch, Kafka returns the log's start instead of the epoch's end."""
    broker = Broker(60, 100, 4, EpochEnd(3, 60))
    assert extent(taken(bucket, broker).logs[ORDERS]) == (0, 60, 100)
    note_move(bucket, 30, 4)
    assert extent(taken(bucket, broker).logs[ORDERS]) == (0, 30, 100)


def test_the_broker_is_asked_again_only_if_something_has_changed(bucket: Bucket) -> None:
    broker = Broker(0, 100, 4, EpochEnd(3, 27))
    first = taken(bucket, broker)
    broker.end = 200
    second = taken(bucket, broker, before=first)
    assert (extent(second.logs[ORDERS]), broker.calls["epoch_ends"]) == ((0, 27, 200), 1)
    broker.epoch, broker.answer = 5, EpochEnd(3, 23)
    third = taken(bucket, broker, before=second)
    assert (extent(third.logs[ORDERS]), broker.calls["epoch_ends"]) == ((0, 23, 200), 2)
    # The first segment of the later leader is now in the bucket, so the bucket alone shows where the old log was cut.
    bucket.ends["orders", 0, FIRST_ID] = 23
    bucket.write(40, epochs=((0, 0), (3, 20), (5, 23)))
    fourth = taken(bucket, broker, before=third)
    assert (extent(fourth.logs[ORDERS]), broker.calls["epoch_ends"]) == ((0, 63, 200), 2)


def test_outcomes_of_the_history_that_was_left_decide_nothing(tmp_path: Path) -> None:
    """If the seam would lie within a segment, it moves to the segment's start, because the segment's producer snapshot
    belongs to the other log.
    """
    bucket = Bucket(tmp_path)
    bucket.write(20, epochs=LOST)
    bucket.write(40, epochs=LOST)
    cut = EpochEnd(3, 27)
    assert extent(taken(bucket, Broker(5, 90, 4, cut), isolation="read_committed").logs[ORDERS]) == (0, 20, 90)
    assert extent(taken(bucket, Broker(25, 90, 4, cut), isolation="read_committed").logs[ORDERS]) == (0, 27, 90)
    bucket.close()


def alone(bucket: Bucket, isolation: Isolation = "read_uncommitted", before: LogSnapshot | None = None) -> LogSnapshot:
    """Return a snapshot of the bucket alone."""
    return taken(bucket, None, isolation=isolation, before=before)


def test_without_a_broker_the_watermark_tells_where_a_later_epoch_rules(bucket: Bucket) -> None:
    assert (extent(alone(bucket).logs[ORDERS]), alone(bucket).problems) == ((0, 60, 60), ())
    note_move(bucket, 30, 3)
    assert extent(alone(bucket).logs[ORDERS]) == (0, 60, 60), "the bucket has that epoch by now"
    note_move(bucket, 27, 4)
    snapshot = alone(bucket)
    log = snapshot.logs[ORDERS]
    assert (extent(log), log.cut) == ((0, 27, 27), Cut(27, 3, "watermark"))
    (problem,) = snapshot.problems
    assert problem.startswith(f"offsets 27 to 59 of {WHERE} in the bucket are not read: a later leader epoch than 3")
    # The first segment of the later leader shows where the old log was cut.
    bucket.ends["orders", 0, FIRST_ID] = 27
    bucket.write(40, epochs=((0, 0), (3, 20), (4, 27)))
    settled = alone(bucket)
    assert (extent(settled.logs[ORDERS]), settled.logs[ORDERS].cut, settled.problems) == ((0, 67, 67), None, ())


@pytest.mark.parametrize(("is_listed", "end"), [(True, 40), (False, 20)])
def test_a_watermark_that_names_no_segment_of_the_log_cuts_where_it_was_moved_back(
    bucket: Bucket, is_listed: bool, end: int
) -> None:
    """The last uploaded segment may be newer than the listing, damaged or deleted. Without it, the log in the bucket
    may be the one that the later leader replaced.
    """
    known = alone(bucket).logs[ORDERS].lineage
    assert known is not None
    named = known.spans[1].segment.remote_log_segment_id.id if is_listed else Uuid.random()
    moves = MoveBack(60, 20, 3, 0), MoveBack(60, 20, 4, 0)
    mark = Watermark(WHERE, 40, 4, segment=ShippedSegment(str(named), 20, 39), moved_back=moves)
    bucket.manager.store.put(watermark_key("", WHERE), mark.to_bytes())
    assert extent(alone(bucket).logs[ORDERS]) == (0, end, end)


def test_where_nothing_is_left_of_the_bucket_the_log_is_empty_at_the_cut(bucket: Bucket) -> None:
    lineage = alone(bucket).logs[ORDERS].lineage
    assert lineage is not None
    bucket.delete(lineage.spans[0].segment)
    note_move(bucket, 20, 4)
    log = alone(bucket).logs[ORDERS]
    assert (extent(log), log.lineage) == ((20, 20, 20), None)


def test_segments_that_tell_no_epoch_are_cut_by_no_watermark(bucket: Bucket) -> None:
    note_move(bucket, 20, 4)
    inquiry, told, silent = EpochInquiry(bucket.manager, None), lineage(LOST, 60), lineage(((-1, 0),), 60)
    inquiry.look_at_watermarks([told])
    assert inquiry.stored_history(told) == History(3, 60, None, Cut(20, 3, "watermark"))
    assert inquiry.stored_history(silent) is None


def test_a_watermark_that_cannot_be_read_is_named_and_cuts_nothing(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.manager.store.put(watermark_key("", WHERE), b"{}")
    assert extent(alone(bucket).logs[ORDERS]) == (0, 60, 60)
    assert "is not a valid watermark" in caplog.text


def test_the_holes_of_a_watermark_are_not_kept_in_memory(bucket: Bucket) -> None:
    """A long-lived reader keeps the watermarks of all partitions. Each may have many holes."""
    mark = Watermark(WHERE, 60, 3, holes=(Hole(5, 6, "lost", 0),), moved_back=(MoveBack(60, 20, 4, 0),))
    bucket.manager.store.put(watermark_key("", WHERE), mark.to_bytes())
    moves = StoredWatermarks(bucket.manager)
    moves.look([WHERE])
    assert moves.of(WHERE) == replace(mark, holes=())


def test_a_watermark_is_read_once_and_again_if_it_has_changed(bucket: Bucket) -> None:
    store = CountingStore(bucket.manager.store)
    note_move(bucket, 30, 4)
    with (
        RemoteStorageManager(settings_from(bucket.options | {"chunk.size": "16384"}), store=store) as manager,
        closing(LogSnapshots(lambda: manager, LogQuery(Subscribe(("orders",))), fresh_s=0)) as snapshots,
    ):
        requests: list[dict[str, int]] = []
        for at in (30, 30, 25):
            if at != 30:
                note_move(bucket, at, 4)
            store.reset()
            assert snapshots.current().logs[ORDERS].end == at
            requests.append({name: count for name, count in store.requests.items() if name in ("list", "get")})
    assert requests[1:] == [{"list": 2}, {"list": 2, "get": 1}]


def test_a_transaction_that_is_open_at_a_cut_waits_for_the_log_that_goes_on(tmp_path: Path) -> None:
    """The bucket has the outcome that the deposed leader wrote. A reader gets only the records before the
    transaction.
    """
    bucket = Bucket(tmp_path)
    batches = [
        build_batch([Record(b"v")] * 10, 0, leader_epoch=3),
        build_batch([Record(b"v")] * 10, 10, producer=WHO, leader_epoch=3),
        build_end_marker(20, Producer(7, 0), commit=True),
        build_batch([Record(b"v")] * 9, 21, leader_epoch=3),
    ]
    bucket.copy(WHERE, batches, range(30), epochs=((3, 0),))
    assert alone(bucket, "read_committed").logs[ORDERS].end == 30
    for at, end in ((25, 25), (21, 21), (20, 10), (10, 10)):
        note_move(bucket, at, 4)
        assert alone(bucket, "read_committed").logs[ORDERS].end == end, at
    bucket.close()
