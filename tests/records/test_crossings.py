"""Tests of transactions that end in segments of another broker, whose log begins within the transactions. So that
broker's indexes lack them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.golden.records import rows_of
from tests.support.records.split_reads import lineage_of, plan_splits, read_plan
from tests.support.records.stored_records import StoredTopic
from tests.support.records.transaction_scripts import STEPS, Partition, Segment, Step, store
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import find_decided_end
from tieredstore.testing.segments import Record, build_batch

COMMITTED = ReadSettings(isolation="read_committed")
OPEN: list[Step] = [("plain", 0, 2), ("send", 1, 3)]
PLAIN: list[Step] = [("plain", 0, 4)]


def offsets_of_splits(topic: StoredTopic) -> list[int]:
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, lineage.end_offset, COMMITTED, max_split_bytes=300)
    return [row["offset"] for row in read_plan(topic.manager, plan, COMMITTED)]


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([("plain", 0, 1), ("abort", 1, 1)], id="no entry"),
        pytest.param([("send", 1, 2), ("abort", 1, 1)], id="an entry that begins too late"),
    ],
)
@pytest.mark.parametrize("between", [0, 1, 2])
def test_records_are_left_out_that_a_broker_aborts_without_having_seen_them(
    topic: StoredTopic, later: list[Step], between: int
) -> None:
    plan: list[list[Step]] = [OPEN, *[PLAIN] * between, [*later, ("plain", 0, 2)]]
    partition, ends = store(topic, plan, [0, *[1] * (between + 1)])
    seen, _ = partition.visible(ends[-1], ends[-1])
    assert not {2, 3, 4} & set(seen)
    assert topic.offsets(COMMITTED) == seen
    assert topic.offsets(COMMITTED, 0, 5) == [0, 1]
    assert topic.offsets(COMMITTED, 3) == [offset for offset in seen if offset >= 3]
    assert offsets_of_splits(topic) == seen
    lineage = lineage_of(topic)
    assert find_decided_end(topic.manager, lineage, 0, ends[-1]) == ends[-1]


def test_a_transaction_is_undecided_until_its_marker_is_stored_though_later_segments_do_not_know_it(
    topic: StoredTopic,
) -> None:
    other: list[Step] = [("send", 2, 1), ("abort", 2, 1), ("plain", 0, 2)]
    _, ends = store(topic, [OPEN, other, PLAIN], [0, 1, 1])
    lineage = lineage_of(topic)
    assert find_decided_end(topic.manager, lineage, 0, ends[-1]) == 2
    read = topic.reader(COMMITTED).read("events", 0)
    assert [row["offset"] for row in rows_of(read)] == [0, 1]
    assert read.report.undecided is not None
    assert (read.report.undecided.producer_id, read.report.undecided.first_offset) == (1, 2)
    assert offsets_of_splits(topic) == [0, 1]


def test_committed_records_stay_where_the_broker_of_their_marker_has_not_seen_them(topic: StoredTopic) -> None:
    partition, ends = store(topic, [OPEN, PLAIN, [("commit", 1, 1), ("plain", 0, 1)]], [0, 1, 1])
    assert topic.offsets(COMMITTED) == partition.visible(ends[-1], ends[-1])[0]
    assert set(range(2, 5)) <= set(topic.offsets(COMMITTED))


def test_of_an_overlap_the_marker_is_paired_with_what_is_open_at_its_end(topic: StoredTopic) -> None:
    """The later leader's log begins within the previous segment, and so do its transaction index and producer
    snapshot.
    """
    partition, first, second = Partition(), Segment(0), Segment(0)
    steps: list[Step] = [*OPEN, ("plain", 0, 2), ("send", 1, 1)]
    for step in steps:
        partition.play(step, first)
    topic.copy(0, first.batches, producers=partition.snapshot())
    second.base, second.batches = 5, first.batches[2:]
    rest: list[Step] = [("abort", 1, 1), ("plain", 0, 1)]
    for step in rest:
        partition.play(step, second)
    entry = AbortedTransaction(1, 7, 8, 9)  # the log of this leader begins at offset 5
    topic.copy(5, second.batches, aborted=[entry], leader_epochs=((0, 5),), broker_id=2)
    assert topic.offsets(COMMITTED) == [0, 1, 5, 6, 9]
    assert offsets_of_splits(topic) == [0, 1, 5, 6, 9]


def test_where_a_history_was_cut_off_its_batches_tell_what_is_open(topic: StoredTopic) -> None:
    """After an unclean election, the old leader's segment ends with an abort that is not in the log."""
    partition, old = Partition(), Segment(0)
    for step in OPEN:
        partition.play(step, old)
    cut = partition.offset
    partition.play(("abort", 1, 1), old)
    topic.copy(0, old.batches, aborted=old.aborted)
    new: list[bytes] = [
        build_batch([Record(b"new")], cut, leader_epoch=1),
        build_batch([Record(b"newer")], cut + 1, leader_epoch=1),
    ]
    topic.copy(cut, new, leader_epochs=((1, cut),), broker_id=2)
    lineage = lineage_of(topic)
    assert [(span.start, span.stop) for span in lineage.spans] == [(0, cut), (cut, cut + 2)]
    assert find_decided_end(topic.manager, lineage, 0, cut + 2) == 2
    assert topic.offsets(COMMITTED) == [0, 1]


