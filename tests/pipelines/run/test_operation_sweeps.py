"""Failure, death or delay at each operation of a run, and planted faults that these sweeps must detect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    commit_unpublished,
    content_of,
    listed,
    listed_offsets,
    pipeline_of,
    run_once,
    verify_output,
)
from tests.support.records.hourly_topics import BY_HOUR, HOURLY, copy_times, day, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import Moment
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CommitLogCorruptError, FencedError, StoreUnavailableError
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.run.generation import commit_log_of

FIRST, SECOND, THIRD = [0, 0, 1, 2, 4], [1, 6, 2], [1, 9]
MakeStore = Callable[[], ObjectStore]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("folder", marks=pytest.mark.soak),
        pytest.param("s3", marks=[pytest.mark.soak, pytest.mark.slow, pytest.mark.server]),
    ]
)
def make_store(request: pytest.FixtureRequest, new_store: Callable[[str], ObjectStore]) -> MakeStore:
    """Return a factory of empty stores."""
    return partial(new_store, request.param)


class World:
    """A topic, and the output of a first run."""

    def __init__(self, folder: Path) -> None:
        self.topic = StoredTopic(folder / "logs")
        copy_times(self.topic, 0, FIRST)
        store = MemoryObjectStore()
        run_once(self.topic, store, HOURLY)
        self._objects = {info.key: store.get(info.key) for info in store.list("")}
        copy_times(self.topic, len(FIRST), SECOND)

    def placed(self, store: ObjectStore) -> ObjectStore:
        """Fill a store with the output of the first run."""
        for key, data in self._objects.items():
            store.put(key, data)
        return store

    def check_seen(self, store: ObjectStore) -> None:
        """Assert that a listing has all published offsets, each once, and no uncommitted one."""
        offsets = listed_offsets(store)
        assert len(offsets) == len(set(offsets))
        assert set(range(len(FIRST))) <= set(offsets)
        log = commit_log_of(HOURLY, store)
        assert all(offset < log.read().positions[TOPIC, NUMBER].next_offset for offset in offsets)

    def check_done(self, store: ObjectStore, more: Sequence[int] = ()) -> None:
        """Assert that each record is there once, and that each directory's marker is right."""
        run_once(self.topic, store, HOURLY)
        assert listed_offsets(store) == list(range(len([*FIRST, *SECOND, *more])))
        assert list(verify_output(HOURLY, store)) == []
        said = {path: records for path, (_, records, _) in successes(store).items()}
        hours = Counter([*FIRST, *SECOND, *more])
        over = {hour: count for hour, count in hours.items() if hour < max(hours) - 1}
        assert said == {day(12 + hour): count for hour, count in over.items()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.topic.close()


def sweep_of(world: World, make_store: MakeStore) -> OperationSweep[ObjectStore]:
    return OperationSweep(lambda: world.placed(make_store()), lambda store: run_once(world.topic, store, HOURLY))


@pytest.mark.parametrize("again", [pytest.param("another", marks=pytest.mark.soak), "itself"])
@pytest.mark.parametrize(
    "moment", [pytest.param("before", marks=pytest.mark.soak), pytest.param("during", marks=pytest.mark.soak), "after"]
)
def test_an_operation_that_fails_is_made_good(
    world: World, make_store: MakeStore, moment: Moment, again: Literal["another", "itself"]
) -> None:
    """Recover in a new process, or in the failed one after a wait."""
    sweep = sweep_of(world, make_store)
    assert {operation.name for operation in sweep.operations} >= {"prepare", "publish", "put", "replace", "list"}
    for _, inner, faulty in sweep.fail(moment):
        with Runner(HOURLY, Parts(faulty, world.topic.manager), threads=1) as runner:
            with suppress(StoreUnavailableError):
                list(runner.run_once())
            world.check_seen(inner)
            if again == "itself":
                runner.resume()
                list(runner.run_once())
                world.check_seen(inner)
        world.check_done(inner)


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_a_process_may_die_at_each_operation(
    world: World, make_store: MakeStore, moment: Literal["before", "after"]
) -> None:
    for _, inner, store in sweep_of(world, make_store).die(moment):
        with pytest.raises(Killed):
            run_once(world.topic, store, HOURLY)
        world.check_seen(inner)
        world.check_done(inner)


def run_beside(topic: StoredTopic, store: ObjectStore, *, dies: bool) -> None:
    """Run while another process is suspended. If ``dies``, this run fails before it publishes, and its uploads are
    lost.
    """
    copy_times(topic, len(FIRST + SECOND), THIRD)
    if not dies:
        run_once(topic, store, HOURLY)
        return
    for file in commit_unpublished(topic, store, HOURLY):
        store.discard(file.prepared)


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["ends", "dies"])
def test_a_process_that_sleeps_while_another_runs_changes_nothing_that_is_seen(
    tmp_path: Path, make_store: MakeStore, dies: bool
) -> None:
    """Pause before each operation. During the pause, another run finds more records, some of them late."""
    worlds: list[World] = []
    seen: list[dict[str, bytes]] = []
    fenced = 0

    def new_world() -> ObjectStore:
        worlds.append(World(tmp_path / str(len(worlds))))
        return worlds[-1].placed(make_store())

    def run_another(inner: ObjectStore) -> None:
        run_beside(worlds[-1].topic, inner, dies=dies)
        seen.append(content_of(inner))

    sweep = OperationSweep(new_world, lambda store: run_once(worlds[-1].topic, store, HOURLY))
    for sleeps, (_, inner, store) in enumerate(sweep.sleep(run_another), 1):
        with closing(worlds[-1].topic):
            try:
                run_once(worlds[-1].topic, store, HOURLY)
            except FencedError:
                fenced += 1
            assert len(seen) == sleeps
            # If the other process died, this process may still publish the files that the other has committed.
            assert dies or content_of(inner) == seen[-1]
            worlds[-1].check_seen(inner)
            worlds[-1].check_done(inner, THIRD)
    worlds[0].topic.close()
    assert fenced > len(seen) // 2


