"""Offsets that another generation replaces are neither written twice nor lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import (
    ALL,
    RIGHT,
    backfill,
    clean,
    from_files,
    offsets,
    replacements_of,
    wrong,
)
from tests.support.pipelines.pipeline_runs import TOPIC, listed, pipeline_of, redrive, run_once
from tests.support.records.hourly_topics import copy_times, hourly_topic
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, FencedError
from tieredstore.pipelines import Pipeline, with_generation
from tieredstore.pipelines.upkeep.comparison import Against
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, Selected


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield records at noon, one, two and four o'clock, in two segments and so in two windows."""
    with hourly_topic(tmp_path, [0, 0, 1], [2, 4]) as topic:
        yield topic


def test_offsets_that_gave_way_once_do_not_give_way_again(topic: StoredTopic) -> None:
    store = wrong(topic)
    backfill(topic, store, replaces=1)
    # Repeating the same command does nothing.
    assert backfill(topic, store, replaces=1) == []
    before = listed(store)
    with pytest.raises(ConfigError, match=rf"offsets 0 to 4 of {TOPIC}-\d are held by generation 2.*--replace 2"):
        backfill(topic, store, generation=3, replaces=1)
    assert listed(store) == before
    backfill(topic, store, generation=3, replaces=2)
    with pytest.raises(ConfigError, match="held by generation 3"):
        backfill(topic, store, generation=4, replaces=1)
    list(drop_generation(with_generation(RIGHT, 3), store, dry_run=False))
    assert backfill(topic, store, generation=4, replaces=1) == []
    backfill(topic, store, generation=4)
    assert offsets(store, 4) == [0, 1, 2, 3, 4]


