from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    PartitionTimestamps,
    SpecificOffsets,
)
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.windows import ending_offsets, offset_windows, starting_offsets

TIMES: Mapping[tuple[str, int], Mapping[int, int]] = {("t", 0): {100: 12, 200: 15}, ("t", 1): {100: 3}}
"""The offset of the first record of a time or later."""


def log(topic: str, partition: int, earliest: int, end: int) -> PartitionLog:
    def lookup(asked: PartitionLog, timestamp_ms: int) -> int | None:
        return TIMES[asked.where].get(timestamp_ms)

    return PartitionLog(
        topic, partition, Uuid(bytes(16)), lineage=None, seam=0, earliest=earliest, end=end, time_lookup=lookup
    )


SNAPSHOT = LogSnapshot({("t", 0): log("t", 0, 10, 20), ("t", 1): log("t", 1, 0, 5)})


QUERY = LogQuery(Subscribe(("t",)))
LENIENT = replace(QUERY, on_data_loss="report")


def starts(spec: OffsetSpec, snapshot: LogSnapshot = SNAPSHOT) -> Mapping[TopicPartition, int]:
    return starting_offsets(snapshot, QUERY, spec)


def ends(spec: OffsetSpec) -> Mapping[TopicPartition, int]:
    return ending_offsets(SNAPSHOT, QUERY, spec)


def test_a_batch_reads_everything_by_default() -> None:
    assert offset_windows(SNAPSHOT, QUERY, Earliest(), Latest()) == {("t", 0): (10, 20), ("t", 1): (0, 5)}


def test_latest_starts_at_the_end() -> None:
    assert starts(Latest()) == {("t", 0): 20, ("t", 1): 5}


def test_offsets_are_taken_as_they_are_and_minus_one_and_two_stand_for_the_ends() -> None:
    spec = SpecificOffsets({("t", 0): -2, ("t", 1): -1})
    assert starts(spec) == {("t", 0): 10, ("t", 1): 5}
    spec = SpecificOffsets({("t", 0): 13, ("t", 1): -1})
    assert ends(spec) == {("t", 0): 13, ("t", 1): 5}


def test_a_start_before_the_earliest_offset_is_left_for_planning_to_judge() -> None:
    spec = SpecificOffsets({("t", 0): 4, ("t", 1): 0})
    assert starts(spec)["t", 0] == 4


def test_an_end_beyond_the_log_is_left_for_planning_to_judge() -> None:
    spec = SpecificOffsets({("t", 0): 44, ("t", 1): 5})
    assert ends(spec)["t", 0] == 44


def test_a_start_at_the_end_of_the_log_reads_nothing() -> None:
    spec = SpecificOffsets({("t", 0): 20, ("t", 1): 5})
    assert offset_windows(SNAPSHOT, QUERY, spec, Latest()) == {("t", 0): (20, 20), ("t", 1): (5, 5)}


def test_a_start_beyond_the_log_is_lost_data() -> None:
    spec = SpecificOffsets({("t", 0): 21, ("t", 1): 5})
    with pytest.raises(DataLoss, match=r"starts t-0 at offset 21, and its log ends before offset 20; .*on_data_loss"):
        starts(spec)


def test_a_start_beyond_the_log_starts_at_the_end_and_warns_if_loss_may_be(caplog: pytest.LogCaptureFixture) -> None:
    spec = SpecificOffsets({("t", 0): 21, ("t", 1): 5})
    with caplog.at_level(logging.WARNING):
        assert starting_offsets(SNAPSHOT, LENIENT, spec)["t", 0] == 20
    assert [record.getMessage() for record in caplog.records] == [
        "the query starts t-0 at offset 21, and its log ends before offset 20"
    ]


def test_one_time_counts_for_all_partitions() -> None:
    assert starts(GlobalTimestamp(100)) == {("t", 0): 12, ("t", 1): 3}
    assert ends(GlobalTimestamp(100)) == {("t", 0): 12, ("t", 1): 3}


def test_each_partition_may_have_a_time_of_its_own() -> None:
    spec = PartitionTimestamps({("t", 0): 200, ("t", 1): 100})
    assert starts(spec) == {("t", 0): 15, ("t", 1): 3}
    assert ends(spec) == {("t", 0): 15, ("t", 1): 3}


def test_a_start_at_a_time_without_record_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(ConfigError, match=r"^t-1 has no record of 200 ms or later: .*start at the end"):
        starts(GlobalTimestamp(200))


def test_a_start_at_a_time_without_record_is_the_end_by_the_strategy_latest() -> None:
    chosen = starting_offsets(SNAPSHOT, QUERY, GlobalTimestamp(200), if_too_late="latest")
    assert chosen == {("t", 0): 15, ("t", 1): 5}


def test_an_end_at_a_time_without_record_is_the_end_of_the_log_whatever_the_strategy() -> None:
    assert ends(GlobalTimestamp(200)) == {("t", 0): 15, ("t", 1): 5}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (SpecificOffsets({("t", 0): 1}), "map of starting offsets"),
        (PartitionTimestamps({("t", 0): 100}), "map of starting times"),
    ],
)
def test_a_start_that_leaves_out_a_partition_names_it(spec: OffsetSpec, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the {name} leaves out t-1: name all partitions"):
        starts(spec)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (SpecificOffsets({("t", 0): 1, ("t", 1): 1, ("u", 7): 1}), "map of ending offsets"),
        (PartitionTimestamps({("t", 0): 1, ("t", 1): 1, ("u", 7): 1}), "map of ending times"),
    ],
)
def test_an_end_for_a_partition_that_is_not_there_names_it(spec: OffsetSpec, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the {name} names u-7: there is no such partition"):
        ends(spec)


def test_only_the_first_of_many_missing_partitions_are_named() -> None:
    snapshot = LogSnapshot({("t", number): log("t", number, 0, 1) for number in range(9)})
    with pytest.raises(ConfigError, match="leaves out t-1, t-2, t-3, t-4, t-5 and 3 more:"):
        starts(SpecificOffsets({("t", 0): 0}), snapshot)


def test_a_start_after_the_end_is_an_error_that_names_both() -> None:
    ending = SpecificOffsets({("t", 0): 14, ("t", 1): 5})
    with pytest.raises(ConfigError, match="t-0 would start at offset 15 and end before offset 14"):
        offset_windows(SNAPSHOT, QUERY, GlobalTimestamp(200), ending, if_too_late="latest")
