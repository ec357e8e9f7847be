"""Batches over logs that have lost records: they fail with a sentence that names the offsets, or warn and continue."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.segments import case_path
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tests.support.spark.spark_readings import all_of, json_of, places
from tests.support.spark.spark_tasks import (
    as_texts,
    error_of,
    golden_options,
    reader_of,
    rows_in,
    rows_of_task,
    tasks_of,
)
from tieredstore.errors import BatchCorruptError, ConfigError, DataLossError, SegmentCorruptError, UnknownKeyError
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.tasks import read_task


def options_of(bucket: Bucket, **more: Any) -> dict[str, Any]:
    return {**bucket.options, "subscribe": "orders", **more}


def check_loss(options: dict[str, Any], lost: str, caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int]]:
    """Assert that a strict query fails, and that a lenient one warns; return the lenient query's rows."""
    error = error_of(options)
    assert isinstance(error, DataLossError)
    assert lost in str(error)
    assert "failOnDataLoss" in str(error)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        rows = rows_in({**options, "failOnDataLoss": "false"})
    assert caplog.records
    return places(rows)


def files_of(bucket: Bucket, segment: RemoteLogSegmentMetadata, suffix: str) -> Path:
    """Return the file that holds the segment's object with this suffix."""
    name = f"{segment.start_offset:020d}-{segment.remote_log_segment_id.id}.{suffix}"
    (path,) = Path(bucket.options["storage.root"]).rglob(name)
    return path


