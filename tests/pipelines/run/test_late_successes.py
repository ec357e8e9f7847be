"""A ``_SUCCESS`` that is on its way while its process stops or sleeps, and reaches the store behind others' work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.pipelines.upkeep.test_backfill import RIGHT, backfill, clean, copied, offsets
from tests.support.pipelines.pipeline_runs import listed, run_once
from tests.support.records.hourly_topics import HOURLY, day, hourly_topic, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import DelegatingObjectStore, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import PreconditionFailed, TieredStoreError
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.dropping import drop_generation
from tieredstore.pipelines.upkeep.inspection import verify_output


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Records of noon, of one, two and four o'clock: the first three are over."""
    with hourly_topic(tmp_path, [0, 0, 1], [2, 4]) as topic:
        yield topic


class Stopping(DelegatingObjectStore):
    """The store of a process that stops while its first ``_SUCCESS`` is on its way; ``land`` brings it there."""

    under_way: tuple[str, bytes] | None = None

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        if key.endswith("/_SUCCESS"):
            assert if_absent
            assert isinstance(body, bytes)
            self.under_way = key, body
            raise Killed
        super().put(key, body, if_absent=if_absent)

    def land(self) -> str:
        """As the store carries out the request, late; its key."""
        assert self.under_way is not None
        key, body = self.under_way
        with suppress(PreconditionFailed):
            self.inner.put(key, body, if_absent=True)
        return key


def stopped(topic: StoredTopic, store: ObjectStore) -> Stopping:
    stopping = Stopping(store)
    with pytest.raises(Killed):
        run_once(topic, stopping, HOURLY)
    return stopping


def test_one_that_comes_behind_a_drop_is_named_and_taken_away_by_the_next(
    topic: StoredTopic, store: ObjectStore
) -> None:
    stopping = stopped(topic, store)
    list(drop_generation(HOURLY, store, dry_run=False))
    assert listed(store) == []
    key = stopping.land()
    assert listed(store) == [key]
    (problem,) = verify_output(HOURLY, store)
    assert (problem.kind, problem.subject) == ("stranger", key)
    assert "drop it once more" in problem.words
    assert [one.key for one in drop_generation(HOURLY, store, dry_run=True)] == [key]
    assert [one.key for one in drop_generation(HOURLY, store, dry_run=False)] == [key]
    assert listed(store) == []
    assert list(verify_output(HOURLY, store)) == []


def test_a_process_that_sleeps_at_an_operation_while_its_generation_is_dropped_leaves_nothing(
    topic: StoredTopic,
) -> None:
    def drop(inner: ObjectStore) -> None:
        if commit_log_of(HOURLY, inner).read().number >= 0:
            list(drop_generation(HOURLY, inner, dry_run=False))

    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(topic, store, HOURLY))
    for at, inner, store in sweep.sleep(drop):
        with suppress(TieredStoreError):
            run_once(topic, store, HOURLY)
        if commit_log_of(HOURLY, inner).read().closed == "drop":
            assert listed(inner) == [], at
            assert list(verify_output(HOURLY, inner)) == [], at
    assert len(sweep.operations) >= 20


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_one_that_comes_while_files_give_way_says_nothing_at_the_end(topic: StoredTopic, step: int) -> None:
    first = MemoryObjectStore()
    stopping = stopped(topic, first)
    run_once(topic, first, HOURLY)
    objects = {info.key: first.get(info.key) for info in first.list("")}

    def land(inner: ObjectStore) -> None:
        stopping.inner = inner
        stopping.land()

    # What was finalized is over, and files of other settings come in place of these.
    sweep = OperationSweep(
        partial(copied, objects),
        lambda store: backfill(topic, store, pipeline=RIGHT, replaces=1),
        numbers=slice(None, None, step),
    )
    for at, inner, store in sweep.sleep(land):
        backfill(topic, store, pipeline=RIGHT, replaces=1)
        assert (offsets(inner, 1), offsets(inner, 2)) == ([], [0, 1, 2, 3, 4]), at
        assert set(successes(inner)) == {day(12), day(13), day(14)}, at
        assert clean(inner, 1, 2), at


def test_one_that_comes_behind_the_first_step_of_a_replacement_is_gone_before_its_files_appear(
    topic: StoredTopic,
) -> None:
    store = MemoryObjectStore()
    stopping = stopped(topic, store)
    run_once(topic, store, HOURLY)
    seen: list[list[str]] = []

    def is_withdrawn(_: Operation) -> None:
        assert successes(store) == {}

    # The request is carried out when the first new file is prepared.
    late = ScriptedStore(store).on("prepare", do=lambda _: stopping.land(), times=1)
    late.on("prepare", do=lambda _: seen.append(sorted(successes(store)))).on("publish", do=is_withdrawn)
    backfill(topic, late, pipeline=RIGHT, replaces=1)
    assert seen[0] == [day(12)]
    assert clean(store, 1, 2)
