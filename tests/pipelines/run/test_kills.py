"""Killed, suspended and concurrent writers: a listing of the output shows each record once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.upkeep.test_backfill import backfill
from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    content_of,
    listed,
    listed_offsets,
    pipeline_of,
    redrive,
    run_once,
    verify_output,
)
from tests.support.pipelines.seen_output import SeenOutput
from tests.support.records.hourly_topics import BY_HOUR, hourly_topic
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore, Prepared, find_abandoned_writes
from tieredstore.backends.contract import staging
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import FencedError, StoreUnavailableError
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.driver import Driver
from tieredstore.pipelines.run.generation import Generation, commit_log_of
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.source import COLUMNS, query_of
from tieredstore.pipelines.run.window_writing import Written, write_window
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.survey import survey_logs
from tieredstore.records.settings import ReadSettings


def check_seen(store: ObjectStore) -> None:
    """Assert that a listing has all published offsets, each once, and no uncommitted one."""
    published = published_end(store)
    seen = listed_offsets(store)
    assert len(seen) == len(set(seen))
    assert set(range(published)) <= set(seen)
    positions = commit_log_of(pipeline_of(), store).read().positions
    assert not seen or seen[-1] < positions[TOPIC, NUMBER].next_offset


def published_end(store: ObjectStore) -> int:
    """Return the offset up to which batches are published; the last one counts only if a "published" entry follows."""
    entries = list(commit_log_of(pipeline_of(), store).entries())
    batches = [entry for entry in entries if entry.kind == "batch"]
    is_last_done = bool(entries) and entries[-1].kind == "published"
    done = batches if is_last_done else batches[:-1]
    return done[-1].windows[-1].stop if done else 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_drivers_that_are_killed_leave_no_record_twice_and_none_out(
    topic: StoredTopic, tmp_path: Path, kills: int
) -> None:
    (tmp_path / "output").mkdir()
    store = FilesystemObjectStore(tmp_path / "output")
    dice = random.Random(18)
    offsets, sizes = 300, ("3000", "9000", "20000")
    for _ in range(kills):
        pipeline = pipeline_of(secor__max__file__size__bytes=dice.choice(sizes))
        child = os.fork()
        if child == 0:
            try:
                run_once(topic, store, pipeline)
            finally:
                os._exit(0)
        by = time.monotonic() + dice.uniform(0.0, 0.3)
        while time.monotonic() < by:
            check_seen(store)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check_seen(store)
        topic.copy_plain(offsets, 50, size=100)
        offsets += 50
    # If the store had lost files of the last commit, only a run with that commit's settings could rewrite them. This
    # run may have other settings, and succeeds because nothing is lost.
    run_once(topic, store, pipeline_of())
    assert listed_offsets(store) == list(range(offsets))
    assert list(verify_output(pipeline_of(), store)) == []


STRICT = pipeline_of(**{**BY_HOUR, "secor__message__parser__class": "tests.pipelines.filing.test_naming:Choosy"})
FIRST = pipeline_of(**BY_HOUR)
SECOND = pipeline_of(**BY_HOUR, secor__generation="2")


@pytest.fixture
def hourly(tmp_path: Path) -> Iterator[StoredTopic]:
    with hourly_topic(tmp_path, [0, 0, 1, 2, 9]) as topic:
        yield topic


def finalize(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(FIRST, Parts(store, topic.manager), threads=1) as runner:
        runner.finalize()
        runner.driver.mark_published()


def drop(_: StoredTopic, store: ObjectStore) -> None:
    list(drop_generation(FIRST, store, dry_run=False))


Work = Callable[[StoredTopic, ObjectStore], object]
WORKS: dict[str, tuple[Pipeline, Work, Pipeline]] = {
    "redrive": (STRICT, partial(redrive, pipeline=FIRST), FIRST),
    "take over": (FIRST, partial(run_once, pipeline=SECOND, take_over=1), SECOND),
    "finalize": (pipeline_of(**{**BY_HOUR, "pipeline__finalize": "false"}), finalize, FIRST),
    "drop": (FIRST, drop, FIRST),
}


@pytest.mark.parametrize("name", WORKS)
def test_who_sleeps_while_another_does_the_same_changes_nothing_that_is_seen(hourly: StoredTopic, name: str) -> None:
    before, work, after = WORKS[name]
    first = MemoryObjectStore()
    run_once(hourly, first, before)
    expected: list[dict[str, bytes]] = []

    def another(inner: ObjectStore) -> None:
        work(hourly, inner)
        expected.append(content_of(inner))

    sweep = OperationSweep(copies_of(first), partial(work, hourly))
    for sleeps, (at, inner, store) in enumerate(sweep.sleep(another), 1):
        with suppress(FencedError):
            work(hourly, store)
        assert (len(expected), content_of(inner)) == (sleeps, expected[-1])
        assert list(verify_output(after, inner)) == [], at
        assert listed_offsets(inner) == ([] if name == "drop" else list(range(5))), at
    assert len(expected) == len(sweep.numbers)
    assert len(sweep.operations) >= 10


class CopyingStore(ScriptedStore):
    """Store that publishes by a copy whose bytes pass through the process, like a user's own store."""

    def publish(self, prepared: Prepared) -> None:
        staging.publish(self, prepared)


