"""``frame`` under kill -9: each row is in the output once, and what the frame left out is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.pipelines import pipeline_frames
from tests.support.pipelines.pipeline_service import EXECUTORS, pipeline_service
from tests.support.spark.spark_pipelines import TOPIC, Kept
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output
from tieredstore.spark import start_pipelines

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1200)]

ENDED_S = 300
FRAMED = {"frame": f"{pipeline_frames.__name__}:troubled", "secor__max__file__size__bytes": "500"}


def check(kept: Kept, file: Path, records: int) -> None:
    """Of each partition the even offsets, once; the others among those that were left out."""
    assert kept.offsets() == {(TOPIC, partition): list(range(0, records, 2)) for partition in (0, 1)}
    windows = [window for entry in commit_log_of(load_pipeline(file), kept.store).entries() for window in entry.windows]
    assert len(windows) > 4
    assert all(window.records + window.filtered == window.stop - window.start for window in windows)
    assert list(verify_output(load_pipeline(file), kept.store)) == []


def test_a_batch_whose_worker_was_killed_is_repeated_by_the_next_query(
    spark: SparkSession, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark on one machine alone tries no task again."""
    kept.write(80)
    file, checkpoint = kept.file(**FRAMED), (kept.folder / "checkpoint").as_uri()
    monkeypatch.setenv(pipeline_frames.DEED, str(kept.folder / "worker"))
    (query,) = start_pipelines(spark, file, once=True, checkpoint=checkpoint)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(ENDED_S)
    assert kept.offsets() == {}
    (query,) = start_pipelines(spark, file, once=True, checkpoint=checkpoint)
    assert query.awaitTermination(ENDED_S)
    check(kept, file, 80)


@pytest.mark.parametrize("killed", ["worker", "executor"])
def test_a_task_whose_process_was_killed_is_done_again_elsewhere(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    kept.write(200)
    file = kept.file(**FRAMED)
    monkeypatch.setenv(pipeline_frames.DEED, str(kept.folder / killed))
    with pipeline_service(kept.folder, file, conf=EXECUTORS) as service:
        service.wait_until(lambda: sum(kept.committed(file).values()) == 400)
        kept.write(40)
        service.wait_until(lambda: sum(kept.committed(file).values()) == 480)
        service.stop()
    assert (kept.folder / killed).exists()
    check(kept, file, 240)
