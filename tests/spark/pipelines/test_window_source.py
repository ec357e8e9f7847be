"""The stream of windows, driven as by Spark but without Spark: offsets that list windows, and tasks that write them."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.records.topic_buckets import SECOND_ID
from tests.support.spark.spark_pipelines import TOPIC, Kept
from tests.support.spark.spark_stream_topics import Clock
from tests.support.spark.window_sinks import Driven
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import ConfigError, DataLossError, NewerVersionError, StoreUnavailableError, TieredStoreError
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.planner import Planner, WindowTask
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.spark.pipelines.window_planning import Planning
from tieredstore.spark.pipelines.window_source import TASK, WindowReader
from tieredstore.spark.pipelines.window_tasks import REPORT, Job, RunSettings, error_named
from tieredstore.spark.source.workers import unpack

Offset = dict[str, Any]
LIMIT = ReadAllAvailable()


@pytest.fixture
def reader(kept: Kept) -> Iterator[WindowReader]:
    reader = WindowReader(str(kept.file(secor__max__file__age__seconds="15")), clock=Clock())
    yield reader
    reader.stop()


def begin(kept: Kept) -> None:
    """Write twenty records to each partition, and start a driver, which logs the partitions' first offsets."""
    kept.write(20)
    pipeline = load_pipeline(kept.file())
    with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
        runner.begin()


def run_pipeline(kept: Kept) -> None:
    pipeline = load_pipeline(kept.file())
    with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
        list(runner.run_once())


def test_where_partitions_begin_comes_before_anything_is_read(kept: Kept, reader: WindowReader) -> None:
    kept.write(20)
    start = reader.initialOffset()
    end = latest(reader, start)
    assert [window[2:5] for window in end["windows"]] == [[0, 0, 0], [1, 0, 0]]
    while (later := latest(reader, end)) == end:
        pass
    assert [window[2:5] for window in later["windows"]] == [[0, 0, 20], [1, 0, 20]]


def latest(reader: WindowReader, start: Offset) -> Offset:
    """Return the latest offset as Spark gets it, encoded and decoded as JSON."""
    end: Offset = json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), LIMIT)))
    return end


def tasks_between(reader: WindowReader, start: Offset, end: Offset) -> list[WindowTask]:
    """Return the results of the source's tasks. Each runs with a pickled copy of the reader."""
    copy: WindowReader = pickle.loads(pickle.dumps(reader))
    partitions = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    batches: list[Any] = [batch for partition in partitions for batch in copy.read(partition)]
    return [unpack(packed) for batch in batches for packed in batch.column(TASK).to_pylist()]


def reports_of(kept: Kept, tasks: list[WindowTask], *, run: str = "", **changes: str) -> list[Any]:
    file = kept.file(**changes)
    settings = RunSettings(str(file), fingerprint_of(load_pipeline(file).own), run)
    job = pickle.loads(pickle.dumps(Job(settings, tuple(tasks))))
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})
    batches: list[Any] = list(job.run([numbers]))
    return [unpack(report) for batch in batches for report in batch.column(REPORT).to_pylist()]


def test_offsets_are_windows_and_what_is_handed_out_counts_as_written(kept: Kept, reader: WindowReader) -> None:
    begin(kept)
    start = reader.initialOffset()
    assert latest(reader, start) == start, "they are young"
    end = start
    while end == start:
        end = latest(reader, start)
    assert [window[2:5] for window in end["windows"]] == [[0, 0, 20], [1, 0, 20]]
    tasks = tasks_between(reader, start, end)
    assert [(task.window.partition, task.window.start, task.window.stop) for task in tasks] == [(0, 0, 20), (1, 0, 20)]
    assert latest(reader, end) == end
    kept.write(5, partitions=(1,))
    later = end
    while later == end:
        later = latest(reader, end)
    assert [window[2:5] for window in later["windows"]] == [[1, 20, 25]]
    reports = reports_of(kept, tasks + tasks_between(reader, end, later))
    assert [window.records for window, _ in reports] == [20, 20, 5]


def test_a_batch_that_is_repeated_is_planned_anew_without_what_is_written(kept: Kept) -> None:
    kept.write(20)
    with closing_reader(kept) as reader:
        start = reader.initialOffset()
        end = latest(reader, start)
    with closing_reader(kept) as other:
        assert len(tasks_between(other, start, end)) == 2
    run_pipeline(kept)
    with closing_reader(kept) as other:
        assert tasks_between(other, start, end) == []
        later = {"version": 1, "windows": [["orders", end["windows"][0][1], 0, 30, 40]]}
        with pytest.raises(DataLossError, match="was the log or a part of it deleted"):
            other.partitions(end, later)
        with pytest.raises(NewerVersionError, match=r"checkpoint of a pipeline's stream of version 2.*upgrade"):
            other.partitions(end, {**later, "version": 2})
        # The stream continues from the commit log, whatever offset Spark passes.
        kept.write(10)
        assert [window[3:5] for window in latest(other, start)["windows"]] == [[20, 30], [20, 30]]


