"""Pipelines as streaming queries of a real Spark session: their output in listings, and how queries end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.service_process import within
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.waiting import wait_until
from tieredstore.errors import FencedError
from tieredstore.metrics import REGISTRY
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.process.deadline import Deadline
from tieredstore.spark import start_pipelines
from tieredstore.spark.pipelines.runs import PipelineRun, pipeline_service
from tieredstore.spark.pipelines.window_sink import WindowSink

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ENDED_S = 300


def wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    def is_so() -> bool:
        assert query.isActive, query.exception()
        return condition()

    wait_until(is_so)


def run_without_spark(file: Path) -> None:
    pipeline = load_pipeline(file)
    with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
        list(runner.run_once())


def test_a_backlog_is_written_by_many_tasks_into_the_files_of_a_run_without_spark(
    spark: SparkSession, kept: Kept
) -> None:
    kept.write(120)
    sizes = {"secor.max.file.size.bytes": "2000", "secor.offsets.per.partition": "50"}
    file = kept.file(**sizes)
    alone = kept.file("alone.properties", output__key__prefix="alone/", **sizes)
    queries = start_pipelines(spark, file, once=True)
    # The counter still exists, because queries are running.
    counted = REGISTRY.get_sample_value("tieredstore_pipeline_records_total", {"pipeline": "kept", "generation": "1"})
    assert counted is not None
    assert all(query.awaitTermination(ENDED_S) for query in queries)
    run_without_spark(alone)
    contents = {
        root: {key.removeprefix(root): kept.store.get(key) for key in listed(kept.store, root)}
        for root in (ROOT, "alone/")
    }
    assert contents[ROOT] == contents["alone/"]
    (batch,) = (entry for entry in commit_log_of(load_pipeline(file), kept.store).entries() if entry.kind == "batch")
    assert len(batch.windows) == 4
    # Spark's checkpoint is deleted with the query, so the next query continues from the commit log alone.
    kept.write(30)
    (query,) = start_pipelines(spark, file, once=True)
    assert query.awaitTermination(ENDED_S)
    assert kept.offsets() == {(TOPIC, 0): list(range(150)), (TOPIC, 1): list(range(150))}
    assert list(verify_output(load_pipeline(file), kept.store)) == []


def test_a_service_writes_by_age_finds_what_is_new_and_writes_the_rest_when_it_stops(
    spark: SparkSession, kept: Kept
) -> None:
    kept.write(10)
    run_without_spark(kept.file())
    kept.write(10)
    # The run continues after the offsets that the previous run wrote.
    changes = {"secor__max__file__age__seconds": "2", "secor__upload__on__shutdown": "true", "secor__generation": "2"}
    file = kept.file("next.properties", **changes)
    service = pipeline_service(spark, [file], drain_s=ENDED_S, take_over=1)

    def has_written(count: int) -> bool:
        assert service.failure is None
        return sum(kept.committed(file).values()) == count

    with within(service):
        wait_until(lambda: has_written(40))
        kept.write(10, partitions=(1, 2))
        kept.write(10, "payments", partitions=(0,))
        wait_until(lambda: has_written(70))
        kept.write(5)
    counts = {where: len(offsets) for where, offsets in kept.offsets().items()}
    assert counts == {(TOPIC, 0): 25, (TOPIC, 1): 35, (TOPIC, 2): 10, ("payments", 0): 10}
    entries = list(commit_log_of(load_pipeline(file), kept.store).entries())
    # The query writes records by their age, not each time it looks for new ones, so there are few batches. At its end,
    # it appends "published" to the commit log.
    assert sum(entry.kind == "batch" and bool(entry.files) for entry in entries) <= 5
    assert entries[0].kind == "take-over"
    assert entries[-1].kind == "published"


def test_a_batch_that_begins_while_the_pipeline_stops_is_written_at_its_end(
    spark: SparkSession, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write(10)
    file = kept.file(secor__upload__on__shutdown="true")
    run = PipelineRun(spark, file)
    stop = WindowSink.stop

    def stop_late(sink: WindowSink, deadline: Deadline) -> bool:
        has_ended = stop(sink, deadline)
        kept.write(10)
        return has_ended

    try:
        wait_for(lambda: sum(kept.committed(file).values()) == 20, run.query)
        monkeypatch.setattr(WindowSink, "stop", stop_late)
        run.drain(Deadline.after(ENDED_S))
    finally:
        run.close()
    assert sum(kept.committed(file).values()) == 40


@pytest.mark.soak
def test_another_driver_ends_the_query(spark: SparkSession, kept: Kept) -> None:
    file = kept.file()
    kept.write(20)
    run = PipelineRun(spark, file)
    wait_for(lambda: sum(kept.committed(file).values()) == 40, run.query)
    # At its next batch, the run notices that another process has taken over.
    run_without_spark(file)
    kept.write(5)
    with pytest.raises(StreamingQueryException, match="another process has written entry"):
        run.query.awaitTermination(ENDED_S)
    assert isinstance(run.failure(), FencedError)
    run.close()
    run_without_spark(file)
    assert kept.offsets() == {(TOPIC, 0): list(range(25)), (TOPIC, 1): list(range(25))}
    assert list(verify_output(load_pipeline(file), kept.store)) == []
