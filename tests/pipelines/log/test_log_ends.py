"""The end of the commit log: what is known to be published, and commits whose answers were lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import listed, listed_offsets, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import DelegatingObjectStore, FaultyStore, Operation, ScriptedStore
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import Fenced, StoreError, StoreUnavailable
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.run.generation import commit_log_of

SMALL = pipeline_of(secor__max__file__size__bytes="9000")
BATCH = f"out/_tieredstore/kept/1/commits/{1:020}.json"
"""Behind the entry of the driver that begins."""


def test_files_that_are_deleted_after_a_run_are_not_written_again(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    assert [entry.kind for entry in commit_log_of(SMALL, store).entries()] == ["begin", "batch", "published"]
    store.delete(listed(store))
    run_once(topic, store, SMALL)
    assert listed(store) == []
    # Nothing more to say, and nothing is said.
    assert [entry.kind for entry in commit_log_of(SMALL, store).entries()][3:] == ["begin"]
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300, 350))


def test_a_run_that_died_before_it_had_published_all_is_finished(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    with pytest.raises(StoreError):
        run_once(topic, FaultyStore(store, lambda operation: operation.name == "publish"), SMALL)
    assert listed(store) == []
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))


def test_a_commit_that_lost_its_answer_is_found_by_the_same_driver(topic: StoredTopic) -> None:
    store = MemoryObjectStore()

    faulty = FaultyStore(store, lambda operation: (operation.name, operation.keys) == ("put", (BATCH,)), moment="after")
    with Runner(SMALL, Parts(faulty, topic.manager), threads=1) as runner:
        with pytest.raises(StoreUnavailable):
            list(runner.run_once())
        assert listed(store) == []
        runner.resume()
        assert listed_offsets(store) == list(range(300))
        assert runner.step() is None
        run_once(topic, store, SMALL)
        with pytest.raises(Fenced):
            runner.resume()


class LateStore(DelegatingObjectStore):
    """The first attempt at an object seems to fail, and comes to the store before the second one."""

    def __init__(self, inner: ObjectStore, key: str) -> None:
        super().__init__(inner)
        self._key = key
        self._late: Body | None = None

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        if key == self._key and self._late is None:
            self._late = body
            raise StoreUnavailable("timed out")
        if key == self._key and self._late is not None:
            late, self._key = self._late, ""
            super().put(key, late, if_absent=if_absent)
        super().put(key, body, if_absent=if_absent)


def test_a_commit_that_arrives_late_stands_and_the_second_one_is_taken_back(topic: StoredTopic, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    store = FilesystemObjectStore(tmp_path / "output")
    with Runner(SMALL, Parts(LateStore(store, BATCH), topic.manager), threads=1) as runner:
        with pytest.raises(StoreUnavailable):
            list(runner.run_once())
        runner.resume()
        assert listed(store) == []
        entries = list(runner.run_once())
    assert [entry.kind for entry in entries] == ["batch"]
    assert listed_offsets(store) == list(range(300))
    assert not list(store.abandoned_writes("out/"))


def test_who_begins_while_another_ends_begins_behind_it(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, SMALL)
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as ending:
        ending.begin()
        topic.copy_plain(300, 50, size=100)
        assert ending.step() is None

        def end(_: Operation) -> None:
            """The other one writes its last entry between a look at the log and the entry of the one that begins."""
            ending.driver.log.append("published", "")

        between = ScriptedStore(store).on("put", "*/commits/*", end, times=1)

        with Runner(SMALL, Parts(between, topic.manager), threads=1) as beginning:
            assert len(list(beginning.run_once())) == 1
    assert listed_offsets(store) == list(range(350))