TEXT = pipeline_of(**BY_HOUR, secor__file__reader__writer__factory="text", secor__compression__codec="none")
"""Pipeline that writes sidecars and marks directories complete."""
DATA = f"{day(12)}/1_{NUMBER}_{0:020}.txt"
OTHER = f"{day(13)}/1_{NUMBER}_{2:020}.txt"
BESIDE = f"{day(12)}/.1_{NUMBER}_{0:020}.txt.parquet"
ASIDE = f"out/_tieredstore/kept/1/quarantine/events/1_{NUMBER}_{5:020}.parquet"
COMPLETE = f"{day(12)}/_SUCCESS"
COMMITS = "out/_tieredstore/kept/1/commits/"

Plant = Callable[[MemoryObjectStore], None]
CopyOutput = Callable[[], MemoryObjectStore]


@pytest.fixture(scope="module")
def clean_output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopyOutput]:
    """Yield a function that copies an output without faults. The output includes a quarantined bad message."""
    topic = StoredTopic(tmp_path_factory.mktemp("logs") / "logs")
    copy_times(topic, 0, [0, 0, 1, 2, 4, -500_000])
    store = MemoryObjectStore()
    run_once(topic, store, TEXT)
    assert {DATA, OTHER, BESIDE, COMPLETE} <= set(listed(store))
    assert list(verify_output(TEXT, store)) == []
    yield copies_of(store)
    topic.close()


def gone(key: str) -> Plant:
    return lambda store: store.delete([key])


def placed(key: str, data: bytes = b"x") -> Plant:
    return lambda store: store.put(key, data)


def changed(key: str, change: Callable[[bytes], bytes]) -> Plant:
    return lambda store: store.put(key, change(store.get(key)))


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def moved(store: MemoryObjectStore) -> None:
    store.put(f"{day(13)}/1_{NUMBER}_{0:020}.txt", store.get(DATA))
    store.delete([DATA])


def swapped(store: MemoryObjectStore) -> None:
    first, second = store.get(DATA), store.get(OTHER)
    store.put(DATA, second)
    store.put(OTHER, first)


def entry_with(**fields: int) -> Plant:
    """Return a fault that changes fields of the batch's first file in the commit log."""

    def plant(store: MemoryObjectStore) -> None:
        key = f"{COMMITS}{1:020}.json"
        content: Any = json.loads(store.get(key))
        content["windows"][0]["files"][0].update(fields)
        store.put(key, json.dumps(content).encode())

    return plant


