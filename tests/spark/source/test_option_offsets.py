from __future__ import annotations

import pytest

from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, Earliest, Latest, Places
from tieredstore.spark.source.options import SourceOptions, parse_options


def parsed(streaming: bool = False, /, **options: str) -> SourceOptions:
    return parse_options({"subscribe": "t", "settings": "f", **options}, streaming=streaming)


def refused(sentence: str, streaming: bool = False, /, **options: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parsed(streaming, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (" Earliest ", Earliest()),
        ("LATEST", Latest()),
        ('{"t":{"0":23,"1":-1},"u":{"0":-2}}', {("t", 0): 23, ("t", 1): Latest(), ("u", 0): Earliest()}),
        (' {"t":{"0":"23"}} ', {("t", 0): 23}),
    ],
)
def test_a_stream_starts_at_offsets(text: str, spec: Places) -> None:
    assert parsed(True, startingOffsets=text).starting == spec


def test_a_batch_starts_and_ends_at_offsets() -> None:
    options = parsed(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":-1}}')
    assert (options.starting, options.ending) == ({("t", 0): Earliest()}, {("t", 0): Latest()})


def test_a_batch_starts_and_ends_at_times() -> None:
    options = parsed(startingTimestamp=" 100 ", endingTimestamp="200")
    assert (options.starting, options.ending) == (AtTime(100), AtTime(200))
    options = parsed(startingOffsetsByTimestamp='{"t":{"0":100}}', endingOffsetsByTimestamp='{"t":{"0":100}}')
    assert options.starting == options.ending == {("t", 0): AtTime(100)}


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_time_goes_before_times_of_partitions_and_these_before_offsets(side: str) -> None:
    offsets = {f"{side}Offsets": '{"t":{"0":5}}'}
    times = {f"{side}OffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {f"{side}Timestamp": "7"}
    chosen = [getattr(parsed(**given), side) for given in (offsets, offsets | times, offsets | times | time)]
    assert chosen == [{("t", 0): 5}, {("t", 0): AtTime(6)}, AtTime(7)]


def test_a_time_makes_a_latest_start_of_a_batch_of_no_account() -> None:
    assert parsed(startingOffsets="latest", startingTimestamp="7").starting == AtTime(7)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    "text",
    ["", "first", "5", "[]", "{", "{}", '{"t":{}}', '{"t":5}', '{"t":[5]}', '{"t":{"x":5}}', '{"t":{"0":null}}',
     '{"t":{"0":-3}}', '{"t":{"0":1.5}}', '{"t":{"0":true}}', '{"t":{"-1":5}}', '{"t":{"2147483648":5}}',
     '{"t":{"0":9223372036854775808}}', '{"t":{"0":1,"0":2}}', '{"t":{"0":1,"00":2}}', '{"a b":{"0":1}}',
     '{"t":{"0":"' + "9" * 5000 + '"}}', '{"a":' * 100_000],
)  # fmt: skip
def test_what_are_no_offsets_is_refused(name: str, text: str) -> None:
    refused(f"{name} ", **{name: text})


@pytest.mark.parametrize("name", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
@pytest.mark.parametrize("text", ["", "earliest", "7", "{}", '{"t":{"0":-1}}', '{"t":{"0":"2020-01-01"}}'])
def test_what_are_no_times_of_partitions_is_refused(name: str, text: str) -> None:
    refused(f"the option {name} ", **{name: text})


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize("text", ["", "-1", "2020-01-01", "1.0", "9223372036854775808"])
def test_what_is_no_time_is_refused(name: str, text: str) -> None:
    refused(f"the option {name} is .*; expected is a whole number of 0 or more", **{name: text})


def test_a_batch_does_not_start_at_the_end() -> None:
    refused("the option startingOffsets is latest", startingOffsets="latest")
    refused("the option startingOffsets has -1, .* for t-1", startingOffsets='{"t":{"0":5,"1":-1}}')


def test_a_batch_does_not_end_at_the_beginning() -> None:
    refused("the option endingOffsets is earliest", endingOffsets="earliest")
    refused("the option endingOffsets has -2, .* for t-1", endingOffsets='{"t":{"0":5,"1":-2}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    refused(f"the option {name} is for batches", True, **{name: "latest"})


def test_a_start_after_the_end_is_refused() -> None:
    refused(
        "t-1 would start at 6 .startingOffsets., after its end at 5",
        startingOffsets='{"t":{"0":-2,"1":6}}',
        endingOffsets='{"t":{"0":1,"1":5}}',
    )
    refused(
        "t-0 would start at 6 .startingOffsetsByTimestamp., after its end at 5",
        startingOffsetsByTimestamp='{"t":{"0":6}}',
        endingOffsetsByTimestamp='{"t":{"0":5}}',
    )
    refused("startingTimestamp is 6, after endingTimestamp, which is 5", startingTimestamp="6", endingTimestamp="5")


def test_a_start_at_the_end_is_an_empty_batch() -> None:
    options = parsed(startingOffsets='{"t":{"0":6}}', endingOffsets='{"t":{"0":6}}')
    assert options.starting == options.ending
    options = parsed(startingTimestamp="6", endingTimestamp="6")
    assert options.starting == options.ending


def test_an_end_at_latest_is_after_every_start() -> None:
    parsed(startingOffsets='{"t":{"0":6}}', endingOffsets='{"t":{"0":-1}}')


def test_start_and_end_name_the_same_partitions() -> None:
    refused(
        "startingOffsets names t-1 and endingOffsets does not: both must name the same partitions",
        startingOffsets='{"t":{"0":1,"1":1}}',
        endingOffsets='{"t":{"0":1}}',
    )
    refused(
        "endingOffsetsByTimestamp names u-0 and startingOffsetsByTimestamp does not",
        startingOffsetsByTimestamp='{"t":{"0":1}}',
        endingOffsetsByTimestamp='{"t":{"0":1},"u":{"0":1}}',
    )


@pytest.mark.parametrize(("text", "strategy"), [("ERROR", "error"), (" latest ", "latest"), ("Latest", "latest")])
def test_what_a_time_without_record_means_is_chosen(text: str, strategy: str) -> None:
    assert parsed(startingOffsetsByTimestampStrategy=text).timestamp_strategy == strategy


def test_it_is_an_error_by_default() -> None:
    assert parsed().timestamp_strategy == "error"


def test_another_strategy_is_refused() -> None:
    refused(
        "the option startingOffsetsByTimestampStrategy is 'earliest'; expected is error or latest",
        startingOffsetsByTimestampStrategy="earliest",
    )