@pytest.mark.parametrize("end", ["drop", "replace"])
def test_a_copy_that_lands_after_its_file_was_deleted_is_deleted_too(hourly: StoredTopic, end: str) -> None:
    store = MemoryObjectStore()

    def delete_files(_: Operation) -> None:
        if end == "drop":
            drop(hourly, store)
        else:
            backfill(hourly, store, pipeline=FIRST, replaces=1)

    slow = CopyingStore(store).on("put", f"out/{TOPIC}/*", delete_files, moment="during", skip=1, times=1)
    with pytest.raises(FencedError):
        run_once(hourly, slow, FIRST)
    assert listed_offsets(store) == ([] if end == "drop" else list(range(5)))
    assert list(verify_output(FIRST, store)) == []


PIPELINE = pipeline_of(max__file__records="100")
"""A window of 300 records gives three files."""
WAIT_S = 60


def attempts_of(topic: StoredTopic, store: ObjectStore) -> list[Written]:
    """Write one window with all records twice, at the same time; return both attempts."""
    query = query_of(PIPELINE)
    log = survey_logs(topic.manager, query).logs[TOPIC, NUMBER]
    window = BatchWindow(TOPIC, str(log.topic_id), NUMBER, log.earliest, log.end)

    def attempt(to: ObjectStore) -> Written:
        with TopicReader(lambda: topic.manager, query, ReadSettings(columns=COLUMNS)) as reader:
            return write_window(window, reader.read(log, window.start, window.stop), recipe_of(PIPELINE), to)

    # After preparing a file, each attempt waits until the other attempt has prepared its own.
    both = threading.Barrier(2, timeout=WAIT_S)
    meeting = ScriptedStore(store).on("prepare", do=lambda _: both.wait(), moment="after")
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(attempt, [meeting] * 2))


@pytest.mark.parametrize("chosen", [0, 1])
def test_one_is_committed_and_nothing_of_the_other_is_seen(
    topic: StoredTopic, any_store: ObjectStore, chosen: int
) -> None:
    attempts = attempts_of(topic, any_store)
    keys = [file.key for file in attempts[0][0].files]
    assert [file.key for file in attempts[1][0].files] == keys
    assert len(keys) == 3
    assert listed(any_store) == []
    nothing_again: Any = None
    driver = Driver(Generation(PIPELINE, any_store), nothing_again)
    driver.begin([TOPIC])
    driver.commit([attempts[chosen]])
    assert listed(any_store) == keys
    assert listed_offsets(any_store) == list(range(300))
    # Discard the other attempt's uploads, as a cleaner or a life-cycle rule does: no visible file disappears.
    assert [any_store.discard(file.prepared) for file in attempts[1 - chosen][0].files] == [True] * 3
    assert list(find_abandoned_writes(any_store)) == []
    assert listed_offsets(any_store) == list(range(300))
    assert list(verify_output(PIPELINE, any_store)) == []


SMALL = pipeline_of(secor__max__file__size__bytes="9000")


def test_written_records_appear_once_at_every_look(topic: StoredTopic, store: ObjectStore) -> None:
    seen = SeenOutput(SMALL, store, "out/")
    seen.look()
    for stop in (300, 350):
        run_once(topic, store, SMALL)
        seen.look()
        assert sorted(seen.records[NUMBER]) == list(range(stop))
        topic.copy_plain(stop, 50, size=100)


def test_a_published_file_that_is_gone_is_noticed_even_by_who_saw_it_before(
    topic: StoredTopic, store: ObjectStore
) -> None:
    run_once(topic, store, SMALL)
    before, new = SeenOutput(SMALL, store, "out/"), SeenOutput(SMALL, store, "out/")
    before.look()
    key = listed(store)[1]
    store.delete([key])
    for seen in (before, new):
        with pytest.raises(AssertionError, match=f"{key} is not there"):
            seen.look()


def test_a_file_that_was_seen_before_its_batch_counts_as_published_may_not_go_either(topic: StoredTopic) -> None:
    store = FaultyStore(MemoryObjectStore(), lambda operation: operation.name == "publish", moment="after")
    with pytest.raises(StoreUnavailableError):
        run_once(topic, store, SMALL)
    inner = store.inner
    seen = SeenOutput(SMALL, inner, "out/")
    seen.look()
    (key,) = listed(inner)
    inner.delete([key])
    with pytest.raises(AssertionError, match="is not there"):
        seen.look()
    SeenOutput(SMALL, inner, "out/").look()


def test_an_offset_that_is_there_twice_or_is_not_committed_is_noticed(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    keys = listed(store)
    copy = f"{keys[0].rpartition('/')[0]}/1_{NUMBER}_{7:020}.parquet"
    store.put(copy, store.get(keys[0]))
    with pytest.raises(AssertionError, match="offset 0 once more"):
        SeenOutput(SMALL, store, "out/").look()
    store.delete([copy])
    commits = commit_log_of(SMALL, store).folder + "commits/"
    store.delete([info.key for info in store.list(commits)][1:])
    with pytest.raises(AssertionError, match="offset 0, which is not committed"):
        SeenOutput(SMALL, store, "out/").look()
