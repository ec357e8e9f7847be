"""The first batch of a run that ends, written while Spark starts: taken once, or gone without a trace."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from tests.support.fresh_python import run_fresh
from tests.support.pipelines.pipeline_runs import listed
from tests.support.records.topic_buckets import FIRST_ID
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.spark.window_sinks import Driven
from tieredstore.errors import DataLoss, StoreUnavailable
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.planner import Planner
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.spark.pipelines import window_sink, window_source
from tieredstore.spark.pipelines.window_planning import give_plan, whole_plan
from tieredstore.spark.pipelines.window_sink import AheadBatch
from tieredstore.spark.pipelines.window_source import FILE, PLAN, WindowReader, WindowSource
from tieredstore.spark.pipelines.window_tasks import WindowTask, unpack

GROUP = "a query's"

GIVEN_ALONE = """
import json, pickle, sys
from pathlib import Path

reader = pickle.loads(Path(sys.argv[1]).read_bytes())
reader.prepareForTriggerAvailableNow()
end = reader.latestOffset(reader.initialOffset(), None)
(part,) = reader.partitions(reader.initialOffset(), end)
(batch,) = reader.read(part)
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("tieredstore.")}
print(json.dumps([batch.num_rows, sorted(rooms)]))
"""
ALL = {(TOPIC, 0): list(range(20)), (TOPIC, 1): list(range(20))}


@pytest.fixture
def kept(kept: Kept) -> Kept:
    kept.write(20)
    return kept


@pytest.fixture
def driven(kept: Kept) -> Iterator[Driven]:
    with closing(Driven(kept)) as driven:
        yield driven


def planned(kept: Kept, **changes: str) -> tuple[WindowTask, ...] | None:
    pipeline = load_pipeline(kept.file(**changes))
    begun = {(TOPIC, partition): Progress(str(FIRST_ID), 0, -1, 0, 0) for partition in (0, 1)}
    with open_parts(pipeline) as parts:
        return whole_plan(pipeline, parts, commit_log_of(pipeline, kept.store).read().positions or begun)


def plan_of(kept: Kept) -> tuple[WindowTask, ...]:
    plan = planned(kept)
    assert plan
    return plan


def nothing_is_left(kept: Kept) -> bool:
    return not list(kept.store.abandoned_writes(ROOT))


def test_a_run_that_is_given_its_windows_looks_nothing_up(kept: Kept) -> None:
    plan = plan_of(kept)
    text = give_plan(plan).as_option()
    assert text is not None
    source: Any = WindowSource({FILE: "no such file", PLAN: text})
    reader: WindowReader = pickle.loads(pickle.dumps(source.streamReader(StructType([]))))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [window[2:5] for window in end["windows"]] == [[0, 0, 20], [1, 0, 20]]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    tasks: list[Any] = [unpack(task) for part in reader.partitions(start, end) for task in vars(part)["tasks"]]
    assert tuple(tasks) == plan
    nothing = WindowReader("no such file", give_plan(()))
    assert nothing.latestOffset(start, ReadAllAvailable()) == start


def test_a_process_that_is_given_its_windows_imports_nothing_of_pipelines(kept: Kept, tmp_path: Path) -> None:
    plan = plan_of(kept)
    option = give_plan(plan).as_option()
    assert option is not None
    source: Any = WindowSource({FILE: "no such file", PLAN: option})
    packed = tmp_path / "reader"
    packed.write_bytes(pickle.dumps(source.streamReader(StructType([]))))
    count, rooms = json.loads(run_fresh(GIVEN_ALONE, packed))
    assert count == len(plan)
    assert rooms == ["errors", "spark"]


def test_what_takes_more_than_a_batch_or_cannot_be_planned_is_left_to_spark(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write(20)
    assert planned(kept, max__file__records="1") is None
    plan = plan_of(kept)
    assert give_plan(plan).as_option() is not None
    monkeypatch.setattr(window_source, "_MOST_CHARACTERS", 100)
    assert give_plan(plan).as_option() is None

    def away(_: Planner) -> LogSnapshot:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(Planner, "snapshot", away)
    assert planned(kept) is None


def test_a_batch_written_ahead_is_committed_once_spark_asks_for_it(kept: Kept, driven: Driven) -> None:
    plan = plan_of(kept)
    driven.sink.write_ahead(plan, GROUP)
    driven.sink(driven.batch(plan), 0)
    assert driven.session.jobs == 1
    assert driven.session.sparkContext.groups == [GROUP]
    assert not driven.session.sparkContext.cancelled.is_set()
    assert kept.offsets() == ALL
    driven.sink.close()
    assert kept.offsets() == ALL
    assert nothing_is_left(kept)


def test_a_batch_that_nobody_asks_for_leaves_nothing(kept: Kept, driven: Driven) -> None:
    driven.sink.write_ahead(plan_of(kept), GROUP)
    driven.sink.close()
    driven.sink.close()
    assert listed(kept.store, ROOT) == []
    assert nothing_is_left(kept)


def test_one_that_is_closed_before_its_job_begins_writes_nothing(
    kept: Kept, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, closing = driven.session.sparkContext, threading.Event()
    begin = context.setJobGroup

    def begin_late(group: str, description: str, *, interruptOnCancel: bool) -> None:  # noqa: N803  Spark's name
        assert closing.wait(60)
        begin(group, description, interruptOnCancel=interruptOnCancel)

    monkeypatch.setattr(context, "setJobGroup", begin_late)

    def cancel(_: str) -> None:
        closing.set()

    monkeypatch.setattr(context, "cancelJobGroup", cancel)
    driven.sink.write_ahead(plan_of(kept), GROUP)
    driven.sink.close()
    assert context.groups == [GROUP]
    assert driven.session.jobs == 0
    assert nothing_is_left(kept)


def test_a_job_that_ends_after_it_was_given_up_leaves_nothing(
    kept: Kept, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_sink, "_CLOSING_S", 0.1)
    write, given_up = driven.jobs.write, threading.Event()
    writing = threading.Event()

    def late(tasks: Sequence[WindowTask]) -> Any:
        writing.set()
        assert given_up.wait(60)
        return write(tasks)

    session: Any = driven.session
    batch = AheadBatch(session, GROUP, plan_of(kept), late, kept.store)
    assert writing.wait(60)
    batch.close()
    given_up.set()
    for thread in threading.enumerate():
        if thread.name == "tieredstore-ahead":
            thread.join(60)
    assert driven.session.jobs == 1
    assert nothing_is_left(kept)


def test_another_batch_than_was_written_ahead_is_written_anew(kept: Kept, driven: Driven) -> None:
    driven.sink.write_ahead(plan_of(kept), GROUP)
    kept.write(5, partitions=(1,))
    driven.sink(driven.batch(), 0)
    assert driven.session.jobs == 2
    assert kept.offsets() == {**ALL, (TOPIC, 1): list(range(25))}
    assert nothing_is_left(kept)


def test_an_error_ahead_is_the_batchs(kept: Kept, driven: Driven) -> None:
    plan = plan_of(kept)
    kept.bucket.delete(kept.segments[1])
    driven.sink.write_ahead(plan, GROUP)
    with pytest.raises(DataLoss):
        driven.sink(driven.batch(plan), 0)
    # The other partition's records are there.
    assert kept.offsets() == {(TOPIC, 0): list(range(20))}
    assert nothing_is_left(kept)


def test_a_store_that_was_away_ahead_is_waited_for(kept: Kept, driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failures = driven.jobs.write, [StoreUnavailable("the store is away")]

    def written(tasks: Sequence[WindowTask]) -> Any:
        if failures:
            raise failures.pop()
        return write(tasks)

    monkeypatch.setattr(driven.jobs, "write", written)
    plan = plan_of(kept)
    driven.sink.write_ahead(plan, GROUP)
    driven.sink(driven.batch(plan), 0)
    assert not failures
    assert kept.offsets() == ALL


def test_marks_are_not_written_ahead(kept: Kept, driven: Driven) -> None:
    one, *_ = plan_of(kept)
    driven.sink.write_ahead((WindowTask(replace(one.window, stop=one.window.start), ()),), GROUP)
    assert driven.session.sparkContext.groups == []


def test_a_job_that_is_not_wanted_is_ended(kept: Kept, driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_sink, "_CLOSING_S", 60.0)
    context = driven.session.sparkContext

    def until_cancelled(_: Sequence[WindowTask]) -> Any:
        assert context.cancelled.wait(60)
        raise RuntimeError("the job was cancelled")

    session: Any = driven.session
    batch = AheadBatch(session, GROUP, plan_of(kept), until_cancelled, kept.store)
    while not context.groups:
        pass
    batch.close()
    assert context.cancelled.is_set()
