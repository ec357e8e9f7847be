"""Setting ``frame``: records pass through a user's function as Spark rows, and are still written exactly once."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.pipelines import pipeline_frames
from tests.support.pipelines.pipeline_runs import last_entry, listed, verify_output
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.spark.window_sinks import Driven
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, DataLossError, InvalidValueError, PreparedGoneError, TieredStoreError
from tieredstore.pipelines import Parts, Runner, load_pipeline
from tieredstore.pipelines.files.columns import frame_function
from tieredstore.pipelines.log.entries import BatchWindow, OutputFile
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.run.window_writing import mark_windows
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.spark import start_pipelines
from tieredstore.spark.pipelines.window_jobs import FrameJob, WindowJobs, join_results
from tieredstore.spark.pipelines.window_tasks import SCHEMA, Job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ENDED_S = 300


def named(function: Any) -> str:
    return f"{pipeline_frames.__name__}:{function.__name__}"


def table_of(kept: Kept, key: str) -> Any:
    return pq.read_table(io.BytesIO(kept.store.get(key)))


def test_rows_are_filed_by_windows_with_the_columns_that_the_function_gives(spark: SparkSession, kept: Kept) -> None:
    kept.write(60)
    file = kept.file(frame=named(pipeline_frames.evens), secor__max__file__size__bytes="2000")
    for count in (60, 75):
        (query,) = start_pipelines(spark, file, once=True)
        assert query.awaitTermination(ENDED_S)
        tables = [table_of(kept, key) for key in listed(kept.store)]
        for partition in (0, 1):
            offsets = [
                row["offset"] for table in tables for row in table.column("kafka").to_pylist()
                if row["partition"] == partition
            ]  # fmt: skip
            assert sorted(offsets) == list(range(0, count, 2))
        assert {tuple(table.column_names) for table in tables} == {("size", "kafka")}
        kept.write(15)
    pipeline = load_pipeline(file)
    assert list(verify_output(pipeline, kept.store)) == []
    windows = [window for entry in commit_log_of(pipeline, kept.store).entries() for window in entry.windows]
    assert all(window.records + window.filtered == window.stop - window.start for window in windows)


def run_on_spark(spark: SparkSession, kept: Kept, file: Path, store: ObjectStore | None = None) -> None:
    """Write all available records, with a real session and the test's store."""
    pipeline = load_pipeline(file)
    jobs = WindowJobs(spark, str(file), pipeline.own, store or kept.store)
    with (
        open_parts(pipeline) as parts,
        Runner(pipeline, Parts(store or kept.store, parts.source), on_spark=jobs.write) as runner,
    ):
        list(runner.write_available())


def test_a_window_of_which_nothing_stays_is_committed_and_what_the_store_dropped_is_written_again(
    spark: SparkSession, kept: Kept
) -> None:
    kept.write(20)
    file = kept.file(frame=named(pipeline_frames.in_capitals), secor__max__file__size__bytes="1000")
    broken = FaultyStore(kept.store, lambda operation: operation.name == "publish")
    with pytest.raises(TieredStoreError):
        run_on_spark(spark, kept, file, broken)
    for output in last_entry(load_pipeline(file), kept.store).files:
        kept.store.discard(output.prepared)
    assert listed(kept.store) == []
    run_on_spark(spark, kept, file)
    assert kept.offsets() == {(TOPIC, 0): list(range(20))}
    assert kept.committed(file) == {(TOPIC, 0): 20, (TOPIC, 1): 20}
    values = [value for key in listed(kept.store) for value in table_of(kept, key).column("value").to_pylist()]
    assert values
    assert all(value == value.upper() for value in values)
    assert "rewrite" in {one.kind for one in commit_log_of(load_pipeline(file), kept.store).entries()}
    assert list(verify_output(load_pipeline(file), kept.store)) == []


def test_a_function_that_drops_all_records_does_not_wait_for_their_number(spark: SparkSession, kept: Kept) -> None:
    kept.write(20)
    file = kept.file(frame=named(pipeline_frames.emptied))
    run_on_spark(spark, kept, file)
    assert listed(kept.store) == []
    assert kept.committed(file) == {(TOPIC, 0): 20, (TOPIC, 1): 20}


