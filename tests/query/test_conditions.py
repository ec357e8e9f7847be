"""Tests of segments that a filter excludes by metadata: none has a record that the filter matches."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.records.topic_filters import RECORDS, expressions
from tieredstore.errors import ConfigError
from tieredstore.query.conditions import Condition, PartitionSpan
from tieredstore.query.topic_columns import topic_schema

SCHEMA = topic_schema()


def rows_in(span: PartitionSpan) -> list[tuple[int, int]]:
    """Return the records of a span, as rows of RECORDS."""
    return [
        (row, offset)
        for row, (partition, offset, time) in enumerate(RECORDS.rows)
        if partition == span.where[1]
        and span.start <= offset < span.stop
        and (span.latest_ms is None or time <= span.latest_ms)
    ]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_record_that_a_filter_wants_is_left_out(data: st.DataObject) -> None:
    condition = Condition(data.draw(expressions()), SCHEMA)
    wanted = set(RECORDS.wanted(condition))
    start, stop = sorted(data.draw(st.lists(st.integers(0, 31), min_size=2, max_size=2, unique=True)))
    span = PartitionSpan(
        ("orders", data.draw(st.integers(0, 2))), start, stop, data.draw(st.none() | st.integers(0, 400))
    )
    of_span = rows_in(span)
    offsets = [offset for row, offset in of_span if row in wanted]
    if not condition.possible([span]):
        assert offsets == []
    else:
        first, last = condition.hull([span])
        assert start <= first <= last <= stop
        assert all(first <= offset < last for offset in offsets)
    since = condition.since_ms()
    assert since is None or all(RECORDS.rows[row][2] >= since for row in wanted)
    if condition.holds_for_all(span):
        assert len(offsets) == len(of_span)


@pytest.mark.parametrize(
    ("expression", "hull", "since"),
    [
        (ds.field("offset") >= 100, (100, 1000), None),
        ((ds.field("offset") > 9) & (ds.field("offset") <= 20), (10, 21), None),
        (ds.field("offset").isin([70, 500]), (70, 501), None),
        (~(ds.field("offset") > 10), (0, 11), None),
        (ds.field("timestamp") >= pa.scalar(5000, pa.timestamp("ms", "UTC")), (0, 1000), 5000),
        (ds.field("timestamp") > pa.scalar(5_000_000, pa.timestamp("us", "UTC")), (0, 1000), 5001),
        (ds.field("value") == b"x", (0, 1000), None),
    ],
    ids=str,
)
def test_offsets_and_times_are_narrowed_as_far_as_they_can_be(
    expression: ds.Expression, hull: tuple[int, int], since: int | None
) -> None:
    condition = Condition(expression, SCHEMA)
    span = PartitionSpan(("orders", 1), 0, 1000, 10_000)
    assert condition.possible([span]) == [span]
    assert (condition.hull([span]), condition.since_ms()) == (hull, since)


@pytest.mark.parametrize(
    "expression",
    [
        ds.field("partition") == 2,
        ds.field("partition") != 1,
        ds.field("topic") == "payments",
        (ds.field("partition") == 1) & (ds.field("offset") < 0),
        ds.field("timestamp") > pa.scalar(10_000, pa.timestamp("ms", "UTC")),
        ds.scalar(False),
    ],
    ids=str,
)
def test_spans_that_a_filter_excludes_are_not_possible(expression: ds.Expression) -> None:
    assert Condition(expression, SCHEMA).possible([PartitionSpan(("orders", 1), 0, 1000, 10_000)]) == []


@pytest.mark.parametrize(
    "expression",
    [ds.field("offset") != 7, ds.field("offset").isin([6, 8]), pc.bit_wise_and(ds.field("offset"), 1) == 0],
    ids=str,
)
def test_one_offset_that_a_filter_excludes_is_not_possible(expression: ds.Expression) -> None:
    """A batch of a topic of batches has one offset."""
    assert Condition(expression, SCHEMA).possible([PartitionSpan(("orders", 1), 7, 8)]) == []


def test_a_filter_that_cannot_be_computed_for_an_excluded_offset_is_no_error() -> None:
    overflows_from_4 = pc.multiply_checked(ds.field("offset"), 1 << 61) >= 0
    condition = Condition((ds.field("offset") < 3) & overflows_from_4, SCHEMA)
    assert condition.hull(condition.possible([PartitionSpan(("orders", 1), 0, 20)])) == (0, 3)
    each = [PartitionSpan(("orders", 1), offset, offset + 1) for offset in range(20)]
    assert condition.possible(each) == each[:3]


def test_a_filter_that_cannot_be_computed_for_an_excluded_partition_is_no_error() -> None:
    number = ds.field("partition").cast(pa.int64())
    condition = Condition((ds.field("partition") > 0) & (pc.divide(pc.scalar(12), number) > 3), SCHEMA)
    spans = [PartitionSpan(("orders", partition), 0, 9) for partition in range(5)]
    assert condition.possible(spans[:1]) == []
    assert condition.possible(spans) == spans[1:]
    assert condition.hull(spans[1:2]) == (0, 9)
    assert not condition.holds_for_all(spans[0])


def test_a_filter_names_the_columns_that_it_needs() -> None:
    assert Condition((ds.field("offset") > 1) | ds.field("key").is_null(), SCHEMA).columns == ("offset", "key")


NO_CONDITION = r"it must be true or false of a record, .* of its type: topic string, partition int32, offset int64, "


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (ds.field("price") > 1, "there is no column price, but topic, partition, offset, "),
        (ds.field(("value", "price")) == 1, "there is no such column, but topic, partition, offset, "),
        (ds.field("offset") == "five", NO_CONDITION),
        (ds.field("timestamp") > 5, NO_CONDITION),
        (ds.field("offset"), NO_CONDITION),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_is_refused_in_a_sentence_of_ours(expression: ds.Expression, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^the filter .* cannot be applied: {reason}") as caught:
        Condition(expression, SCHEMA)
    message = str(caught.value)
    assert not any(word in message.replace(str(expression), "") for word in ("FieldRef", "kernel", "\n"))
