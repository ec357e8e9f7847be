"""Each store operation of a run, one by one: it fails, loses its answer, is a process's last, or one that it sleeps at.

The run finds an output that is complete up to a point. It writes late records into directories that said so, and new
ones, ``_SUCCESS`` and what makes directories known to Hive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import pytest

from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, offsets_of, run_once
from tests.support.records.hourly_topics import HOURLY, copy_times, day, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_s3
from tests.support.stores.doubles import FaultyStore, Moment, Operation
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import Fenced, StoreUnavailable
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output

FIRST, SECOND, THIRD = [0, 0, 1, 2, 4], [1, 6, 2], [1, 9]
MakeStore = Callable[[], ObjectStore]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("folder", marks=pytest.mark.soak),
        pytest.param("s3", marks=[pytest.mark.soak, pytest.mark.slow, pytest.mark.server]),
    ]
)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Gives empty stores, as many as one likes."""
    opened: list[ObjectStore] = []

    def make() -> ObjectStore:
        match request.param:
            case "memory":
                store: ObjectStore = MemoryObjectStore()
            case "folder":
                folder = tmp_path / f"output-{len(opened)}"
                folder.mkdir()
                store = FilesystemObjectStore(folder)
            case _:
                server: S3Server = request.getfixturevalue("minio")
                store = make_s3(server.endpoint_url, server.make_bucket())
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


class World:
    """A topic, and what a first run has written of it."""

    def __init__(self, folder: Path) -> None:
        self.topic = StoredTopic(folder / "logs")
        copy_times(self.topic, 0, FIRST)
        store = MemoryObjectStore()
        run_once(self.topic, store, HOURLY)
        self._objects = {info.key: store.get(info.key) for info in store.list("")}
        copy_times(self.topic, len(FIRST), SECOND)

    def placed(self, store: ObjectStore) -> ObjectStore:
        """A store with the output of the first run."""
        for key, data in self._objects.items():
            store.put(key, data)
        return store

    def check_seen(self, store: ObjectStore) -> None:
        """By plain listing: no offset twice, none missing of what is published, none above what is committed."""
        offsets = listed_offsets_of_data(store)
        assert len(offsets) == len(set(offsets))
        assert set(range(len(FIRST))) <= set(offsets)
        log = commit_log_of(HOURLY, store)
        assert all(offset < log.read().positions[TOPIC, NUMBER].next_offset for offset in offsets)

    def check_done(self, store: ObjectStore, more: Sequence[int] = ()) -> None:
        """Each record is there once, and each directory says what it has."""
        run_once(self.topic, store, HOURLY)
        assert listed_offsets_of_data(store) == list(range(len([*FIRST, *SECOND, *more])))
        assert list(verify_output(HOURLY, store)) == []
        said = {path: records for path, (_, records, _) in successes(store).items()}
        hours = Counter([*FIRST, *SECOND, *more])
        over = {hour: count for hour, count in hours.items() if hour < max(hours) - 1}
        assert said == {day(12 + hour): count for hour, count in over.items()}


def listed_offsets_of_data(store: ObjectStore) -> list[int]:
    keys = [key for key in listed(store) if not key.endswith("/_SUCCESS")]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


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
    """By the next process, or by the one that it failed for, which waits and goes on."""
    sweep = sweep_of(world, make_store)
    assert {operation.name for operation in sweep.operations} >= {"prepare", "publish", "put", "replace", "list"}
    for _, inner, faulty in sweep.fail(moment):
        with Runner(HOURLY, Parts(faulty, world.topic.manager), threads=1) as runner:
            with suppress(StoreUnavailable):
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
    """Run while one sleeps. A process that ``dies`` does so before it publishes, and its uploads are dropped."""
    copy_times(topic, len(FIRST + SECOND), THIRD)
    if not dies:
        run_once(topic, store, HOURLY)
        return
    with pytest.raises(StoreUnavailable):
        run_once(topic, FaultyStore(store, _is_publishing), HOURLY)
    log = commit_log_of(HOURLY, store)
    for file in log.entry(log.read().written).files:
        store.discard(file.prepared)


def _is_publishing(operation: Operation) -> bool:
    return operation.name == "publish"


def all_seen(store: ObjectStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in listed(store)}


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["ends", "dies"])
def test_a_process_that_sleeps_while_another_runs_changes_nothing_that_is_seen(
    tmp_path: Path, make_store: MakeStore, dies: bool
) -> None:
    """It sleeps before each of its operations; the other one finds more records, some of them late."""
    worlds: list[World] = []
    seen: list[dict[str, bytes]] = []
    fenced = 0

    def new_world() -> ObjectStore:
        worlds.append(World(tmp_path / str(len(worlds))))
        return worlds[-1].placed(make_store())

    def run_another(inner: ObjectStore) -> None:
        run_beside(worlds[-1].topic, inner, dies=dies)
        seen.append(all_seen(inner))

    sweep = OperationSweep(new_world, lambda store: run_once(worlds[-1].topic, store, HOURLY))
    for number, inner, store in sweep.sleep(run_another):
        with closing(worlds[-1].topic):
            try:
                run_once(worlds[-1].topic, store, HOURLY)
            except Fenced:
                fenced += 1
            assert len(seen) == number + 1
            # Where the other one died, what this one had committed may still be published by it.
            assert dies or all_seen(inner) == seen[-1]
            worlds[-1].check_seen(inner)
            worlds[-1].check_done(inner, THIRD)
    worlds[0].topic.close()
    assert fenced > len(seen) // 2