def test_a_marker_that_another_broker_wrote_last_counts_for_a_read_from_the_middle(topic: StoredTopic) -> None:
    """When the read begins in the middle of the log, it first looks for all transactions that are open at the end of
    the log. It does so even if no record needs an outcome yet.
    """
    plan: list[list[Step]] = [
        [("send", 1, 1), ("send", 4, 1)],
        [("send", 1, 1), ("abort", 1, 1)],
        [("send", 1, 1)],
        [("send", 1, 1)],
        [("abort", 4, 1)],
    ]
    _, ends = store(topic, plan, [0, 1, 0, 0, 1])
    for stop in (2, 3, 4, ends[-1]):
        assert topic.offsets(COMMITTED, 1, stop) == []


SHORT: list[Step] = [("send", 2, 1), ("abort", 2, 1)]


@pytest.mark.parametrize(
    ("plan", "begins", "asked"),
    [
        pytest.param([PLAIN] * 4, [0, 1, 2, 3], [], id="no transactions: nothing"),
        pytest.param([SHORT, SHORT, SHORT], [0, 0, 0], [0, 1, 2], id="one broker: what has entries, and the last"),
        pytest.param([OPEN, [("commit", 1, 1)], PLAIN], [0, 0, 0], [2], id="one broker: the last"),
        pytest.param([SHORT, PLAIN, PLAIN], [0, 1, 1], [0, 1, 2], id="another: both sides of the border"),
    ],
)
def test_indexes_are_asked_for_only_where_another_brokers_segments_begin(
    topic: StoredTopic, plan: Sequence[Sequence[Step]], begins: Sequence[int], asked: list[int]
) -> None:
    store(topic, plan, begins)
    topic.offsets(COMMITTED)
    keys = {key.rpartition("/")[2][:20] for key in topic.store.keys_of("get") if key.endswith(".indexes")}
    assert keys == {f"{topic.copied[number].start_offset:020}" for number in asked}
    assert topic.requests(".indexes") == len(asked)


def test_a_broker_whose_log_reaches_back_is_believed(topic: StoredTopic) -> None:
    """The second broker knows the open transaction, because its log begins early enough, or because it restored its
    state from remote storage. Its indexes are sufficient, so the reader does not read the log again.
    """
    plan: list[list[Step]] = [OPEN, [*PLAIN, ("commit", 1, 1)], PLAIN]
    store(topic, plan)
    segments = [segment.start_offset for segment in topic.copied]
    with closing(StoredTopic(topic.folder / "others")) as others:
        partition = Partition()
        for number, steps in enumerate(plan):
            segment = Segment(partition.offset)
            for step in steps:
                partition.play(step, segment)
            others.copy(segment.base, segment.batches, producers=partition.snapshot(), broker_id=number)
        assert others.offsets(COMMITTED) == topic.offsets(COMMITTED)
        assert others.requests(".indexes") == len(segments) - 1  # the first segment's snapshot is not needed
        assert others.requests(".log") == len(segments)


@settings(max_examples=examples(60), deadline=None)
@given(plan=st.lists(st.lists(STEPS, min_size=1, max_size=8), min_size=2, max_size=5), data=st.data())
def test_any_interleaving_over_any_brokers_is_read_as_a_consumer_of_the_whole_log_would(
    plan: list[list[Step]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    begins = [data.draw(st.integers(0, number)) for number in range(len(plan))]
    with closing(StoredTopic(tmp_path_factory.mktemp("log"), chunk_size=300)) as topic:
        partition, ends = store(topic, plan, begins)
        stop = data.draw(st.integers(0, ends[-1]))
        start = data.draw(st.integers(0, stop))
        seen, limit = partition.visible(ends[-1], stop)
        assert topic.offsets(COMMITTED, 0, stop) == seen
        lineage = lineage_of(topic)
        split_plan = plan_splits(topic.manager, lineage, 0, stop, COMMITTED, max_split_bytes=200)
        assert [row["offset"] for row in read_plan(topic.manager, split_plan, COMMITTED)] == seen
        assert find_decided_end(topic.manager, lineage, 0, stop) == limit == split_plan.stop
        late = topic.offsets(COMMITTED, start, stop)
    committed = [at for at, (is_committed, _) in partition.outcome.items() if is_committed and start <= at < stop]
    assert late == sorted(committed)[: len(late)]
    assert set(late) >= {offset for offset in seen if offset >= start}
