"""Runs that may not continue from their position. No broker is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.errors import ConfigError
from tieredstore.restore.produce.continuation import check_same, check_stops
from tieredstore.restore.produce.runs import ProduceOptions, RunPosition, SourceRange
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.restore.produce.target import TargetTopic

TARGET: Final = TargetTopic("new", 1, 1, {}, {}, None, SECOND_ID)
POSITION: Final = RunPosition(
    topics={"orders": "new"}, topic_ids={"orders": str(FIRST_ID)}, partitioner="keep",
    sources={("orders", 0): SourceRange(0, 0, 20)}, ends={("new", 0): 0}, target_ids={"new": str(SECOND_ID)},
)  # fmt: skip


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    bucket = Bucket(tmp_path)
    bucket.write(20)
    return bucket


def source_of(bucket: Bucket, **options: Any) -> BucketTopics:
    return BucketTopics(bucket.manager, ProduceOptions(topics={"orders": "new"}, name="friday", **options))


def test_a_run_continues_with_the_same_source_and_target(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    with source_of(bucket) as source:
        check_same(source, POSITION, [TARGET])
        check_same(source, replace(POSITION, target_ids={}), [TARGET])
        check_stops(source, POSITION)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("began", "sentence"),
    [
        ({"topics": {"orders": "old"}}, "the run friday began with other topics or another partitioner: give this run"),
        ({"partitioner": "java"}, "the run friday began with other topics or another partitioner"),
        (
            {"topic_ids": {"orders": str(SECOND_ID)}},
            f"and the bucket's newest is {FIRST_ID}: continue it with --topic-id orders={SECOND_ID}, or give this run",
        ),
        (
            {"topic_ids": {"orders": f"pipeline p, generation 1, {FIRST_ID}"}},
            "the run friday began with another bucket or backup: continue it with that one, or give this run",
        ),
        ({"target_ids": {"new": str(FIRST_ID)}}, "topic new was created again after the run friday began, so it lacks"),
    ],
)
def test_another_source_or_target_is_refused(bucket: Bucket, began: Mapping[str, Any], sentence: str) -> None:
    with source_of(bucket) as source, pytest.raises(ConfigError) as refused:
        check_same(source, replace(POSITION, **began), [TARGET])
    assert sentence in str(refused.value)


def test_a_bucket_that_has_grown_is_named(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(5)
    bucket.write(10, partition=1)
    with source_of(bucket) as source:
        check_stops(source, POSITION)
    assert (
        "the run friday ends at offset 20 of orders-0, as when it began: the source now ends at offset 25; 1 more"
        in (caplog.text)
    )
