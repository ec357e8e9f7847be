from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tieredstore.errors import ConfigError, DataLossError
from tieredstore.model import AtTime, Earliest, Latest, Places, TopicPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.windows import PlaceLookup

TIMES: Mapping[tuple[str, int], Mapping[int, int]] = {("t", 0): {100: 12, 200: 15}, ("t", 1): {100: 3}}
"""For each time, the offset of the first record with that time or a later one."""


def log(topic: str, partition: int, earliest: int, end: int) -> PartitionLog:
    return PartitionLog(topic, partition, Uuid(bytes(16)), lineage=None, seam=0, earliest=earliest, end=end)


SNAPSHOT = LogSnapshot({("t", 0): log("t", 0, 10, 20), ("t", 1): log("t", 1, 0, 5)})


QUERY = LogQuery(Subscribe(("t",)))
LENIENT = replace(QUERY, on_data_loss="report")


def lookup(snapshot: LogSnapshot = SNAPSHOT, query: LogQuery = QUERY) -> PlaceLookup:
    return PlaceLookup(snapshot, query, lambda asked, timestamp_ms: TIMES[asked.where].get(timestamp_ms))


def starts(places: Places) -> Mapping[TopicPartition, int]:
    return lookup().find_starts(places)


def ends(places: Places) -> Mapping[TopicPartition, int]:
    return lookup().find_ends(places)


def test_a_batch_reads_everything_by_default() -> None:
    assert lookup().exact(Earliest(), Latest()) == {("t", 0): (10, 20), ("t", 1): (0, 5)}


def test_latest_starts_at_the_end() -> None:
    assert starts(Latest()) == {("t", 0): 20, ("t", 1): 5}


def test_offsets_are_taken_as_they_are_and_minus_one_and_two_stand_for_the_ends() -> None:
    places: Places = {("t", 0): Earliest(), ("t", 1): Latest()}
    assert starts(places) == {("t", 0): 10, ("t", 1): 5}
    places = {("t", 0): 13, ("t", 1): Latest()}
    assert ends(places) == {("t", 0): 13, ("t", 1): 5}


def test_a_start_before_the_earliest_offset_is_left_for_planning_to_judge() -> None:
    places: Places = {("t", 0): 4, ("t", 1): 0}
    assert starts(places)["t", 0] == 4


def test_an_end_beyond_the_log_is_left_for_planning_to_judge() -> None:
    places: Places = {("t", 0): 44, ("t", 1): 5}
    assert ends(places)["t", 0] == 44


def test_a_start_at_the_end_of_the_log_reads_nothing() -> None:
    places: Places = {("t", 0): 20, ("t", 1): 5}
    assert lookup().exact(places, Latest()) == {("t", 0): (20, 20), ("t", 1): (5, 5)}


def test_a_start_beyond_the_log_is_lost_data() -> None:
    places: Places = {("t", 0): 21, ("t", 1): 5}
    with pytest.raises(
        DataLossError, match=r"starts t-0 at offset 21, but its log ends before offset 20; .*on_data_loss"
    ):
        starts(places)


def test_a_start_beyond_the_log_starts_at_the_end_and_warns_if_loss_may_be(caplog: pytest.LogCaptureFixture) -> None:
    places: Places = {("t", 0): 21, ("t", 1): 5}
    with caplog.at_level(logging.WARNING):
        assert lookup(query=LENIENT).find_starts(places)["t", 0] == 20
    assert [record.getMessage() for record in caplog.records] == [
        "the query starts t-0 at offset 21, but its log ends before offset 20"
    ]


def test_one_time_counts_for_all_partitions() -> None:
    assert starts(AtTime(100)) == {("t", 0): 12, ("t", 1): 3}
    assert ends(AtTime(100)) == {("t", 0): 12, ("t", 1): 3}


def test_each_partition_may_have_a_time_of_its_own() -> None:
    places: Places = {("t", 0): AtTime(200), ("t", 1): AtTime(100)}
    assert starts(places) == {("t", 0): 15, ("t", 1): 3}
    assert ends(places) == {("t", 0): 15, ("t", 1): 3}


def test_a_start_at_a_time_without_record_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(ConfigError, match=r"^t-1 has no record of 200 ms or later: .*start at the end"):
        starts(AtTime(200))


def test_a_start_at_a_time_without_record_is_the_end_by_the_strategy_latest() -> None:
    chosen = lookup().find_starts(AtTime(200), if_too_late="latest")
    assert chosen == {("t", 0): 15, ("t", 1): 5}


def test_an_end_at_a_time_without_record_is_the_end_of_the_log_whatever_the_strategy() -> None:
    assert ends(AtTime(200)) == {("t", 0): 15, ("t", 1): 5}


@pytest.mark.parametrize(
    ("places", "name"),
    [
        ({("t", 0): 1}, "map of starting offsets"),
        ({("t", 0): AtTime(100)}, "map of starting times"),
    ],
)
def test_a_start_that_leaves_out_a_partition_names_it(places: Places, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the {name} leaves out t-1: name all partitions"):
        starts(places)


@pytest.mark.parametrize(
    ("places", "name"),
    [
        ({("t", 0): 1, ("t", 1): 1, ("u", 7): 1}, "map of ending offsets"),
        ({("t", 0): AtTime(1), ("t", 1): AtTime(1), ("u", 7): AtTime(1)}, "map of ending times"),
    ],
)
def test_an_end_for_a_partition_that_is_not_there_names_it(places: Places, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the {name} names u-7: there is no such partition"):
        ends(places)


def test_only_the_first_of_many_missing_partitions_are_named() -> None:
    snapshot = LogSnapshot({("t", number): log("t", number, 0, 1) for number in range(9)})
    with pytest.raises(ConfigError, match="leaves out t-1, t-2, t-3, t-4, t-5 and 3 more:"):
        lookup(snapshot).find_starts({("t", 0): 0})


def test_a_start_after_the_end_is_an_error_that_names_both() -> None:
    ending = {("t", 0): 14, ("t", 1): 5}
    with pytest.raises(ConfigError, match="t-0 would start at offset 15 and end before offset 14"):
        lookup().exact(AtTime(200), ending, if_too_late="latest")
