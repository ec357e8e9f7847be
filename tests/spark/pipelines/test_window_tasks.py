"""The tasks that write windows, without Spark."""

from __future__ import annotations

import pickle
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.records.topic_buckets import SECOND_ID
from tests.support.spark.spark_pipelines import TOPIC, Kept
from tests.support.spark.window_sinks import Driven
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import ConfigError, DataLossError, TieredStoreError
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.run.planner import Planner, WindowTask
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.spark.pipelines.window_tasks import REPORT, Job, RunSettings, error_named
from tieredstore.spark.source.workers import unpack


def tasks_of(kept: Kept) -> list[WindowTask]:
    """Write twenty records to each partition, and return the tasks that write them to files."""
    kept.write(20)
    pipeline = load_pipeline(kept.file())
    with open_parts(pipeline) as parts:
        with Runner(pipeline, parts) as runner:
            runner.begin()
            positions = runner.driver.log.state.positions
        with closing(Planner(pipeline, parts.source)) as planner:
            snapshot = planner.snapshot()
            tasks = planner.tasks(snapshot, planner.find_due(snapshot, positions, is_last=True))
    copies: list[WindowTask] = pickle.loads(pickle.dumps(tasks))
    return copies


def reports_of(kept: Kept, tasks: list[WindowTask], *, run: str = "", **changes: str) -> list[Any]:
    file = kept.file(**changes)
    settings = RunSettings(str(file), fingerprint_of(load_pipeline(file).own), run)
    job = pickle.loads(pickle.dumps(Job(settings, tuple(tasks))))
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})
    batches: list[Any] = list(job.run([numbers]))
    return [unpack(report) for batch in batches for report in batch.column(REPORT).to_pylist()]


def test_a_process_that_worked_for_an_earlier_run_takes_the_stores_of_the_present_one(
    kept: Kept, tmp_path: Path
) -> None:
    """Spark's Python processes live longer than a query. Between two runs, the settings name another output."""
    (tmp_path / "other").mkdir()
    tasks = tasks_of(kept)
    reports_of(kept, tasks, run="first")
    (first, _) = reports_of(kept, tasks, run="second", output__storage__root=str(tmp_path / "other"))
    (file,) = first[0].files
    FilesystemObjectStore(tmp_path / "other").publish(file.prepared)


def test_errors_of_ours_come_back_as_reports_and_others_are_sparks(kept: Kept) -> None:
    (first, _) = tasks_of(kept)
    # These tasks write the rest of a window, as in a batch that was partly written.
    (written, _), (inner, _) = reports_of(kept, [first.between(7, 20), first.between(3, 5)])
    assert [written.files[0].first_offset, written.records] == [7, 13]
    assert [inner.files[0].first_offset, inner.records] == [3, 2]
    changed = Job(RunSettings(str(kept.file()), "of other settings", ""), (first,))
    (batch,) = changed.run([pa.RecordBatch.from_pydict({"id": [0]})])
    with pytest.raises(ConfigError, match="has changed since the pipeline was started"):
        raise unpack(batch.column(0)[0].as_py())
    unknown = error_named("Exception", "of a later version")
    assert type(unknown) is TieredStoreError
    kept.bucket.write(5, TOPIC, 0, topic_id=SECOND_ID)
    with pytest.raises(TypeError):
        list(replace(changed, tasks=(None,)).run([pa.RecordBatch.from_pydict({"id": ["x"]})]))  # type: ignore[arg-type]


@pytest.mark.parametrize("once", [False, True])
def test_a_partition_that_is_gone_before_it_was_written_ends_a_run_that_has_written_the_rest(
    kept: Kept, once: bool
) -> None:
    kept.write(20)
    Driven(kept).close()
    shutil.rmtree(next(kept.bucket.root.glob("orders-*/1")))
    with closing(Driven(kept, once=once, secor__max__file__age__seconds="3600")) as driven:
        driven.sink.check_topics(ends=once)
        with pytest.raises(DataLossError, match=f"{TOPIC}-1 is gone, and none of"):
            driven.write()
    assert kept.offsets() == {(TOPIC, 0): list(range(20))}
