"""Tests of splits of golden and generated topics: every record once, for any window and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.golden.catalogs import opened
from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import CASES, segments
from tests.support.golden.stored import settings_of
from tests.support.records.split_reads import check_window, plan_splits, read_of, read_plan
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.model import Isolation
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import find_decided_end
from tieredstore.remote import RemoteStorageManager

pytestmark = pytest.mark.slow

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
PARTITIONS = [(case, partition) for case in CASES for partition in partitions_of(case)]
SIZES = [5_000, 20_000, 70_000, 300_000, 1 << 30]
LEFT_TO_SOAK = (20_000, 300_000)


@pytest.mark.parametrize(("case", "partition"), PARTITIONS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    "max_split_bytes", [pytest.param(size, marks=[pytest.mark.soak] if size in LEFT_TO_SOAK else []) for size in SIZES]
)
def test_a_whole_topic_in_splits_is_what_the_java_consumer_read(
    case: str, partition: int, isolation: Isolation, max_split_bytes: int
) -> None:
    manager, catalog = opened(case)
    lineage = catalog.lineage(segments(case)[0].topic, partition)
    chosen = ReadSettings(isolation=isolation)
    plan = plan_splits(manager, lineage, 0, lineage.end_offset, chosen, max_split_bytes=max_split_bytes)
    assert read_plan(manager, plan, chosen) == expected_rows(case, partition, isolation)
    assert (plan.stop, plan.undecided) == (lineage.end_offset, None)
    sizes = [segment.original("log").stat().st_size for segment in segments(case) if segment.partition == partition]
    assert sum(split.size_in_bytes for split in plan.splits) == sum(sizes)
    largest = max(split.size_in_bytes for split in plan.splits)
    assert largest <= max(max_split_bytes, largest_batch(case, partition))


def largest_batch(case: str, partition: int) -> int:
    logs = [segment.original("log").read_bytes() for segment in segments(case) if segment.partition == partition]
    return max(header.size_in_bytes for log in logs for header in read_batch_headers(log))


@pytest.mark.parametrize("case", ["12-smallbatch", "07-txn", "11-single-record", "06-codec-zstd-logappendtime"])
def test_splits_of_a_byte_are_the_batches(case: str) -> None:
    manager, catalog = opened(case)
    lineage = catalog.lineage(segments(case)[0].topic, 0)
    stop = min(lineage.end_offset, 700)
    chosen = ReadSettings(isolation="read_committed")
    plan = plan_splits(manager, lineage, 0, stop, chosen, max_split_bytes=1)
    assert read_plan(manager, plan, chosen) == [
        row for row in expected_rows(case, 0, "read_committed") if row["offset"] < stop
    ]
    assert all(len(split.sections) == 1 for split in plan.splits)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_any_window_in_splits_of_any_size_is_what_one_read_gives(case: str, data: st.DataObject) -> None:
    manager, catalog = opened(case)
    partition = data.draw(st.sampled_from(partitions_of(case)))
    lineage = catalog.lineage(segments(case)[0].topic, partition)
    borders = [s.base_offset + by for s in segments(case) if s.partition == partition for by in (-1, 0, 1)]
    end = lineage.end_offset
    places = st.one_of(st.integers(0, end + 2), st.sampled_from([max(0, at) for at in borders]), st.just(end))
    start, stop = sorted((data.draw(places), data.draw(places)))
    check_window(
        manager,
        lineage,
        (start, stop),
        ReadSettings(isolation=data.draw(st.sampled_from(ISOLATIONS)), piece_bytes=data.draw(st.integers(50, 100_000))),
        max_split_bytes=data.draw(st.one_of(st.sampled_from(SIZES), st.integers(3000, 400_000))),
        max_split_records=data.draw(st.one_of(st.none(), st.sampled_from([40, 100, 1000]))),
    )


@pytest.mark.parametrize("case", ["07-txn", "07-zstd-enc-txn"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_split_can_be_read_alone_and_by_a_manager_that_knows_nothing(case: str, data: st.DataObject) -> None:
    manager, catalog = opened(case)
    lineage = catalog.lineage(segments(case)[0].topic, 0)
    chosen = ReadSettings(isolation="read_committed", columns=["offset", "headers", "value"])
    plan = plan_splits(manager, lineage, 0, lineage.end_offset, chosen, max_split_bytes=20_000)
    split = data.draw(st.sampled_from(plan.splits))
    with RemoteStorageManager(settings_of(case)) as other:
        rows = read_of(other, split, chosen)
    wanted = range(rows[0]["offset"], rows[-1]["offset"] + 1)
    assert rows == [
        {name: row[name] for name in ("offset", "headers", "value")}
        for row in expected_rows(case, 0, "read_committed")
        if row["offset"] in wanted
    ]


@pytest.mark.parametrize("case", ["07-txn", "01-none"])
def test_the_decided_end_of_a_topic_whose_transactions_ended_is_the_end_asked_for(case: str) -> None:
    manager, catalog = opened(case)
    lineage = catalog.lineage(segments(case)[0].topic, 0)
    for stop in (0, 10, lineage.end_offset, lineage.end_offset + 5):
        assert find_decided_end(manager, lineage, 0, stop) == stop
