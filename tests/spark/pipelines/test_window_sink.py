"""The driver's part of a batch, and of a run that ends by itself. Tasks run in this process, without Spark."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.simulated_time import SimulatedClock
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.spark.window_sinks import Driven, HereSession
from tests.support.stores.doubles import FaultyStore, Operation
from tests.support.waiting import wait_until
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    FencedError,
    InvalidValueError,
    ResourceNotFoundError,
    StoreUnavailableError,
)
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.run.finalizing import Finished
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.planner import Planner, WindowTask
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.run.window_writing import ReadUpTo, Written
from tieredstore.process.deadline import Deadline
from tieredstore.process.stopping import is_without_work
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.spark import start_pipelines
from tieredstore.spark.pipelines.window_tasks import OpenPipeline

ALL = {(TOPIC, 0): list(range(20)), (TOPIC, 1): list(range(20))}
GROUP = "a query's"


@pytest.fixture
def kept(kept: Kept) -> Kept:
    kept.write(20)
    return kept


def test_records_are_written_once_and_none_after_a_stop(kept: Kept) -> None:
    with closing(Driven(kept, secor__max__file__size__bytes="500")) as driven:
        for _ in range(2):
            driven.write()
        assert driven.session.jobs == 1
        assert kept.offsets() == ALL
        kept.write(5)
        assert driven.sink.stop(Deadline.after(60))
        driven.write()
        assert kept.offsets() == ALL
        driven.sink.write_remaining(GROUP, Deadline.after(60))
        driven.sink.mark_published()
        driven.sink.mark_published()
    kinds = [entry.kind for entry in commit_log_of(load_pipeline(kept.file()), kept.store).entries()]
    assert kinds == ["begin", "batch", "batch", "published"]
    assert kept.offsets() == {(TOPIC, 0): list(range(25)), (TOPIC, 1): list(range(25))}


def test_too_many_bad_messages_end_it_and_nothing_of_the_batch_appears(kept: Kept) -> None:
    with closing(Driven(kept, secor__message__parser__class="json", secor__consumer__max_bad_messages="3")) as driven:
        with pytest.raises(InvalidValueError, match="40 messages of a batch are bad") as refused:
            driven.write()
        assert driven.sink.failure is refused.value
    assert listed(kept.store, ROOT) == []
    assert not list(kept.store.abandoned_writes(ROOT))


def test_what_a_task_cannot_do_ends_it_and_the_others_leave_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Driven(kept)) as driven:
        write = OpenPipeline.write

        def full(pipeline: OpenPipeline, task: WindowTask, reached: ReadUpTo) -> Written:
            if task.window.partition == 1:
                raise InvalidValueError("nobody knows")
            return write(pipeline, task, reached)

        monkeypatch.setattr(OpenPipeline, "write", full)
        with pytest.raises(InvalidValueError):
            driven.write()
    assert listed(kept.store, ROOT) == []
    assert not list(kept.store.abandoned_writes(ROOT))


@pytest.mark.parametrize("once", [False, True])
def test_what_lies_before_a_loss_or_damage_is_written_and_the_error_ends_it(kept: Kept, once: bool) -> None:
    """One partition has lost its second segment. The third segment of the other partition is damaged."""
    kept.write(20)
    kept.write(20)
    pipeline = load_pipeline(kept.file())
    with closing(Driven(kept, once=once)) as driven:
        kept.bucket.delete(kept.segments[2])
        identity = str(kept.segments[5].remote_log_segment_id.id)
        (log,) = kept.folder.rglob(f"*{identity}.log")
        log.write_bytes(log.read_bytes()[:-5] + b"other")
        with pytest.raises((DataLossError, CorruptDataError)) as told:
            driven.write()
        assert driven.sink.failure is told.value
        written = kept.offsets()
        assert written[TOPIC, 0] == list(range(20))
        assert written[TOPIC, 1][:40] == list(range(40))
        assert len(written[TOPIC, 1]) < 60
        assert not list(kept.store.abandoned_writes(ROOT))
        assert list(verify_output(pipeline, kept.store)) == []
    with closing(Driven(kept)) as driven, pytest.raises((DataLossError, CorruptDataError)):
        driven.write()
    assert kept.offsets() == written


def test_a_driver_that_is_there_by_now_ends_it(kept: Kept) -> None:
    with closing(Driven(kept)) as first, closing(Driven(kept)) as second:
        with pytest.raises(FencedError):
            first.write()
        second.write()
        # Even a driver without a batch notices that another driver has taken over.
        with closing(Driven(kept)), pytest.raises(FencedError):
            second.sink.mark_published()
    assert kept.offsets() == ALL
    assert not list(kept.store.abandoned_writes(ROOT))


def test_a_driver_that_comes_later_ends_one_that_has_nothing_to_write(kept: Kept) -> None:
    clock = SimulatedClock()
    with closing(Driven(kept, None, clock)) as first:
        first.write()
        first.sink.mark_published()
        with closing(Driven(kept)):
            # An idle driver checks only once a minute whether it is fenced, to save requests.
            first.write()
            clock.sleep(60)
            with pytest.raises(FencedError):
                first.write()
        assert isinstance(first.sink.failure, FencedError)


@pytest.mark.slow
def test_a_store_that_is_away_is_tried_again_by_the_next_batch(kept: Kept) -> None:
    once = OnceEach(("list", "/commits/"), ("put", f"{1:020}.json"), ("publish", TOPIC))
    with closing(Driven(kept, store := FaultyStore(kept.store, once, moment="after"))) as driven:
        for is_away in (True, True, False):
            driven.write()
            assert (driven.sink.waits_for is not None) is is_away
        assert driven.session.jobs == 1
    assert [operation.name for operation in store.failed] == ["list", "put", "publish"]
    assert kept.offsets() == ALL


def test_a_stop_has_nothing_to_wait_for_until_output_and_source_have_answered_and_in_an_outage(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle: list[tuple[str, bool]] = []
    fails, is_paused = threading.Event(), threading.Event()

    def note(name: str) -> None:
        idle.append((name, is_without_work(threading.current_thread())))

    def failing(operation: Operation) -> bool:
        note(operation.name)
        if is_failing := operation.name == "publish" and not is_paused.is_set():
            fails.set()
        return is_failing

    snapshot = Planner.snapshot

    def planned(planner: Planner) -> LogSnapshot:
        note("source")
        return snapshot(planner)

    monkeypatch.setattr(Planner, "snapshot", planned)
    with closing(Driven(kept, FaultyStore(kept.store, failing), once=True)) as driven:
        begun = len(idle)
        assert [idle[0], idle[1]] == [("list", True), ("list", True)]
        assert [is_idle for name, is_idle in idle if name == "source"] == [True, False, False]
        assert {is_idle for name, is_idle in idle if name == "put"} == {False}
        written = len(idle)
        thread = threading.Thread(target=driven.write)
        thread.start()
        assert fails.wait(60)
        wait_until(lambda: is_without_work(thread), 60)
        is_paused.set()
        thread.join(60)
    assert is_paused.is_set()
    assert {is_idle for _, is_idle in idle[written:]} == {False}, "the thread had no work only in the pause"
    assert {"put", "publish"} <= {name for name, _ in idle[begun:]}


def test_what_is_away_while_nothing_is_written_is_told_until_it_is_back(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []
    store = FaultyStore(kept.store, lambda operation: "output" in broken and operation.name == "head")
    snapshot = Planner.snapshot

    def looked(planner: Planner) -> LogSnapshot:
        if "source" in broken:
            raise StoreUnavailableError("the source is away")
        return snapshot(planner)

    clock = SimulatedClock()
    with closing(Driven(kept, store, clock)) as driven:

        def look() -> str | None:
            clock.sleep(60)
            driven.write()
            return driven.sink.waits_for

        driven.write()
        monkeypatch.setattr(Planner, "snapshot", looked)
        assert look() is None
        assert driven.sink.counts.waiting_seconds == 0
        broken.append("source")
        assert look() == "the source is away"
        assert driven.sink.counts.waiting_seconds > 0
        broken[:] = ["output"]
        assert look() not in {None, "the source is away"}
        broken.clear()
        assert look() is None
        assert driven.sink.counts.waiting_seconds == 0
        assert driven.sink.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True])
def test_an_outage_ends_with_the_first_batch_and_not_with_the_backlog(kept: Kept, once: bool) -> None:
    kept.write(20)
    waits: list[str | None] = []
    first = OnceEach(("put", f"{1:020}.json"))

    def failing(operation: Operation) -> bool:
        if operation.name == "put" and any(f"{2:020}.json" in key for key in operation.keys):
            waits.append(sinking.sink.waits_for)
        return first(operation)

    store = FaultyStore(kept.store, failing)
    with closing(Driven(kept, store, once=once, max__file__records="1")) as sinking:
        sinking.write()
        if not once:
            assert sinking.sink.waits_for is not None
            sinking.write()
    assert waits == [None]
    assert kept.offsets() == {where: list(range(40)) for where in ALL}


def test_a_stop_in_an_outage_ends_a_run_without_another_attempt(kept: Kept) -> None:
    def failing(operation: Operation) -> bool:
        if is_failing := operation.name == "publish":
            driven.is_wanted = lambda: False
        return is_failing

    store = FaultyStore(kept.store, failing)
    with closing(Driven(kept, store, once=True)) as driven:
        driven.write()
    assert [operation.name for operation in store.failed] == ["publish"]


def test_a_store_that_is_away_for_too_long_ends_it(kept: Kept) -> None:
    is_away = threading.Event()
    store = FaultyStore(kept.store, lambda operation: operation.name == "put" and is_away.is_set())
    with closing(Driven(kept, store, outage_s=0)) as driven:
        is_away.set()
        with pytest.raises(StoreUnavailableError):
            driven.write()
        assert isinstance(driven.sink.failure, StoreUnavailableError)


def test_a_driver_that_looked_before_another_one_wrote_takes_no_written_offset_for_a_loss(kept: Kept) -> None:
    """With this maximum age, a listing of the bucket stays valid for 30 s."""
    pipeline = load_pipeline(kept.file(secor__max__file__age__seconds="3600"))
    with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
        runner.look()
        kept.write(5)
        with open_parts(pipeline) as others, Runner(pipeline, others) as other:
            list(other.run_once())
        assert {where: log.end for where, log in runner.begin().logs.items()} == dict.fromkeys(ALL, 25)
        runner.measure()
        assert runner.counts.lag_offsets == 0


@pytest.mark.parametrize(("asked", "calls"), [("true", 1), ("false", 0)])
def test_directories_are_finalized_now_and_then_if_the_settings_say_so(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, asked: str, calls: int
) -> None:
    finalized: list[Runner] = []

    def finalize(runner: Runner) -> list[Finished]:
        finalized.append(runner)
        return []

    monkeypatch.setattr(Runner, "finalize", finalize)
    clock = SimulatedClock()
    with closing(Driven(kept, None, clock, pipeline__finalize=asked)) as driven:
        driven.write()
        driven.sink.mark_published()
        assert len(finalized) == calls
        clock.sleep(60)
        driven.sink.mark_published()
        assert len(finalized) == 2 * calls


def test_pipelines_have_to_be_named() -> None:
    session: Any = HereSession()
    with pytest.raises(ConfigError, match=r"at least one .properties file"):
        start_pipelines(session)


def test_a_second_run_in_a_session_does_not_end_the_first(kept: Kept) -> None:
    """Spark refuses a second query of the same name, but only after the second run has taken over from the first."""
    running = SimpleNamespace(name="kept-1")
    session: Any = SimpleNamespace(
        streams=SimpleNamespace(active=[running]), sparkContext=SimpleNamespace(pythonExec=sys.executable)
    )
    with closing(Driven(kept)) as driven:
        with pytest.raises(ConfigError, match="already runs in this Spark session: stop its query kept-1 first"):
            start_pipelines(session, kept.file())
        driven.write()
    assert kept.offsets() == ALL


class OnceEach:
    """Condition that makes the first operation of each (name, part of a key) fail."""

    def __init__(self, *chosen: tuple[str, str]) -> None:
        self._left = list(chosen)

    def __call__(self, operation: Operation) -> bool:
        for one in self._left:
            if operation.name == one[0] and any(one[1] in key for key in operation.keys):
                self._left.remove(one)
                return True
        return False


def test_where_partitions_begin_comes_first_and_costs_no_task(kept: Kept) -> None:
    rule = {"kafka__new__consumer__auto__offset__reset": "latest", "secor__max__file__age__seconds": "0"}
    file = kept.file(**rule)
    with closing(Driven(kept, once=False, outage_s=60, tell=None, **rule)) as driven:
        driven.write()
        assert driven.session.jobs == 0
        assert kept.committed(file) == {(TOPIC, 0): 20, (TOPIC, 1): 20}
        kept.write(5)
        driven.write()
        assert driven.session.jobs == 1
    assert kept.offsets() == {(TOPIC, 0): list(range(20, 25)), (TOPIC, 1): list(range(20, 25))}


def test_at_its_start_it_tells_what_it_waits_for(kept: Kept) -> None:
    said: list[str] = []
    once = OnceEach(("list", "/commits/"))
    with closing(Driven(kept, FaultyStore(kept.store, once, moment="after"), tell=said.append)):
        output, failed, source, last = said
    assert output == f"starting: no answer yet from the output {kept.store.identity}"
    assert failed.startswith("waiting: ")
    assert source == f"starting: no answer yet from the bucket {kept.bucket.root.as_uri()}"
    assert last == "starting: publishing what an earlier run committed"


def test_a_topic_that_is_nowhere_is_a_warning_of_one_that_goes_on(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    names = {"kafka__new__consumer__topic__list": f"{TOPIC},ordrs"}
    with closing(Driven(kept, once=False, outage_s=60, tell=None, **names)) as driven:
        with pytest.raises(
            ResourceNotFoundError, match=f"there is no topic 'ordrs' in the bucket; did you mean '{TOPIC}'"
        ):
            driven.sink.check_topics(ends=True)
        assert not caplog.records
        driven.sink.check_topics(ends=False)
        (record,) = caplog.records
        assert record.getMessage().endswith("; the pipeline reads the existing topics and waits for the others")
        driven.write()
    assert kept.offsets() == ALL


def test_a_run_that_ends_is_not_started_for_a_topic_that_is_nowhere(kept: Kept, spark: SparkSession) -> None:
    file = kept.file(kafka__new__consumer__topic__list=f"{TOPIC},ordrs")
    with pytest.raises(ResourceNotFoundError, match="there is no topic 'ordrs'"):
        start_pipelines(spark, file, once=True)
    assert listed(kept.store, ROOT) == []


def nothing_is_left(kept: Kept) -> bool:
    return not list(kept.store.abandoned_writes(ROOT)) and not list(
        verify_output(load_pipeline(kept.file()), kept.store)
    )


def test_a_run_that_ends_writes_all_batches(kept: Kept) -> None:
    kept.write(20)
    with closing(Driven(kept, once=True, max__file__records="1", pipeline__finalize="true")) as driven:
        driven.write()
        assert driven.session.jobs == 2
    assert kept.offsets() == {where: list(range(40)) for where in ALL}
    assert nothing_is_left(kept)


@pytest.mark.parametrize("once", [False, True])
def test_a_query_that_is_stopped_between_two_jobs_begins_no_other_job(kept: Kept, once: bool) -> None:
    kept.write(20)
    with closing(Driven(kept, once=once, max__file__records="1")) as driven:
        driven.is_wanted = lambda: driven.session.jobs == 0
        driven.write()
        assert driven.session.jobs == 1
        assert driven.sink.failure is None
    assert nothing_is_left(kept)


def test_a_query_that_ends_by_itself_is_stopped_in_an_outage(kept: Kept) -> None:
    is_away = threading.Event()
    store = FaultyStore(kept.store, lambda operation: operation.name == "put" and is_away.is_set())
    with closing(Driven(kept, store, once=True, outage_s=3600)) as driven:
        is_away.set()
        driven.is_wanted = lambda: driven.sink.waits_for is None
        driven.write()
        assert driven.sink.failure is None
    assert listed(kept.store, ROOT) == []


def test_a_partition_that_cannot_be_planned_stops_no_other(kept: Kept) -> None:
    with closing(Driven(kept)):
        """Commit where the partitions begin."""
    kept.bucket.delete(kept.segments[0])
    kept.write(20, partitions=(0,))
    match = f"offsets 0 to 19 of {TOPIC}-0 are"
    with closing(Driven(kept, once=True)) as driven, pytest.raises(DataLossError, match=match):
        driven.write()
    assert kept.offsets() == {(TOPIC, 1): list(range(20))}


@pytest.mark.slow
def test_a_store_that_is_away_is_waited_for_by_a_run_that_ends(kept: Kept) -> None:
    once = OnceEach(("put", f"{1:020}.json"), ("publish", TOPIC))
    with closing(Driven(kept, store := FaultyStore(kept.store, once, moment="after"), once=True)) as driven:
        driven.write()
        assert driven.session.jobs == 1
    assert [operation.name for operation in store.failed] == ["put", "publish"]
    assert kept.offsets() == ALL


def test_remaining_records_that_take_too_long_are_left_to_the_next_run(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = threading.Event()
    deadline = Deadline(0.2, lambda: 1.0 if running.is_set() else 0.0)
    with closing(Driven(kept)) as driven:
        context = driven.session.sparkContext

        def until_cancelled() -> Any:
            running.set()
            assert context.cancelled.wait(60)
            raise RuntimeError("the job was cancelled")

        monkeypatch.setattr(driven.session, "collect", until_cancelled)
        assert driven.sink.stop(Deadline.after(60))
        driven.sink.write_remaining(GROUP, deadline)
        assert context.cancelled.is_set()
    assert kept.committed(kept.file()) == dict.fromkeys(ALL, 0)