@pytest.mark.parametrize("function", [pipeline_frames.evens, pipeline_frames.emptied])
def test_an_error_of_the_source_is_known_even_if_the_function_drops_all_records(
    spark: SparkSession, kept: Kept, function: Any
) -> None:
    """The sink waits during an outage only if it knows the error."""
    kept.write(20)
    file = kept.file(frame=named(function))
    for segment in kept.bucket.root.rglob("*.log"):
        segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises(TieredStoreError):
        run_on_spark(spark, kept, file)
    assert kept.committed(file) == {(TOPIC, 0): 0, (TOPIC, 1): 0}


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (pipeline_frames.scattered, InvalidValueError, "in pieces or from several tasks|in the order of the input"),
        (pipeline_frames.doubled, InvalidValueError, "at most one row per record"),
        (pipeline_frames.without_offsets, InvalidValueError, "have no column offset"),
        (pipeline_frames.moved, InvalidValueError, "which is not in its input"),
        (pipeline_frames.counted, ConfigError, "the frame function returned int, not a DataFrame"),
    ],
)
def test_what_breaks_the_windows_is_told_before_anything_is_committed(
    spark: SparkSession, kept: Kept, function: Any, error: type[TieredStoreError], sentence: str
) -> None:
    kept.write(20)
    file = kept.file(frame=named(function))
    with pytest.raises(error, match=sentence):
        run_on_spark(spark, kept, file)
    assert listed(kept.store) == []
    assert set(kept.committed(file).values()) == {0}


def test_an_error_in_a_job_of_the_function_is_known(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code of a service depends on this error."""

    def fail(*_: object) -> None:
        raise PySparkException("Job aborted\ntieredstore.errors.DataLossError: offsets 3 to 4 are lost")

    monkeypatch.setattr(FrameJob, "rows", fail)
    kept.write(20)
    with (
        closing(Driven(kept, frame=named(pipeline_frames.evens))) as driven,
        pytest.raises(DataLossError, match="offsets 3 to 4"),
    ):
        driven.write()


def test_an_unreadable_record_stops_only_its_partition(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(job: FrameJob, numbers: Any, _: object) -> tuple[Any, Any]:
        if any((task.window.partition, task.window.start) == (0, 10) for task in job.tasks):
            raise PySparkException("Job aborted\ntieredstore.errors.CorruptDataError: offset 10 is damaged")
        return numbers.mapInArrow(Job(job.settings, job.tasks).run, SCHEMA), lambda _: [0] * len(job.tasks)

    monkeypatch.setattr(FrameJob, "rows", rows)
    kept.write(20)
    driven = Driven(kept, frame=named(pipeline_frames.evens), max__file__records="5")
    with closing(driven), pytest.raises(TieredStoreError, match="offset 10 is damaged"):
        driven.write()
    assert kept.offsets() == {(TOPIC, 0): list(range(10)), (TOPIC, 1): list(range(20))}
    assert not list(kept.store.abandoned_writes(ROOT))


def test_who_has_no_spark_refuses_it_by_name(kept: Kept) -> None:
    kept.write(5)
    file = kept.file(frame=named(pipeline_frames.evens))
    pipeline = load_pipeline(file)
    with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
        for work in (lambda: list(runner.run_once()), runner.step, lambda: list(runner.redrive())):
            with pytest.raises(ConfigError, match="frame needs Spark"):
                work()
        source: Any = None
        with pytest.raises(ConfigError, match="backfill, redrive and --take-over do not support"):
            Backfill(pipeline, parts.store, source)
    assert not list(kept.store.list(ROOT))
    for changes in ({"frame": "no-function"}, {"frame": "a:b", "columns": "json"}):
        with pytest.raises(ConfigError, match="frame"):
            load_pipeline(kept.file(**changes))
    with pytest.raises(ConfigError, match="cannot be imported as module:function"):
        frame_function(f"{pipeline_frames.__name__}:nothing")


def test_a_window_out_of_two_tasks_is_told_and_its_files_are_taken_back() -> None:
    store = MemoryObjectStore()
    window = BatchWindow(TOPIC, "id", 0, 0, 9)
    ((nothing, _),) = mark_windows([window])
    prepared = store.prepare("key", [b"data"], staging_prefix="staging/")
    output = OutputFile("data", "key", 4, "", 0, 8, 9, -1, -1, prepared)
    half = replace(nothing, records=4, files=(output,))
    with pytest.raises(InvalidValueError, match=r"offsets 0 to 8 of orders-0 in pieces or from several tasks"):
        join_results([window], [(half, {}), (nothing, {})], [9], store)
    with pytest.raises(PreparedGoneError):
        store.publish(prepared)
    ((whole, _),) = join_results([window], [(half, {})], [9], store)
    assert (whole.records, whole.filtered) == (4, 5)