def test_a_missing_segment(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(100)
    bucket.delete(bucket.write(50))
    bucket.write(100)
    for cut in ({}, {"maxSplitBytes": 500}, {"maxRecordsPerPartition": 30}):
        read = check_loss(options_of(bucket, **cut), "offsets 100 to 149 of orders-0 are not available", caplog)
        assert read == all_of("orders", 0, 100) + all_of("orders", 0, 150, 250)
    within = options_of(bucket, startingOffsets=json_of(orders={0: 120}), endingOffsets=json_of(orders={0: 130}))
    assert check_loss(within, "offsets 120 to 129 of orders-0", caplog) == []
    around = options_of(bucket, startingOffsets=json_of(orders={0: 150}))
    assert places(rows_in(around)) == all_of("orders", 0, 150, 250)


def test_several_gaps_are_named_and_the_rest_is_counted(bucket: Bucket) -> None:
    for _ in range(9):
        bucket.write(10)
        bucket.delete(bucket.write(10))
    bucket.write(1)
    error = error_of(options_of(bucket))
    assert "offsets 10 to 19 of orders-0, 30 to 39 of orders-0" in str(error)
    assert "and 4 more ranges are not available" in str(error)


def test_a_start_before_the_earliest_offset(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.delete(bucket.write(10))
    bucket.write(20)
    options = options_of(bucket, startingOffsets=json_of(orders={0: 3}))
    assert check_loss(options, "offsets 3 to 9 of orders-0 are not available", caplog) == all_of("orders", 0, 10, 30)
    before = options_of(bucket, startingOffsets=json_of(orders={0: 3}), endingOffsets=json_of(orders={0: 8}))
    assert check_loss(before, "offsets 3 to 7 of orders-0 are not available", caplog) == []
    assert places(rows_in(options_of(bucket))) == all_of("orders", 0, 10, 30)


def test_starts_and_ends_beyond_the_log(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20)
    beyond = options_of(bucket, endingOffsets=json_of(orders={0: 25}))
    assert check_loss(beyond, "offsets 20 to 24 of orders-0 are not available", caplog) == all_of("orders", 0, 20)
    start = options_of(bucket, startingOffsets=json_of(orders={0: 21}))
    assert check_loss(start, "start orders-0 at offset 21, but its log ends before offset 20", caplog) == []


def test_a_topic_that_was_created_again(bucket: Bucket) -> None:
    bucket.write(10)
    bucket.write(20, topic_id=SECOND_ID)
    assert places(rows_in(options_of(bucket))) == all_of("orders", 0, 20)
    bucket.write(5)  # now copies of the two topics are interleaved
    error = error_of(options_of(bucket))
    assert isinstance(error, ConfigError)
    assert str(FIRST_ID) in str(error)
    assert str(SECOND_ID) in str(error)
    assert "topicIds" in str(error)
    for topic_id, count in ((FIRST_ID, 15), (SECOND_ID, 20)):
        options = options_of(bucket, topicIds=json.dumps({"orders": str(topic_id)}))
        assert places(rows_in(options)) == all_of("orders", 0, count)


@pytest.mark.parametrize("cut", [{}, {"maxRecordsPerPartition": 40}])
def test_a_segment_that_goes_between_planning_and_reading(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, cut: dict[str, int]
) -> None:
    bucket.write(100)
    gone = bucket.write(100)
    bucket.write(100)
    strict, lenient = (reader_of(options_of(bucket, failOnDataLoss=fail, **cut)) for fail in (True, False))
    tasks = tasks_of(strict)
    bucket.delete(gone)
    with pytest.raises(DataLossError, match=r"offsets \d+ to \d+ of .* were deleted while they were read"):
        _ = [rows_of_task(strict, task) for task in tasks]
    with caplog.at_level(logging.WARNING):
        read = [place for task in tasks for place in places(rows_of_task(lenient, task))]
    assert read == all_of("orders", 0, 100) + all_of("orders", 0, 200, 300)
    assert any("were deleted while they were read" in record.getMessage() for record in caplog.records)


def test_a_segment_that_goes_while_it_is_read(bucket: Bucket) -> None:
    gone = bucket.write(3000)
    options = options_of(bucket)
    (task,) = tasks_of(reader_of(options))
    rows = read_task(task, parse_options(as_texts(options), streaming=False))
    files_of(bucket, gone, "log").unlink()
    with pytest.raises(SegmentCorruptError):
        list(rows)


@pytest.mark.parametrize("lenient", [True, False])
def test_damage_is_no_loss_and_never_passed_over(bucket: Bucket, lenient: bool) -> None:
    bucket.write(100)
    damaged = bucket.write(100)
    path = files_of(bucket, damaged, "log")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    error = error_of(options_of(bucket, failOnDataLoss=not lenient))
    assert isinstance(error, BatchCorruptError)
    assert str(damaged) in str(error)


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_a_segment_without_all_of_its_objects_is_a_missing_one(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    bucket.write(100)
    files_of(bucket, bucket.write(50), suffix).unlink()
    bucket.write(100)
    read = check_loss(options_of(bucket), "offsets 100 to 149 of orders-0 are not available", caplog)
    assert read == all_of("orders", 0, 100) + all_of("orders", 0, 150, 250)
    assert f"it has no .{suffix}" in caplog.text


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_segment_with_a_damaged_manifest(bucket: Bucket, caplog: pytest.LogCaptureFixture, damaged: int) -> None:
    segments = [bucket.write(100) for _ in range(3)]
    files_of(bucket, segments[damaged], "rsm-manifest").write_bytes(b"{}")
    first, stop = damaged * 100, damaged * 100 + 100
    read = check_loss(options_of(bucket), f"at offset {first} is ignored", caplog)
    assert read == all_of("orders", 0, first) + all_of("orders", 0, stop, 300)
    for start, end in ((0, first), (stop, 300)):
        window = {"startingOffsets": json_of(orders={0: start}), "endingOffsets": json_of(orders={0: end})}
        if start < end:
            assert places(rows_in(options_of(bucket, **window))) == all_of("orders", 0, start, end)


def test_a_damaged_copy_of_offsets_that_another_segment_has_is_no_loss(bucket: Bucket) -> None:
    segment = bucket.write(10)
    files_of(bucket, segment, "rsm-manifest").write_bytes(b"{}")
    bucket.ends.clear()
    bucket.write(10)
    assert places(rows_in(options_of(bucket))) == all_of("orders", 0, 10)


def test_a_damaged_segment_of_what_is_not_selected_is_no_loss(bucket: Bucket) -> None:
    bucket.write(10)
    for segment in (
        bucket.write(10, partition=1), bucket.write(10, topic="orders-of-others"), bucket.write(10, topic_id=SECOND_ID),
    ):  # fmt: skip
        files_of(bucket, segment, "rsm-manifest").write_bytes(b"{}")
    assigned = options_of(bucket, assign='{"orders":[0]}', topicIds=json.dumps({"orders": str(FIRST_ID)}))
    del assigned["subscribe"]
    assert places(rows_in(assigned)) == all_of("orders", 0, 10)
    pattern = bucket.options | {"subscribePattern": "order."}
    assert isinstance(error_of(pattern), DataLossError)


def test_a_key_that_is_missing_is_told() -> None:
    options = golden_options("04-zstd-enc")
    store = case_path("04-zstd-enc") / "store"
    error = error_of(
        {"subscribe": options["subscribe"], "storage.backend.class": "filesystem", "storage.root": str(store)}
    )
    assert isinstance(error, UnknownKeyError)
    assert "encryption.key.pairs" in str(error)


def test_settings_that_lead_nowhere_or_to_another_bucket(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(10)
    missing = error_of(options_of(bucket, **{"storage.root": str(tmp_path / "elsewhere")}))
    assert str(tmp_path / "elsewhere") in str(missing)
    (tmp_path / "empty").mkdir()
    empty = error_of(options_of(bucket, **{"storage.root": str(tmp_path / "empty")}))
    assert "there is no topic 'orders' in the bucket; check the name and key.prefix" in str(empty)
    prefixed = error_of(options_of(bucket, **{"key.prefix": "other/"}))
    assert "check the name and key.prefix" in str(prefixed)
