"""Backfills that others interrupt: who completes them while they sleep, and who parses bad messages again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import RIGHT, backfill, clean, offsets, replacements_of
from tests.support.pipelines.pipeline_runs import run_once
from tests.support.records.hourly_topics import copy_times, day, hourly_topic, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.pipelines import Parts, Runner, with_generation


def test_bad_messages_parsed_again_do_not_end_a_backfill_that_is_not_done(tmp_path: Path) -> None:
    topic, store = StoredTopic(tmp_path / "bad"), MemoryObjectStore()
    copy_times(topic, 0, [0, -500_000, 1])
    run_once(topic, store, RIGHT)
    with pytest.raises(TieredStoreError):
        backfill(topic, FaultyStore(store, lambda one: one.name == "delete" and one.keys != ()), replaces=1)
    assert offsets(store, 1) == offsets(store, 2) == [0, 2]
    with Runner(with_generation(RIGHT, 2), Parts(store, topic.manager), threads=1) as runner:
        list(runner.redrive())
    backfill(topic, store, replaces=1)
    assert (offsets(store, 1), offsets(store, 2)) == ([], [0, 2])
    assert clean(store, 1, 2)
    topic.close()


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Records of noon, of one, two and nine o'clock: the first three are over."""
    with hourly_topic(tmp_path, [0, 0, 1], [2, 9]) as topic:
        yield topic


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_who_sleeps_while_another_completes_a_replacement_changes_nothing_that_is_seen(
    topic: StoredTopic, step: int
) -> None:
    first = MemoryObjectStore()
    run_once(topic, first, RIGHT)
    objects = {info.key: first.get(info.key) for info in first.list("")}
    sweep, fenced = replacements_of(topic, objects, step), 0
    for at, inner, store in sweep.sleep(lambda inner: backfill(topic, inner, replaces=1)):
        try:
            backfill(topic, store, replaces=1)
        except Fenced:
            fenced += 1
        assert (offsets(inner, 1), offsets(inner, 2)) == ([], [0, 1, 2, 3, 4]), at
        assert set(successes(inner)) == {day(12), day(13), day(14)}, at
        assert clean(inner, 1, 2), at
    assert fenced * step > len(sweep.operations) // 2