def test_a_batch_that_is_repeated_has_the_leader_epochs_it_was_planned_with(kept: Kept) -> None:
    begin(kept)
    with closing_reader(kept) as reader:
        start = reader.initialOffset()
        end = latest(reader, start)
    # Offsets from earlier versions lack the run's id, and those from still earlier ones the leader epochs.
    planless = {name: part for name, part in end.items() if name != "plan"}
    without = {**planless, "windows": [window[:5] for window in end["windows"]]}
    for offset, epoch in ((end, 0), (planless, 0), (without, -1)):
        with closing_reader(kept) as other:
            windows = [task.window for task in tasks_between(other, start, offset)]
            assert [(window.stop, window.leader_epoch) for window in windows] == [(20, epoch), (20, epoch)]
    run_pipeline(kept)
    with closing_reader(kept) as other:
        assert latest(other, planless) == planless
        kept.write(10)
    with closing_reader(kept) as other:
        assert tasks_between(other, start, planless) == []
        assert [window[3:5] for window in latest(other, planless)["windows"]] == [[20, 30], [20, 30]]


def test_the_same_windows_of_another_run_are_another_offset(kept: Kept) -> None:
    """If the output was deleted and the checkpoint was not, Spark must not take the new plan for a finished batch."""
    begin(kept)
    ends: list[Offset] = []
    for _ in range(2):
        with closing_reader(kept) as reader:
            ends.append(latest(reader, ends[0] if ends else reader.initialOffset()))
    assert ends[0]["windows"] == ends[1]["windows"]
    assert ends[0] != ends[1]


def test_how_much_windows_read_is_learnt_where_a_backlog_is_cut_by_it() -> None:
    clock, seen, reads = Clock(), list[Progress](), list[int]()
    where = "orders", 0

    class Cutting:
        """Planner that finds two new windows each time it looks."""

        def snapshot(self) -> None:
            """Do nothing."""

        def find_due(
            self, _: object, positions: dict[tuple[str, int], Progress], *, is_last: bool
        ) -> list[BatchWindow]:
            assert not is_last
            progress = positions.get(where, Progress("id", 0, -1, 0, 0))
            seen.append(progress)
            start = progress.next_offset
            return [
                BatchWindow(*where[:1], "id", 0, start, start + 5),
                BatchWindow(*where[:1], "id", 0, start + 5, start + 9),
            ]

        def tasks(self, _: object, windows: list[BatchWindow]) -> list[WindowTask]:
            return [WindowTask(window, ()) for window in windows]

    def read_log() -> dict[tuple[str, int], Progress]:
        reads.append(len(seen))
        return {} if not seen else {where: Progress("id", 9, -1, 1, 9, 900 * len(reads), 9)}

    planner: Any = Cutting()
    planning = Planning(planner, Outage(10, clock=clock), read_log, lambda: 5.0)
    at: Offset = {"version": 1, "windows": []}
    for _ in range(4):
        at = planning.next(at)
    assert [one.next_offset for one in seen] == [0, 9, 18, 27]
    assert [one.recent_bytes for one in seen] == [0, 1800, 1800, 1800]
    assert reads == [0, 1]


def closing_reader(kept: Kept) -> Any:
    """Return a reader that plans all records, whatever their age."""
    reader: Any = WindowReader(str(kept.file(secor__max__file__age__seconds="0")), clock=Clock())
    reader.close = reader.stop
    return closing(reader)


def test_a_bucket_that_is_away_is_no_error_until_it_is_for_too_long(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(kept)
    reader = WindowReader(str(kept.file(outage__seconds="100")), clock=Clock())
    start = reader.initialOffset()
    assert latest(reader, start) == start

    def away(_: Planner) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(Planner, "snapshot", away)
    assert latest(reader, start) == start
    answers = iter(lambda: latest(reader, start), None)
    with pytest.raises(StoreUnavailableError):
        list(itertools.islice(answers, 20))
    reader.stop()


def test_a_process_that_worked_for_an_earlier_run_takes_the_stores_of_the_present_one(
    kept: Kept, tmp_path: Path
) -> None:
    """Spark's Python processes live longer than a query. Between two runs, the settings name another output."""
    begin(kept)
    (tmp_path / "other").mkdir()
    with closing_reader(kept) as reader:
        start = reader.initialOffset()
        tasks = tasks_between(reader, start, latest(reader, start))
        reports_of(kept, tasks, run="first")
        (first, _) = reports_of(kept, tasks, run="second", output__storage__root=str(tmp_path / "other"))
    (file,) = first[0].files
    FilesystemObjectStore(tmp_path / "other").publish(file.prepared)


def test_errors_of_ours_come_back_as_reports_and_others_are_sparks(kept: Kept) -> None:
    begin(kept)
    with closing_reader(kept) as reader:
        start = reader.initialOffset()
        (first, _) = tasks_between(reader, start, latest(reader, start))
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


def test_a_partition_that_is_gone_before_it_was_written_is_a_loss_at_the_start(kept: Kept) -> None:
    kept.write(20)
    with closing(Driven(kept)) as driven:
        driven.sink.check_topics(ends=False)
    shutil.rmtree(next(kept.bucket.root.glob("orders-*/1")))
    with closing(Driven(kept)) as driven, pytest.raises(DataLossError, match=f"{TOPIC}-1 is gone, and none of"):
        driven.sink.check_topics(ends=False)
