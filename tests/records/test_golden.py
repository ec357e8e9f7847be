"""Tests of the golden topics' records: all of them, in windows of offsets and of times, in tiny and in huge pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.golden.catalogs import opened
from tests.support.golden.records import Row, expected_rows, partitions_of, rows_of
from tests.support.golden.segments import CASES, segments
from tests.support.records.record_reader import RecordReader, read_records
from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.records import COLUMNS
from tieredstore.model import AtTime, Isolation
from tieredstore.records.settings import ReadSettings

pytestmark = pytest.mark.slow

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
WHOLE = [
    (case, partition, isolation) for case in CASES for partition in partitions_of(case) for isolation in ISOLATIONS
]


def topic_of(case: str) -> str:
    return segments(case)[0].topic


@pytest.mark.parametrize(("case", "partition", "isolation"), WHOLE)
def test_a_whole_topic_is_what_the_java_consumer_read(case: str, partition: int, isolation: Isolation) -> None:
    manager, _ = opened(case)
    read = read_records(manager, topic_of(case), partition, isolation=isolation)
    assert rows_of(read) == expected_rows(case, partition, isolation)
    end = max(segment.end_offset for segment in segments(case) if segment.partition == partition) + 1
    assert read.report.next_offset == read.stop == end
    assert (read.report.lost, read.report.undecided, read.report.skipped) == ((), None, [])


@pytest.mark.parametrize("case", ["07-zstd-enc-txn", "06-codec-lz4-createtime", "12-smallbatch"])
@pytest.mark.parametrize("sizes", [(13, 1), (700, 50), (1 << 26, 1 << 26)], ids=str)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_pieces_of_any_size_give_the_same_records(case: str, sizes: tuple[int, int], isolation: Isolation) -> None:
    manager, catalog = opened(case)
    chosen = ReadSettings(isolation=isolation, piece_bytes=sizes[0], target_bytes=sizes[1])
    read = RecordReader(manager, catalog, chosen).read(topic_of(case), 0)
    assert rows_of(read) == expected_rows(case, 0, isolation)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_any_window_of_offsets_gives_its_records(case: str, data: st.DataObject) -> None:
    manager, catalog = opened(case)
    partition = data.draw(st.sampled_from(partitions_of(case)))
    isolation = data.draw(st.sampled_from(ISOLATIONS))
    borders = [s.base_offset + by for s in segments(case) if s.partition == partition for by in (0, 1)]
    end = max(s.end_offset for s in segments(case) if s.partition == partition) + 1
    places = st.one_of(st.integers(0, end + 2), st.sampled_from(borders), st.just(end))
    start, stop = sorted((data.draw(places), data.draw(places)))
    sizes = data.draw(st.sampled_from([(50, 1), (4096, 1000), (1 << 22, 1 << 22)]))
    chosen = ReadSettings(isolation=isolation, piece_bytes=sizes[0], target_bytes=sizes[1])
    read = RecordReader(manager, catalog, chosen).read(topic_of(case), partition, start, stop)
    expected = [row for row in expected_rows(case, partition, isolation) if start <= row["offset"] < stop]
    assert rows_of(read) == expected
    assert read.report.next_offset == (min(stop, end) if start < end else start)


def first_at(case: str, timestamp: int) -> int | None:
    """Return the first offset at this time or later, from the consumer's records and the broker's batch headers."""
    times = [(row["offset"], row["timestamp"]) for row in expected_rows(case, 0)]
    for segment in segments(case):
        if segment.partition == 0:
            headers = read_batch_headers(segment.original("log").read_bytes())
            times += [(header.base_offset, header.max_timestamp) for header in headers if header.is_control]
    return min((offset for offset, time in times if time >= timestamp), default=None)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_any_window_of_times_gives_the_records_that_a_seek_by_time_would(case: str, data: st.DataObject) -> None:
    manager, catalog = opened(case)
    known = sorted({row["timestamp"] for row in expected_rows(case, 0)})
    near = st.sampled_from(known).flatmap(lambda time: st.integers(time - 2, time + 2))
    first, last = data.draw(near), data.draw(st.one_of(near, st.just(known[-1] + 1)))
    read = RecordReader(manager, catalog, ReadSettings(isolation="read_uncommitted")).read(
        topic_of(case), 0, AtTime(first), AtTime(last)
    )
    end = catalog.lineage(topic_of(case), 0).end_offset
    start, stop = (end if (offset := first_at(case, time)) is None else offset for time in (first, last))
    assert (read.start, read.stop) == (start, max(start, stop))
    assert rows_of(read) == [row for row in expected_rows(case, 0) if start <= row["offset"] < stop]
    looked_up = offset_for_time(manager, catalog.lineage(topic_of(case), 0), first)
    assert start == (end if looked_up is None else looked_up.offset)


@settings(max_examples=30, deadline=None)
@given(columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True), isolation=st.sampled_from(ISOLATIONS))
def test_only_the_columns_asked_for_are_given_in_the_order_asked_for(columns: list[str], isolation: Isolation) -> None:
    case = "07-txn"
    manager, catalog = opened(case)
    chosen = ReadSettings(columns=columns, isolation=isolation)
    batches = list(RecordReader(manager, catalog, chosen).read("txn", 0, 500, 700))
    assert all(batch.schema == chosen.schema for batch in batches)
    assert chosen.schema.names == columns
    rows: list[Row] = [row for batch in batches for row in batch.to_pylist()]
    expected = [row for row in expected_rows(case, 0, isolation) if 500 <= row["offset"] < 700]
    for row, wanted in zip(rows, expected, strict=True):
        row["headers"] = wanted["headers"]  # compared above
        assert row == {name: wanted[name] for name in {*columns, "headers"}}