def said(**fields: int) -> Plant:
    return changed(COMPLETE, lambda data: json.dumps(json.loads(data) | fields).encode())


FAULTS: dict[str, tuple[Plant, set[tuple[str, str]]]] = {
    "a file is gone": (gone(DATA), {("missing", DATA)}),
    "a file is cut": (changed(DATA, lambda data: data[:-1]), {("size", DATA)}),
    "a file is empty": (placed(DATA, b""), {("size", DATA)}),
    "a file has more": (changed(DATA, lambda data: data + b"v\n"), {("size", DATA)}),
    "a file has another bit": (changed(DATA, flipped), {("content", DATA)}),
    "a file lies elsewhere": (moved, {("missing", DATA), ("stranger", f"{day(13)}/1_{NUMBER}_{0:020}.txt")}),
    "two files are each other's": (swapped, {("size", DATA), ("size", OTHER)}),
    "a file is nobody's": (placed(f"{day(12)}/1_9_{0:020}.txt"), {("stranger", f"{day(12)}/1_9_{0:020}.txt")}),
    "a file is written twice": (
        changed(f"{day(14)}/1_{NUMBER}_{0:020}.txt", bytes),
        {("stranger", f"{day(14)}/1_{NUMBER}_{0:020}.txt")},
    ),
    "what lies beside is gone": (gone(BESIDE), {("missing", BESIDE)}),
    "what lies beside has another bit": (changed(BESIDE, flipped), {("content", BESIDE)}),
    "what lies beside is nobody's": (
        placed(f"{day(14)}/.1_9_{0:020}.txt.parquet"),
        {("stranger", f"{day(14)}/.1_9_{0:020}.txt.parquet")},
    ),
    "bad messages are gone": (gone(ASIDE), {("missing", ASIDE)}),
    "bad messages are cut": (changed(ASIDE, lambda data: data[:-4]), {("size", ASIDE)}),
    "bad messages have another bit": (changed(ASIDE, flipped), {("content", ASIDE)}),
    "bad messages are nobody's": (
        placed(ASIDE.replace("5.parquet", "4.parquet")),
        {("stranger", ASIDE.replace("5.parquet", "4.parquet"))},
    ),
    "the log has another size": (entry_with(size=1), {("size", DATA)}),
    "the log has offsets out of the window": (entry_with(last_offset=99), {("offsets", DATA)}),
    "the log has offsets in the wrong order": (entry_with(first_offset=4), {("offsets", DATA)}),
    "a directory does not say that it is complete": (gone(COMPLETE), {("missing", COMPLETE)}),
    "a directory tells of other files": (said(files=7), {("content", COMPLETE)}),
    "a directory tells of other records": (said(records=7), {("content", COMPLETE)}),
    "a directory says nothing": (placed(COMPLETE, b""), {("missing", COMPLETE)}),
    "a directory says that it is complete too early": (
        lambda store: store.put(f"{day(16)}/_SUCCESS", store.get(COMPLETE)),
        {("stranger", f"{day(16)}/_SUCCESS")},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(clean_output: CopyOutput, fault: str) -> None:
    store = clean_output()
    plant, expected = FAULTS[fault]
    if fault == "a file is written twice":
        store.put(f"{day(14)}/1_{NUMBER}_{0:020}.txt", store.get(DATA))
    plant(store)
    assert {(problem.kind, problem.subject) for problem in verify_output(TEXT, store)} == expected


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_hole_in_the_log_is_an_error_and_so_is_another_text(clean_output: CopyOutput, number: int) -> None:
    store = clean_output()
    key = f"{COMMITS}{number:020}.json"
    store.put(key, store.get(key).rstrip()[:-1])
    with pytest.raises(CommitLogCorruptError):
        list(verify_output(TEXT, store))
    store.delete([key])
    with pytest.raises(CommitLogCorruptError):
        list(verify_output(TEXT, store))


def test_what_of_the_last_entry_is_not_written_yet_is_no_fault(clean_output: CopyOutput) -> None:
    store = clean_output()
    log = commit_log_of(TEXT, store)
    store.delete([f"{COMMITS}{log.read().number:020}.json", COMPLETE])
    assert list(verify_output(TEXT, store)) == []