def test_a_part_that_gave_way_is_named_and_the_rest_may_still_be_replaced(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    copy_times(topic, 5, [5, 0, 9])
    run_once(topic, store, RIGHT)
    backfill(topic, store, Selected(TOPIC, 6), replaces=1)
    for selected in (ALL, Selected(TOPIC, 2), Selected(TOPIC, 1, 7)):
        with pytest.raises(ConfigError, match=r"offsets 5 to . of .* held by generation 2"):
            backfill(topic, store, selected, generation=3, replaces=1)
    backfill(topic, store, Selected(TOPIC, None, 2), generation=3, replaces=1)
    assert [offsets(store, one) for one in (1, 2, 3)] == [[], [5, 6, 7], [0, 1, 2, 3, 4]]
    assert clean(store, 1, 2, 3)


def test_what_the_generation_before_holds_is_not_the_next_ones_to_replace(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    copy_times(topic, 5, [5, 9])
    run_once(topic, store, with_generation(RIGHT, 2), take_over=1)
    with pytest.raises(ConfigError, match=r"offsets 3 to 4 .* held by generation 1"):
        backfill(topic, store, Selected(TOPIC, 3), generation=3, replaces=2)
    with pytest.raises(ConfigError, match=r"offsets 5 to 6 .* held by generation 2"):
        backfill(topic, store, Selected(TOPIC, 3, 7), generation=3, replaces=1)
    backfill(topic, store, generation=3, replaces=2)
    assert [offsets(store, one) for one in (1, 2, 3)] == [[0, 1, 2, 3, 4], [], [5, 6]]
    # Repeating the run succeeds, and writes nothing.
    assert run_once(topic, store, with_generation(RIGHT, 2), take_over=1) == []


def test_offsets_between_two_backfills_are_never_passed_over(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    backfill(topic, store, Selected(TOPIC, 0, 1))
    backfill(topic, store, Selected(TOPIC, 3, 4))
    with pytest.raises(ConfigError, match="from offset 3 on; earlier offsets need another --generation"):
        backfill(topic, store)
    assert backfill(topic, store, Selected(TOPIC, 0, 1)) == []
    backfill(topic, store, Selected(TOPIC, 3))
    assert offsets(store, 2) == [0, 3, 4]


def test_a_backup_whose_files_gave_way_names_who_has_the_records(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    kept = pipeline_of(pipeline__name="backup", output__key__prefix="raw/")
    run_once(topic, store, kept)
    copy_times(topic, 5, [5, 6])
    run_once(topic, store, kept)
    replaced(topic, store, kept, Selected(TOPIC, None, 2))
    before = list(store.list())
    for selected in (ALL, Selected(TOPIC, 1), Selected(TOPIC, 1, 3)):
        with pytest.raises(
            ConfigError, match=r"offsets \d to \d of .* held by generation 7 of backup.*secor.generation=7"
        ):
            from_files(store, kept, selected)
    assert list(store.list()) == before
    from_files(store, kept, Selected(TOPIC, 5))
    assert offsets(store, 2) == [5, 6]
    from_files(store, with_generation(kept, 7), ALL, 3)
    assert offsets(store, 3) == [0, 1, 2, 3, 4]
    # Another generation replaced all offsets, and was then dropped.
    replaced(topic, store, kept, Selected(TOPIC, 5), 8)
    list(drop_generation(with_generation(kept, 8), store, dry_run=False))
    with pytest.raises(ConfigError, match="were replaced by generation 8 of backup, which no longer holds them"):
        from_files(store, kept, Selected(TOPIC, 5), 4)


def replaced(topic: StoredTopic, store: ObjectStore, kept: Pipeline, selected: Selected, generation: int = 7) -> None:
    backfill(topic, store, selected, pipeline=kept, generation=generation, replaces=1)


def test_bad_messages_that_were_redriven_give_way_with_their_window(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    copy_times(topic, 5, [5, -500_000, 6])
    run_once(topic, store, RIGHT)
    by_offset = pipeline_of()
    assert len(redrive(topic, store, by_offset)) == 1
    assert offsets(store, 1) == list(range(8))
    backfill(topic, store, pipeline=by_offset, replaces=1)
    assert (offsets(store, 1), offsets(store, 2)) == ([], list(range(8)))
    for generation in (1, 2):
        its = with_generation(by_offset, generation)
        assert list(Against(its, store, topic.manager).problems()) == []
    assert clean(store, 1, 2, pipeline=by_offset)


@pytest.mark.slow
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_of_two_replacements_at_once_one_is_refused(topic: StoredTopic, step: int) -> None:
    """One backfill pauses before each of its operations in turn, while another replaces the same offsets."""
    first = wrong(topic)
    refused = 0

    def another(inner: ObjectStore) -> None:
        with suppress(ConfigError):
            backfill(topic, inner, generation=3, replaces=1)

    for at, inner, store in replacements_of(topic, first, step).sleep(another):
        try:
            backfill(topic, store, replaces=1)
        except (FencedError, ConfigError):
            refused += 1
            with suppress(ConfigError):
                backfill(topic, inner, replaces=1)
        held = [offset for one in (1, 2, 3) for offset in offsets(inner, one)]
        assert sorted(held) == [0, 1, 2, 3, 4], at
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))])
def test_whatever_is_replaced_by_whatever_each_offset_is_held_once(topic: StoredTopic, seed: int) -> None:
    chance, store = random.Random(seed), MemoryObjectStore()
    run_once(topic, store, RIGHT)
    for start in range(5, 14, 3):
        copy_times(topic, start, [start, 0, start])
        run_once(topic, store, RIGHT)
    done = refused = 0
    for _ in range(20):
        starts, stops = (None, chance.randrange(14)), (None, chance.randrange(1, 15))
        try:
            backfill(
                topic, store, Selected(TOPIC, chance.choice(starts), chance.choice(stops)),
                generation=chance.randrange(2, 6), replaces=chance.randrange(1, 6),
            )  # fmt: skip
            done += 1
        except ConfigError:
            refused += 1
        held = [offset for one in range(1, 6) for offset in offsets(store, one)]
        assert sorted(held) == list(range(14))
    assert done
    assert refused
    assert clean(store, 1)
    with suppress(ConfigError):
        KeptFiles(RIGHT, store, TOPIC, 1 << 20)
