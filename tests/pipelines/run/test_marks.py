"""``_SUCCESS`` marks of directories to which several processes write at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import RIGHT, backfill, clean, offsets
from tests.support.pipelines.pipeline_runs import TOPIC, pipeline_of, run_once
from tests.support.records.hourly_topics import BY_HOUR, HOUR_MS, NOON_MS, copy_times, day, hourly_topic, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import OperationName, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import FencedError
from tieredstore.pipelines import Parts, Runner, with_generation
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import Selected

FIRST = Selected(TOPIC, 0, 5)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield records at noon, one, two and four o'clock: the periods before three are over."""
    with hourly_topic(tmp_path, [0, 0, 1, 2, 4]) as topic:
        yield topic


def test_a_directory_that_another_generation_marks_later_states_late_records_too(topic: StoredTopic) -> None:
    store, quiet = MemoryObjectStore(), pipeline_of(**(BY_HOUR | {"pipeline__finalize": "false"}))
    run_once(topic, store, quiet)
    backfill(topic, store, Selected(TOPIC, 0, 3), pipeline=quiet, replaces=1)
    with Runner(quiet, Parts(store, topic.manager), threads=1, clock=itertools.count(0, 1000).__next__) as live:
        copy_times(topic, 5, [0])
        list(live.run_once())
        with Runner(with_generation(quiet, 2), Parts(store, topic.manager)) as other:
            other.driver.begin([])
            other.driver.finalize({TOPIC: NOON_MS + 2 * HOUR_MS})
        assert set(successes(store)) == {day(12), day(13)}
        copy_times(topic, 6, [1])
        list(live.run_once())
    assert successes(store)[day(13)][:2] == (2, 2)
    assert clean(store, 1, 2, pipeline=quiet)


@pytest.mark.parametrize("work", ["backfill", "run"])
def test_who_sleeps_while_another_generation_writes_late_records_states_them(topic: StoredTopic, work: str) -> None:
    """Let a backfill pause while a run of the replaced generation writes late records, or the other way round."""
    first = MemoryObjectStore()
    run_once(topic, first, RIGHT)
    copy_times(topic, 5, [1, 6, 2])

    def replace_files(store: ObjectStore) -> None:
        backfill(topic, store, FIRST, replaces=1)

    def write_late(store: ObjectStore) -> None:
        run_once(topic, store, RIGHT)

    works = [replace_files, write_late] if work == "backfill" else [write_late, replace_files]
    for at, inner, store in OperationSweep(copies_of(first), works[0]).sleep(works[1]):
        with suppress(FencedError):
            works[0](store)
        replace_files(inner)
        write_late(inner)
        assert (offsets(inner, 1), offsets(inner, 2)) == ([5, 6, 7], [0, 1, 2, 3, 4]), at
        assert clean(inner, 1, 2), at
        assert {path: said[:2] for path, said in successes(inner).items()} == {
            day(12): (1, 2), day(13): (2, 2), day(14): (2, 2), day(16): (1, 1),
        }, at  # fmt: skip


def replace_until(topic: StoredTopic, store: ObjectStore, name: OperationName, key: str) -> None:
    """Replace the files of generation 1 up to this operation, then die."""
    with pytest.raises(Killed):
        backfill(topic, ScriptedStore(store).on(name, key, Killed()), FIRST, replaces=1)


def test_no_mark_comes_back_while_files_are_replaced(topic: StoredTopic) -> None:
    store, other = MemoryObjectStore(), with_generation(RIGHT, 9)
    run_once(topic, store, RIGHT)
    run_once(topic, store, other)
    store.delete([f"{day(12)}/_SUCCESS"])
    # The removal of generation 9 is about to write the missing mark of generation 1 again.
    slow = ScriptedStore(store).on(
        "put", "*_SUCCESS", lambda _: replace_until(topic, store, "delete", "*.parquet"), times=1
    )
    list(drop_generation(other, slow, dry_run=False))
    assert offsets(store, 1) == offsets(store, 2) == [0, 1, 2, 3, 4]
    assert successes(store) == {}
    backfill(topic, store, FIRST, replaces=1)
    assert set(successes(store)) == {day(12), day(13), day(14)}
    assert clean(store, 1, 2)


def test_a_fenced_driver_that_sleeps_again_deletes_no_new_mark(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    copy_times(topic, 5, [1, 2])
    late = ScriptedStore(store)
    late.on("get", "*/hr=13/_SUCCESS", lambda _: replace_until(topic, store, "delete", "*_SUCCESS"), times=1)
    late.on("delete", "*_SUCCESS", lambda _: backfill(topic, store, FIRST, replaces=1), times=1)
    with pytest.raises(FencedError):
        run_once(topic, late, RIGHT)
    assert late.requests["delete"]
    assert {path: said[:2] for path, said in successes(store).items()} == {
        day(12): (1, 2), day(13): (2, 2), day(14): (2, 2),
    }  # fmt: skip
    assert clean(store, 1, 2)
