"""Start, end and partitions of records, as typed by a person."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.cli.app.options import parse_partitions
from tieredstore.errors import ConfigError
from tieredstore.model import check_offset, hint_of_number
from tieredstore.query.positions import parse_place

numbers = st.integers(0, 400)
parts = st.one_of(numbers.map(lambda n: (n, n)), st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))))


@given(st.lists(st.lists(parts, min_size=1, max_size=4), min_size=1, max_size=3))
def test_partitions_are_those_that_are_named(lists: list[list[tuple[int, int]]]) -> None:
    texts = [",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) for ranges in lists]
    named = {number for ranges in lists for first, last in ranges for number in range(first, last + 1)}
    assert parse_partitions(texts) == tuple(sorted(named))


def test_without_a_word_all_partitions_are_meant() -> None:
    assert parse_partitions(None) is parse_partitions([]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1,",
        "-1",
        "1-",
        "3-1",
        "a",
        "1..3",
        "1-2-3",
        "٣",
        "1;2",
        "0x1",
        "2147483648",
        "99999999999",
        "1 2",
        "+1",
    ],
)
def test_text_that_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="it must have the form 3, 0,2 or 4-7"):
        parse_partitions([text])


def test_a_range_that_no_topic_has_is_not_counted_through() -> None:
    with pytest.raises(ConfigError, match="more than 100000 partitions"):
        parse_partitions(["0-2147483647", "0-2147483647"])


@pytest.mark.parametrize("text", ["-5", "-0", "-0005", "-9999999999999999999"])
def test_a_number_below_zero_is_no_place_and_names_the_option_for_the_last_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--from {text} is not an offset; .* cat --last {text[1:]}"):
        parse_place("--from", text)


@pytest.mark.parametrize("text", ["--5", "-", "- 5", "-5.0", "-٥", "−5", "-99999999999999999999"])
def test_other_signs_are_neither_an_offset_nor_a_time(text: str) -> None:
    with pytest.raises(ConfigError, match="not an offset or a time"):
        parse_place("--from", text)


def test_offsets_that_kafka_cannot_have_are_refused() -> None:
    assert parse_place("--from", "999999999999") == 10**12 - 1
    with pytest.raises(ConfigError, match="is not an offset: offsets are from 0 to 9223372036854775807"):
        parse_place("--from", "9223372036854775808")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (20260101, "a day is written 2026-01-01"),
        (20240229, "a day is written 2024-02-29"),
        (20260229, None),
        (20261301, None),
        (1767225600, "a time in seconds since 1970 is written @1767225600000"),
        (1767225600123, "a time in milliseconds since 1970 is written @1767225600123"),
        (4433, None),
        (2026, None),
        (30000101, None),
        (2**63 - 1, None),
    ],
)
def test_a_number_that_looks_like_a_time_is_told_as_one(number: int, hint: str | None) -> None:
    assert hint_of_number(number) == hint


@pytest.mark.parametrize("number", ["1795428000000", "4102444800000000", "9223372036854775807"])
def test_a_number_that_no_log_reaches_is_refused_with_the_way_to_write_a_time(number: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an offset of a log; a time .*is written .*@") as refused:
        parse_place("--from", number)
    assert (f"@{number}" in str(refused.value)) == (number == "1795428000000")


def test_an_offset_beyond_the_ends_of_all_logs_is_refused() -> None:
    ends = {"orders-0": 5, "orders-1": 9, "orders-2": 3, "orders-3": 4}
    for offset in (0, 5, 9):
        check_offset(offset, ends)
    beyond = r"offset 10 is beyond the end of orders-0 \(5\), orders-1 \(9\), orders-2 \(3\) and 1 more; a time is"
    with pytest.raises(ConfigError, match=beyond):
        check_offset(10, ends)
    with pytest.raises(ConfigError, match=r"orders-0 \(7\); a day is written 2026-01-31"):
        check_offset(20260131, {"orders-0": 7})
    check_offset(10**12 - 1)


@given(st.integers(0, 2**63 - 1))
def test_every_hint_leads_to_a_time(number: int) -> None:
    hint = hint_of_number(number)
    assert hint is None or not isinstance(parse_place("--from", hint.rpartition(" ")[2]), int)
