"""Upkeep of an output that sleeps at each operation of the store while another process does the same, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import copied
from tests.support.pipelines.pipeline_runs import listed, offsets_of, pipeline_of, run_once
from tests.support.records.hourly_topics import BY_HOUR, hourly_topic
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import Fenced
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.upkeep.dropping import drop_generation
from tieredstore.pipelines.upkeep.inspection import verify_output

STRICT = pipeline_of(**{**BY_HOUR, "secor__message__parser__class": "tests.pipelines.filing.test_naming:Choosy"})
FIRST = pipeline_of(**BY_HOUR)
SECOND = pipeline_of(**BY_HOUR, secor__generation="2")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with hourly_topic(tmp_path, [0, 0, 1, 2, 9]) as topic:
        yield topic


def redrive(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(FIRST, Parts(store, topic.manager), threads=1) as runner:
        list(runner.redrive())


def take_over(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(SECOND, Parts(store, topic.manager), threads=1, take_over=1) as runner:
        list(runner.run_once())


def finalize(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(FIRST, Parts(store, topic.manager), threads=1) as runner:
        runner.finalize()
        runner.driver.mark_published()


def drop(_: StoredTopic, store: ObjectStore) -> None:
    list(drop_generation(FIRST, store, dry_run=False))


def seen(store: ObjectStore) -> list[int]:
    keys = [key for key in listed(store) if not key.endswith("/_SUCCESS")]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


def all_seen(store: ObjectStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in listed(store)}


Work = Callable[[StoredTopic, ObjectStore], None]
WORKS: dict[str, tuple[Pipeline, Work, Pipeline]] = {
    "redrive": (STRICT, redrive, FIRST),
    "take over": (FIRST, take_over, SECOND),
    "finalize": (pipeline_of(**{**BY_HOUR, "pipeline__finalize": "false"}), finalize, FIRST),
    "drop": (FIRST, drop, FIRST),
}


@pytest.mark.parametrize("name", WORKS)
def test_who_sleeps_while_another_does_the_same_changes_nothing_that_is_seen(topic: StoredTopic, name: str) -> None:
    before, work, after = WORKS[name]
    first = MemoryObjectStore()
    run_once(topic, first, before)
    objects = {info.key: first.get(info.key) for info in first.list("")}
    expected: list[dict[str, bytes]] = []

    def another(inner: ObjectStore) -> None:
        work(topic, inner)
        expected.append(all_seen(inner))

    sweep = OperationSweep(partial(copied, objects), partial(work, topic))
    for at, inner, store in sweep.sleep(another):
        with suppress(Fenced):
            work(topic, store)
        assert (len(expected), all_seen(inner)) == (at + 1, expected[-1])
        assert list(verify_output(after, inner)) == [], at
        assert seen(inner) == ([] if name == "drop" else list(range(5))), at
    assert len(expected) >= 10
