"""Tests of topics as Polars' lazy frames: predicates exclude segments where possible, and never change a result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.records import fixtures
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.errors import ConfigError
from tieredstore.polars import arrow_condition, scan
from tieredstore.values import Text

pytestmark = pytest.mark.slow

col: Any = pl.col


bucket = fixtures.filled_bucket


def time_of(offset: int) -> datetime:
    """Return the time of the record at this offset in the bucket."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=100 * offset)


def test_a_topic_is_a_frame(bucket: Bucket) -> None:
    frame: Any = scan(bucket.options | {"chunk.size": "16384"}, "orders", value=Text())
    counted = frame.group_by("partition").agg(pl.len(), col("value").max()).sort("partition").collect()
    assert counted.rows() == [(0, 100, "v99"), (1, 50, "v9")]
    assert frame.select(pl.len()).collect().item() == 150
    assert frame.head(3).collect().height == 3
    assert frame.with_row_index().select("index").tail(1).collect().item() == 149
    assert frame.filter(col("offset") < 2).with_columns(one=pl.lit(1)).select("one").head(3).collect().height == 3
    assert frame.collect_schema() == frame.collect().schema


def test_a_frame_may_be_of_a_window_and_of_some_partitions(bucket: Bucket) -> None:
    window = {"start": 10, "stop": time_of(20), "partitions": [1]}
    part: Any = scan(**_with(window, settings=bucket.manager, topic="orders"))
    read = part.select("partition", "offset").collect()
    assert read.rows() == [(1, offset) for offset in range(10, 20)]
    later: Any = scan(bucket.manager, "orders", start="1970-01-01T00:00:09.900")
    assert later.select("partition", "offset").collect().rows() == [(0, 99)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"start": datetime.fromisoformat("2026-01-01")}, "start is 2026-01-01T00:00:00, which has no time zone"),
        ({"start": 5, "stop": 4}, "start 5 is after stop 4"),
        ({"partitions": "1"}, "partitions is a str: give 0"),
        ({"topic": "orders$batches", "stop": 5}, "partitions, start and stop do not apply to orders"),
        ({"topic": 5}, "topic is of the type int; it must be a topic's name"),
        ({"client": "localhost:9092"}, "client is of the type str; it must be a map of properties"),
        ({"value": "text"}, r"value is 'text'; it must be Binary\(\)"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(bucket: Bucket, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        scan(**_with(words, settings=bucket.manager, topic="orders"))


def _with(words: dict[str, Any], **usual: Any) -> dict[str, Any]:
    return usual | words


_leaves = st.one_of(
    st.tuples(st.sampled_from(["offset", "partition"]), st.integers(-1, 101)).flatmap(
        lambda pair: st.sampled_from(
            [
                col(pair[0]) >= pair[1], col(pair[0]) < pair[1], col(pair[0]) == pair[1], col(pair[0]) != pair[1],
                pl.lit(pair[1]) > col(pair[0]), col(pair[0]).is_in([pair[1], 7]),
                col(pair[0]).is_in([pair[1], None]), col(pair[0]).is_between(3, pair[1]),
            ]
        )
    ),
    st.integers(-1, 101).map(lambda offset: col("timestamp") >= time_of(offset)),
    st.just(col("value") == b"v7"),
    st.just(col("topic").cast(pl.String) == "orders"),
)  # fmt: skip
_predicates = st.recursive(
    _leaves,
    lambda parts: st.one_of(
        st.lists(parts, min_size=2, max_size=3).map(lambda some: reduce(lambda a, b: a & b, some)),
        st.lists(parts, min_size=2, max_size=3).map(lambda some: reduce(lambda a, b: a | b, some)),
        parts.map(lambda part: ~part),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(50), deadline=None)
@given(predicate=_predicates)
def test_any_predicate_gives_the_rows_that_it_gives_of_all(everything: Any, predicate: Any) -> None:
    lazy, eager = everything
    wanted = eager.filter(predicate).select("partition", "offset")
    assert lazy.filter(predicate).select("partition", "offset").collect().rows() == wanted.rows()


@pytest.fixture(scope="module")
def everything(bucket: Bucket) -> tuple[Any, Any]:
    frame: Any = scan(bucket.manager, "orders")
    return frame, frame.collect()


def test_predicates_keep_what_they_exclude_from_being_fetched(topic: StoredTopic) -> None:
    for base in range(0, 10_000, 1000):
        topic.copy_plain(base, 1000, size=1000)
    topic.catalog()
    frame: Any = scan(topic.manager, "events")

    # Each segment has a megabyte. A range within one costs some chunks, the manifest, and the indexes.
    def asked(predicate: Any, *, most_bytes: int = 100_000) -> tuple[int, int]:
        topic.store.reset()
        rows = frame.filter(predicate).select("offset").collect().height
        logs = {op.keys[0] for op in topic.store.operations if op.name.startswith("get")}
        assert topic.store.bytes_down < most_bytes
        return rows, len({key for key in logs if key.endswith(".log")})

    assert asked((col("offset") >= 4990) & (col("offset") < 5010)) == (20, 2)
    assert asked(col("offset").is_in([5, 9999])) == (2, 2)
    assert asked(~col("offset").is_between(10, 9989)) == (20, 2)
    assert asked(col("timestamp") >= datetime(1970, 1, 1, 0, 0, 9, 995_000, tzinfo=UTC)) == (5, 1)
    assert asked(col("partition") == 7, most_bytes=10_000) == (0, 0)
    # Kafka stores no minimum time of a segment, so an upper bound excludes no segment: docs/how-to/query.md.
    assert asked(col("timestamp") < datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), most_bytes=20_000_000) == (1000, 10)


def test_unknown_expressions_narrow_nothing() -> None:
    assert arrow_condition(col("value") == b"x") is None
    assert arrow_condition((col("offset") > 3) | (col("value") == b"x")) is None
    assert str(arrow_condition((col("offset") > 3) & (col("value") == b"x"))) == "(offset > 3)"
    assert arrow_condition(~((col("offset") > 3) & (col("value") == b"x"))) is None
    assert arrow_condition(col("offset") + 1 > 3) is None


def test_a_lost_segment_is_our_sentence_in_polars_error(topic: StoredTopic) -> None:
    for base in (0, 200):
        topic.copy_plain(base, 100)
    with pytest.raises(Exception, match="offsets 100 to 199 of events-0"):
        scan(topic.manager, "events").collect()


def test_an_older_topic_of_the_same_name_is_read_by_its_id(tmp_path: Path) -> None:
    lives = Bucket(tmp_path)
    lives.write(10)
    lives.write(20, topic_id=SECOND_ID)
    for topic_id, count in ((None, 20), (str(FIRST_ID), 10), (SECOND_ID, 20)):
        frame: Any = scan(lives.manager, "orders", topic_id=topic_id)
        assert frame.collect().height == count
    lives.close()
