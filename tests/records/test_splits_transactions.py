"""Tests of transactions across splits, and of logs from leaders that disagree: splits give what one read gives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.records.partition_history import Copy, partition_copies
from tests.support.records.split_reads import check_window, lineage_of, plan_splits, read_of, read_plan
from tests.support.records.stored_records import StoredTopic
from tests.support.records.transaction_scripts import STEPS, Step, store
from tieredstore.model import Isolation, Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import find_decided_end
from tieredstore.testing.segments import Record, build_batch, write_segment

pytestmark = pytest.mark.slow

COMMITTED = ReadSettings(isolation="read_committed", on_data_loss="report")


@settings(max_examples=40, deadline=None)
@given(plan=st.lists(st.lists(STEPS, min_size=1, max_size=12), min_size=1, max_size=5), data=st.data())
def test_any_interleaving_in_splits_is_read_as_a_consumer_of_the_whole_log_would(
    plan: list[list[Step]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(StoredTopic(tmp_path_factory.mktemp("log"), chunk_size=300)) as topic:
        partition, ends = store(topic, plan)
        start = data.draw(st.integers(0, ends[-1]))
        stop = data.draw(st.integers(start, ends[-1]))
        lineage = lineage_of(topic)
        size = data.draw(st.sampled_from([1, 200, 1000, 1 << 20]))
        split_plan = plan_splits(topic.manager, lineage, start, stop, COMMITTED, max_split_bytes=size)
        rows = read_plan(topic.manager, split_plan, COMMITTED)
        end = find_decided_end(topic.manager, lineage, start, stop)
        check_window(topic.manager, lineage, (start, stop), COMMITTED, max_split_bytes=size)
    seen, limit = partition.visible(ends[-1], stop)
    assert [row["offset"] for row in rows] == [offset for offset in seen if offset >= start]
    assert split_plan.stop == max(start, limit)
    assert end == split_plan.stop
    assert (split_plan.undecided is None) == (stop in (limit, start))


def test_an_undecided_transaction_lowers_the_stop_and_is_logged(
    topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    store(topic, [[("plain", 0, 3), ("send", 1, 2), ("plain", 0, 3)], [("plain", 0, 4)]])
    lineage = lineage_of(topic)
    with caplog.at_level(logging.WARNING):
        plan = plan_splits(topic.manager, lineage, 0, 12, COMMITTED, max_split_bytes=1 << 20)
    assert plan.undecided is not None
    assert (plan.stop, plan.undecided.producer_id, plan.undecided.first_offset) == (3, 1, 3)
    assert caplog.messages == [str(plan.undecided)]
    assert [split.stop_offset for split in plan.splits] == [3]
    assert find_decided_end(topic.manager, lineage, 0, 12) == 3
    assert find_decided_end(topic.manager, lineage, 5, 12) == 5
    assert find_decided_end(topic.manager, lineage, 0, 2) == 2
    everything = plan_splits(
        topic.manager, lineage, 0, 12, ReadSettings(isolation="read_uncommitted"), max_split_bytes=1
    )
    assert (everything.stop, everything.undecided, everything.splits[-1].stop_offset) == (12, None, 12)


def test_each_part_has_the_aborted_transactions_that_touch_it_and_no_others(topic: StoredTopic) -> None:
    short: list[Step] = [("send", 2, 1), ("abort", 2, 1)]
    store(topic, [[("send", 1, 2), *short], [("plain", 0, 5)], short, [("abort", 1, 1)], [("plain", 0, 3)]])
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 15, COMMITTED, max_split_bytes=1)
    touched = {
        part.start_offset: [(entry.producer_id, entry.first_offset) for entry in part.aborted]
        for split in plan.splits
        for part in split.sections
    }
    assert touched == {
        0: [(1, 0)], 2: [(2, 2), (1, 0)], 3: [(2, 2), (1, 0)], 4: [(1, 0)], 9: [(2, 9), (1, 0)], 10: [(2, 9), (1, 0)],
        11: [(1, 0)], 12: [],
    }  # fmt: skip
    assert [row["offset"] for row in read_plan(topic.manager, plan, COMMITTED)] == [4, 5, 6, 7, 8, 12, 13, 14]


def test_a_transaction_that_reaches_over_the_start_is_left_out(topic: StoredTopic) -> None:
    store(topic, [[("send", 1, 3)], [("send", 1, 3), ("plain", 0, 2)], [("abort", 1, 1), ("plain", 0, 1)]])
    lineage = lineage_of(topic)
    for start in range(10):
        check_window(topic.manager, lineage, (start, 10), COMMITTED, max_split_bytes=1)
    plan = plan_splits(topic.manager, lineage, 4, 7, COMMITTED, max_split_bytes=1 << 20)
    assert [row["offset"] for split in plan.splits for row in read_of(topic.manager, split, COMMITTED)] == [6]


def test_the_indexes_of_the_segments_with_aborts_and_of_the_last_one_are_asked_for(topic: StoredTopic) -> None:
    short: list[Step] = [("send", 2, 1), ("abort", 2, 1)]
    plain: list[Step] = [("plain", 0, 5)]
    store(topic, [[("send", 1, 2), *short], plain, short, [("abort", 1, 1)], short, plain])
    lineage = lineage_of(topic)
    plan_splits(topic.manager, lineage, 0, 4, COMMITTED, max_split_bytes=1 << 20)
    asked = {key.rpartition("/")[2][:20] for key in topic.store.keys_of("get") if key.endswith(".indexes")}
    starts = [f"{segment.start_offset:020}" for segment in topic.copied]
    assert asked == {starts[0], starts[2], starts[3], starts[5]}
    assert topic.requests(".log") == 0


def test_an_outcome_behind_a_hole_lowers_the_stop_to_before_it(topic: StoredTopic) -> None:
    store(topic, [[("plain", 0, 2), ("send", 1, 2)], [("commit", 1, 1)], [("plain", 0, 4)]])
    topic.manager.delete_log_segment_data(topic.copied[1])
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 9, COMMITTED, max_split_bytes=1 << 20)
    assert [row["offset"] for row in read_plan(topic.manager, plan, COMMITTED)] == [0, 1]
    assert plan.stop == 2


def store_copies(topic: StoredTopic, copies: Sequence[Copy]) -> None:
    """Store the segments that leaders copied. The value of each record names the record."""
    for number, copy in enumerate(copies):
        start, epochs = copy.segment.start_offset, copy.segment.segment_leader_epochs
        batches = [
            build_batch([Record(b"%d" % entry.identity)], start + at, leader_epoch=entry.epoch)
            for at, entry in enumerate(copy.entries)
        ]
        copied = write_segment(topic.folder / str(number), batches, base_offset=start, leader_epochs=copy.history)
        metadata = copied.to_metadata(Uuid.random(), event_timestamp_ms=copy.segment.event_timestamp_ms)
        assert metadata.segment_leader_epochs == epochs
        topic.manager.copy_log_segment_data(metadata, copied.files)


@settings(max_examples=60, deadline=None)
@given(copies=partition_copies(), data=st.data())
def test_logs_that_leaders_left_behind_are_in_no_split(
    copies: list[Copy], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(StoredTopic(tmp_path_factory.mktemp("log"))) as topic:
        store_copies(topic, copies)
        lineage = lineage_of(topic)
        start = data.draw(st.integers(0, lineage.end_offset))
        window = (start, data.draw(st.integers(start, lineage.end_offset)))
        isolation: Isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]))
        chosen = ReadSettings(isolation=isolation, on_data_loss="report")
        check_window(
            topic.manager,
            lineage,
            window,
            chosen,
            max_split_bytes=data.draw(st.sampled_from([1, 200, 1000, 1 << 20])),
            max_split_records=data.draw(st.one_of(st.none(), st.integers(1, 10))),
        )
