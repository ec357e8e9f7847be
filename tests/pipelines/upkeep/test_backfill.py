"""Backfills: offsets written again as another generation, beside or in place of existing files."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    listed,
    offsets_of,
    pipeline_of,
    redrive,
    run_once,
    verify_output,
)
from tests.support.pipelines.secor_files import sequence_file
from tests.support.records.hourly_topics import BY_HOUR, HOUR_MS, NOON_MS, copy_times, day, hourly_topic, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, DataLossError, FencedError, ResourceNotFoundError, TieredStoreError
from tieredstore.model import AtTime
from tieredstore.pipelines import Entry, Parts, Pipeline, Runner, with_generation
from tieredstore.pipelines.log.commit_log import CommitLog, Life, changes_since
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, LogSource, Selected

WRONG = pipeline_of(**BY_HOUR, secor__parser__timezone="Asia/Tokyo", secor__max__file__size__bytes="2000")
"""Settings with a wrong time zone, which file noon under 21:00."""
RIGHT = pipeline_of(**BY_HOUR, secor__max__file__size__bytes="2000")
ALL = Selected(TOPIC)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield records at noon, one, two and four o'clock: the periods before three are over."""
    with hourly_topic(tmp_path, [0, 0, 1], [2, 4]) as topic:
        yield topic


def backfill(
    topic: StoredTopic,
    store: ObjectStore,
    selected: Selected = ALL,
    *,
    pipeline: Pipeline = RIGHT,
    generation: int = 2,
    replaces: int = -1,
) -> list[Entry]:
    chosen = with_generation(pipeline, generation)
    source = LogSource(chosen, topic.manager, selected.topic)
    try:
        return list(Backfill(chosen, store, source, replaces=replaces, threads=1).run(selected))
    finally:
        source.close()


def offsets(store: ObjectStore, generation: int) -> list[int]:
    """Return the offsets of all listed files of a generation, including duplicates."""
    names = f"{generation}_{NUMBER}_"
    keys = [key for key in listed(store) if key.rpartition("/")[2].startswith(names)]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


def clean(store: ObjectStore, *generations: int, pipeline: Pipeline = RIGHT) -> bool:
    return all(list(verify_output(with_generation(pipeline, one), store)) == [] for one in generations)


def test_chosen_offsets_are_written_beside_a_generation_that_goes_on(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(RIGHT, Parts(store, topic.manager), threads=1, clock=itertools.count(0, 1000).__next__) as live:
        list(live.run_once())
        entries = backfill(topic, store, Selected(TOPIC, 1, 4))
        assert [(one.start, one.stop) for entry in entries for one in entry.windows] == [(1, 4)]
        assert offsets(store, 2) == [1, 2, 3]
        copy_times(topic, 5, [5])
        # The backfill has not fenced the driver of generation 1.
        list(live.run_once())
    assert offsets(store, 1) == [0, 1, 2, 3, 4, 5]
    assert backfill(topic, store, Selected(TOPIC, 1, 4)) == []
    assert clean(store, 1, 2)
    for refused in (Selected(TOPIC, 0, 2), Selected(TOPIC, None, 2)):
        with pytest.raises(ConfigError, match="earlier offsets need another --generation"):
            backfill(topic, store, refused)
    backfill(topic, store, Selected(TOPIC, 2, 5))
    assert offsets(store, 2) == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="is a backfill and does not read new records"):
        run_once(topic, store, with_generation(RIGHT, 2))
    with pytest.raises(ConfigError, match="give --generation an unused number"):
        backfill(topic, store, generation=1)


def test_times_choose_offsets(topic: StoredTopic, store: ObjectStore) -> None:
    one, three = (AtTime(NOON_MS + hours * HOUR_MS) for hours in (1, 3))
    backfill(topic, store, Selected(TOPIC, one, three))
    assert offsets(store, 2) == [2, 3]
    backfill(topic, store, Selected(TOPIC, AtTime.of(datetime(2030, 1, 1, tzinfo=UTC))), generation=3)
    assert offsets(store, 3) == []
    with pytest.raises(ResourceNotFoundError):
        backfill(topic, store, Selected("another"), generation=4)
    assert backfill(topic, store, Selected(TOPIC, partitions=(NUMBER + 1,)), generation=4) == []


def test_a_backfill_that_is_not_done_goes_on_under_the_same_settings(topic: StoredTopic, store: ObjectStore) -> None:
    with pytest.raises(TieredStoreError):
        backfill(topic, FaultyStore(store, lambda one: one.name == "publish"), Selected(TOPIC, 0, 3))
    with pytest.raises(ConfigError, match="begun with other settings"):
        backfill(topic, store, Selected(TOPIC, 0, 3), pipeline=WRONG)
    with pytest.raises(ConfigError, match="first complete it"):
        backfill(topic, store, Selected(TOPIC, 0, 3), replaces=1)
    backfill(topic, store, Selected(TOPIC, 0, 5))
    assert offsets(store, 2) == [0, 1, 2, 3, 4]
    assert clean(store, 2)


def wrong(topic: StoredTopic) -> MemoryObjectStore:
    """Return an output whose generation 1 has three complete directories with wrong names."""
    store = MemoryObjectStore()
    run_once(topic, store, WRONG)
    assert sorted(successes(store)) == [day(21), day(22), day(23)]
    return store


def test_files_of_another_generation_give_way(topic: StoredTopic) -> None:
    store = wrong(topic)
    log = commit_log_of(WRONG, store)
    before = log.read().number
    seen: list[list[str]] = []

    watched = ScriptedStore(store).on("publish", do=lambda _: seen.append(sorted(successes(store))))
    with Runner(WRONG, Parts(store, topic.manager), threads=1) as live:
        list(live.run_once())
        backfill(topic, watched, replaces=1)
        with pytest.raises(FencedError):
            live.driver.commit([])
    assert seen[0] == []
    assert offsets(store, 1) == []
    assert offsets(store, 2) == [0, 1, 2, 3, 4]
    assert [entry.kind for entry in log.entries(before + 1)] == [
        "begin", "begin", "replacing", "begin", "replaced", "replaced",
    ]  # fmt: skip
    changes = list(changes_since(log, before))
    assert [change.kind for change in changes] == ["replacing", "replaced", "replaced"]
    assert day(21) in changes[0].directories
    assert changes[1].added == ()
    assert len(changes[1].removed) == 4
    assert clean(store, 1, 2)
    # The directories that were complete are now empty, and their ``_SUCCESS`` is gone.
    assert successes(store) == {}
    assert log.read().positions[TOPIC, NUMBER].records == 0
    copy_times(topic, 5, [5])
    run_once(topic, store, RIGHT)
    assert offsets(store, 1) == [5]
    # Generation 1 also finalizes the directories of the files that replaced its own.
    assert successes(store)[day(12)][:2] == (1, 2)
    list(drop_generation(with_generation(RIGHT, 2), store, dry_run=False))
    # All files of generation 2 are removed, and only generation 1's file is left.
    assert listed(store) == [f"{day(17)}/1_{NUMBER}_{5:020}.parquet"]


def test_windows_give_way_whole_and_directories_are_complete_again(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    copy_times(topic, 5, [5, 0, 9])
    run_once(topic, store, RIGHT)
    said = successes(store)
    entries = backfill(topic, store, Selected(TOPIC, 6, 7), replaces=1)
    assert [(one.start, one.stop) for entry in entries if not entry.removed for one in entry.windows] == [(5, 8)]
    assert (offsets(store, 1), offsets(store, 2)) == ([0, 1, 2, 3, 4], [5, 6, 7])
    after = successes(store)
    assert {path: one[:2] for path, one in after.items()} == {path: one[:2] for path, one in said.items()}
    content = json.loads(store.get(f"{day(12)}/_SUCCESS"))
    assert (content["generation"], content["files"], content["records"]) == (2, 2, 3)
    assert "beside" not in content
    assert clean(store, 1, 2)
    # Repeating the backfill does nothing, because generation 1 no longer has these offsets.
    assert backfill(topic, store, Selected(TOPIC, 6, 7), replaces=1) == []
    for generation, words in ((5, "no commit log"), (2, "cannot replace itself")):
        with pytest.raises(ConfigError, match=words):
            backfill(topic, store, replaces=generation)
    backfill(topic, store, generation=3, replaces=2)
    assert offsets(store, 2) == []
    assert clean(store, 1, 2, 3)


@pytest.mark.parametrize("dies", [False, True])
def test_a_replacement_keeps_the_mark_that_another_generation_adds_before_the_delete(
    topic: StoredTopic, store: ObjectStore, *, dies: bool
) -> None:
    other = with_generation(RIGHT, 9)
    run_once(topic, store, RIGHT)
    beside = ScriptedStore(store).on("delete", "*_SUCCESS", lambda _: run_once(topic, store, other), times=1)
    if dies:  # killed right after the delete; the next backfill completes the job
        with pytest.raises(Killed):
            backfill(topic, beside.on("delete", "*_SUCCESS", Killed(), moment="after", times=1), replaces=1)
    backfill(topic, beside, replaces=1)
    assert set(successes(store)) == {day(12), day(13), day(14)}
    assert clean(store, 1, 2)
    assert list(verify_output(other, store)) == []


def test_bad_messages_give_way_too(topic: StoredTopic, store: ObjectStore) -> None:
    strict = pipeline_of(secor__message__parser__class="json")
    run_once(topic, store, strict)
    aside = "out/_tieredstore/kept/1/quarantine/"
    assert len(list(store.list(aside))) == 1
    backfill(topic, store, replaces=1)
    assert list(store.list(aside)) == []
    assert offsets(store, 2) == [0, 1, 2, 3, 4]
    assert clean(store, 1, 2)


def test_a_generation_that_took_over_finalizes_nothing_meanwhile(topic: StoredTopic) -> None:
    store = wrong(topic)
    parts, clock = Parts(store, topic.manager), itertools.count(0, 1000).__next__
    with Runner(with_generation(WRONG, 3), parts, threads=1, take_over=1, clock=clock) as live:
        list(live.run_once())
        copy_times(topic, 5, [0])
        seen: list[list[str]] = []

        def interfere(_: Operation) -> None:
            list(live.run_once())
            live.finalize()
            seen.append(sorted(successes(store)))

        interfering = ScriptedStore(store).on("publish", do=interfere, times=1)
        backfill(topic, interfering, Selected(TOPIC, 0, 5), pipeline=WRONG, replaces=1)
        assert seen == [[]]
        assert {path: one[:2] for path, one in successes(store).items()} == {
            day(21): (2, 3), day(22): (1, 1), day(23): (1, 1),
        }  # fmt: skip
        copy_times(topic, 6, [0])
        list(live.run_once())
    assert successes(store)[day(21)][:2] == (3, 4)
    assert clean(store, 1, 2, 3, pipeline=WRONG)


EACH = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
"""Test only each ``step``-th operation."""


@EACH
@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_operation_may_be_the_last(topic: StoredTopic, moment: Literal["before", "after"], step: int) -> None:
    first = wrong(topic)
    whole = copies_of(first)()
    backfill(topic, whole, replaces=1)
    for number, inner, store in replacements_of(topic, first, step).die(moment):
        with pytest.raises(Killed):
            backfill(topic, store, replaces=1)
        check_between(inner)
        if number % 2:
            # The driver of generation 1 may run before the backfill is repeated.
            run_once(topic, inner, WRONG)
        backfill(topic, inner, replaces=1)
        assert records_of(inner) == records_of(whole)
        assert clean(inner, 1, 2)


@EACH
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_each_operation_may_fail(topic: StoredTopic, moment: Moment, step: int) -> None:
    first = wrong(topic)
    for _, inner, store in replacements_of(topic, first, step if moment == "after" else 2 * step).fail(moment):
        try:
            backfill(topic, store, replaces=1)
        except TieredStoreError:
            check_between(inner)
            backfill(topic, inner, replaces=1)
        assert (offsets(inner, 1), offsets(inner, 2)) == ([], [0, 1, 2, 3, 4])
        assert clean(inner, 1, 2)


def replacements_of(topic: StoredTopic, first: ObjectStore, step: int) -> OperationSweep[MemoryObjectStore]:
    return OperationSweep(
        copies_of(first), lambda store: backfill(topic, store, replaces=1), numbers=slice(None, None, step)
    )


def records_of(store: ObjectStore) -> list[str]:
    return [key for key in listed(store) if not key.endswith("/_SUCCESS")]


def check_between(store: ObjectStore) -> None:
    """Assert that each record is in one of the two generations. Once the second generation has files, no directory may
    be marked complete.
    """
    old, new = offsets(store, 1), offsets(store, 2)
    assert set(old) | set(new) == {0, 1, 2, 3, 4}
    assert len(new) == len(set(new))
    if new:
        assert not successes(store)


# --- out of files ---------------------------------------------------------------------------------------------------


def from_files(store: ObjectStore, kept: Pipeline, selected: Selected, generation: int = 2) -> list[Entry]:
    chosen = with_generation(RIGHT, generation)
    source = KeptFiles(kept, store, selected.topic, 1 << 20)
    return list(Backfill(chosen, store, source, threads=1).run(selected))


@pytest.mark.parametrize("kind", ["parquet", "json", "text", "sequencefile", "orc", "avro"])
def test_a_backup_is_as_good_as_the_log(topic: StoredTopic, kind: str) -> None:
    store = MemoryObjectStore()
    codec = "snappy" if kind == "avro" else "gzip"
    names = {"secor__file__reader__writer__factory": kind, "secor__compression__codec": codec}
    kept = pipeline_of(pipeline__name="backup", output__key__prefix="raw/", **names)
    run_once(topic, store, kept)
    copy_times(topic, 5, [5, 6])
    run_once(topic, store, kept)
    backfill(topic, store)
    from_files(store, kept, ALL, 3)
    by_log, by_files = ([key for key in listed(store) if f"/{one}_" in key] for one in (2, 3))
    assert [key.replace("/3_", "/2_") for key in by_files] == by_log
    # Text files and their sidecars do not have the timestamp type.
    left_out = {"timestampType"} if kind in {"text", "sequencefile"} else set[str]()
    assert [rows(store, key, left_out) for key in by_files] == [rows(store, key, left_out) for key in by_log]
    from_files(store, kept, Selected(TOPIC, 4, 6), 4)
    assert offsets(store, 4) == [4, 5]
    assert clean(store, 3, 4)


def test_files_by_day_and_bad_messages_are_read_in_the_order_of_offsets(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    copy_times(topic, 5, [1, 0, 1, -500_000])
    kept = pipeline_of(pipeline__name="filed", output__key__prefix="raw/", **BY_HOUR)
    run_once(topic, store, kept)
    from_files(store, kept, ALL)
    assert offsets(store, 2) == [0, 1, 2, 3, 4, 5, 6, 7]
    from_files(store, kept, Selected(TOPIC, AtTime.of(datetime(2026, 1, 1, 15, tzinfo=UTC))), 3)
    assert offsets(store, 3) == [0, 1, 2, 3, 4, 5, 6, 7]
    lost = KeptFiles(kept, store, TOPIC, 1)
    with pytest.raises(DataLossError, match="offsets 2 to 2 of"):
        list(lost.records(BatchWindow(TOPIC, "", 9, 2, 3)))


def rows(store: ObjectStore, key: str, left_out: set[str]) -> list[dict[str, Any]]:
    table = pq.read_table(io.BytesIO(store.get(key)))
    return list(table.drop_columns(list(left_out)).to_pylist())


def test_secors_files_tell_offsets_by_their_keys_and_double_nothing(store: ObjectStore) -> None:
    kept = pipeline_of(pipeline__name="secor", output__key__prefix="secor/", secor__generation="7")
    value = json.dumps({"timestamp": NOON_MS}).encode()
    root = "secor/orders"
    store.put(f"{root}/dt=1/7_0_{100:020}", sequence_file({100: value, 103: value}))
    store.put(f"{root}/dt=2/7_0_{100:020}", sequence_file({101: value, 103: value}))
    store.put(f"{root}/dt=2/7_0_{110:020}", sequence_file({110: value, 111: value}))
    store.put(f"{root}/dt=2/6_0_{90:020}", b"another generation's")
    by_field = pipeline_of(secor__message__parser__class="json")
    source = KeptFiles(kept, store, "orders", 1 << 20)
    list(Backfill(with_generation(by_field, 2), store, source, threads=1).run(Selected("orders")))
    keys = [key for key in listed(store) if "/2_0_" in key]
    assert sorted(offset for key in keys for offset in offsets_of(store, key)) == [100, 101, 103, 110, 111]
    with pytest.raises(ConfigError, match="do not show the times"):
        source.extents(Selected("orders", AtTime.of(datetime(2026, 1, 1, tzinfo=UTC))))
    with pytest.raises(DataLossError, match="offsets 50 to 99"):
        source.extents(Selected("orders", 50))
    store.put(f"{root}/dt=2/7_0_{120:020}.gz", b"no offsets\n")
    with pytest.raises(ConfigError, match="does not hold the offsets"):
        KeptFiles(kept, store, "orders", 1 << 20)
    with pytest.raises(ResourceNotFoundError):
        KeptFiles(kept, store, "others", 1 << 20)


def test_a_snapshot_of_the_log_knows_of_backfills(topic: StoredTopic) -> None:
    store = wrong(topic)
    backfill(topic, store, replaces=1)
    for generation in (1, 2):
        log = CommitLog(store, "out/", "kept", generation)
        log.read()
        for _ in range(1000):
            log.append("begin", "f")
        assert len(list(store.list(f"{log.folder}snapshots/"))) == 1
        assert CommitLog(store, "out/", "kept", generation).read() == log.state


def test_bad_messages_parsed_again_do_not_end_a_backfill_that_is_not_done(tmp_path: Path) -> None:
    topic, store = StoredTopic(tmp_path / "bad"), MemoryObjectStore()
    copy_times(topic, 0, [0, -500_000, 1])
    run_once(topic, store, RIGHT)
    with pytest.raises(TieredStoreError):
        backfill(topic, FaultyStore(store, lambda one: one.name == "delete" and one.keys != ()), replaces=1)
    assert offsets(store, 1) == offsets(store, 2) == [0, 2]
    redrive(topic, store, with_generation(RIGHT, 2))
    backfill(topic, store, replaces=1)
    assert (offsets(store, 1), offsets(store, 2)) == ([], [0, 2])
    assert clean(store, 1, 2)
    topic.close()


@pytest.fixture
def later_topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield records at noon, one, two and nine o'clock: the periods of the first three are over."""
    with hourly_topic(tmp_path, [0, 0, 1], [2, 9]) as topic:
        yield topic


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_who_sleeps_while_another_completes_a_replacement_changes_nothing_that_is_seen(
    later_topic: StoredTopic, step: int
) -> None:
    first = MemoryObjectStore()
    run_once(later_topic, first, RIGHT)
    sweep, fenced = replacements_of(later_topic, first, step), 0
    for at, inner, store in sweep.sleep(lambda inner: backfill(later_topic, inner, replaces=1)):
        try:
            backfill(later_topic, store, replaces=1)
        except FencedError:
            fenced += 1
        assert (offsets(inner, 1), offsets(inner, 2)) == ([], [0, 1, 2, 3, 4]), at
        assert set(successes(inner)) == {day(12), day(13), day(14)}, at
        assert clean(inner, 1, 2), at
    assert fenced * step > len(sweep.operations) // 2


def check_cancelled(topic: StoredTopic, store: ObjectStore) -> None:
    """Assert that generation 1 has all its records and marks, and that another generation can replace its files."""
    assert (offsets(store, 1), offsets(store, 2)) == ([0, 1, 2, 3, 4], [])
    assert set(successes(store)) == {day(12), day(13), day(14)}
    assert clean(store, 1, 2)
    backfill(topic, store, generation=3, replaces=1)
    assert (offsets(store, 1), offsets(store, 3)) == ([], [0, 1, 2, 3, 4])
    assert clean(store, 1, 2, 3)


@EACH
def test_a_generation_that_is_removed_before_it_replaced_anything_gives_all_back(
    later_topic: StoredTopic, step: int
) -> None:
    first, removed = MemoryObjectStore(), 0
    run_once(later_topic, first, RIGHT)
    for at, inner, store in replacements_of(later_topic, first, step).die():
        with pytest.raises(Killed):
            backfill(later_topic, store, replaces=1)
        if not is_replacing(inner):
            continue
        if commit_log_of(RIGHT, inner).read().positions[TOPIC, NUMBER].records == 0:
            with pytest.raises(ConfigError, match="first complete the backfill, by the same command"):
                drop(inner, 2)
            backfill(later_topic, inner, replaces=1)
            assert (offsets(inner, 1), offsets(inner, 2)) == ([], [0, 1, 2, 3, 4])
            assert clean(inner, 1, 2), at
        else:
            removed += 1
            drop(inner, 2)
            check_cancelled(later_topic, inner)
    assert removed


@EACH
def test_a_replacement_that_sleeps_while_its_generation_is_removed_deletes_nothing(
    later_topic: StoredTopic, step: int
) -> None:
    first, outcomes = MemoryObjectStore(), list[str]()
    run_once(later_topic, first, RIGHT)

    def remove(inner: ObjectStore) -> None:
        before = is_replacing(inner)
        try:
            drop(inner, 2)
        except ConfigError:
            outcomes.append("refused")
        else:
            outcomes.append("removed" if before else "removed later")

    for at, inner, store in replacements_of(later_topic, first, step).sleep(remove):
        with suppress(FencedError):
            backfill(later_topic, store, replaces=1)
        if outcomes[-1] == "removed":
            drop(inner, 2)  # cancel the replacement, which was announced after the first removal
            check_cancelled(later_topic, inner)
        elif outcomes[-1] == "refused":
            assert sorted({*offsets(inner, 1), *offsets(inner, 2)}) == [0, 1, 2, 3, 4], at
    assert "removed" in outcomes


def is_replacing(store: ObjectStore) -> bool:
    """Return True if generation 2 has begun to replace files, and generation 1 has not yet given up all its records."""
    old, new = (commit_log_of(with_generation(RIGHT, one), store).read() for one in (1, 2))
    return new.life is Life.FILLING and (old.giving_to == 2 or old.positions[TOPIC, NUMBER].records > 0)


def drop(store: ObjectStore, generation: int) -> None:
    list(drop_generation(with_generation(RIGHT, generation), store, dry_run=False))


def test_a_replacement_that_is_not_done_keeps_both_generations(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    with pytest.raises(TieredStoreError):
        backfill(topic, FaultyStore(store, lambda one: one.name == "publish"), replaces=1)
    with pytest.raises(ConfigError, match="generation 2 is replacing files of generation 1: first complete"):
        drop(store, 1)
    with pytest.raises(ConfigError, match="generation 2 has an unfinished backfill: first complete"):
        run_once(topic, store, with_generation(RIGHT, 3), take_over=2)
    backfill(topic, store, replaces=1)
    assert (offsets(store, 1), offsets(store, 2)) == ([], [0, 1, 2, 3, 4])
    assert clean(store, 1, 2)


@pytest.mark.parametrize("sleeper", ["redrive", "backfill"])
def test_bad_messages_are_redriven_or_replaced_and_never_both(topic: StoredTopic, sleeper: str) -> None:
    store, strict = MemoryObjectStore(), pipeline_of(secor__message__parser__class="json")
    third = with_generation(RIGHT, 3)
    run_once(topic, store, strict)
    run_once(topic, store, third, take_over=1)
    slow = ScriptedStore(store)
    if sleeper == "redrive":
        # The redrive has looked for replacements, and is about to commit its files.
        slow.on("put", "*/kept/3/commits/*", lambda _: backfill(topic, store, replaces=1), skip=1, times=1)
        with pytest.raises(FencedError):
            redrive(topic, slow, third)
    else:
        # The backfill has looked for redriven messages, and is about to announce the replacement.
        slow.on("put", "*/kept/1/commits/*", lambda _: redrive(topic, store, third), times=1)
        with pytest.raises(ConfigError, match="were written by a later generation"):
            backfill(topic, slow, replaces=1)
        drop(store, 2)
    redrive(topic, store, third)
    assert sorted([*offsets(store, 2), *offsets(store, 3)]) == [0, 1, 2, 3, 4]
    assert clean(store, 1, 2, 3)


@pytest.mark.parametrize("skip", [0, 1])
def test_of_two_backfills_at_once_only_one_replaces_files(topic: StoredTopic, skip: int) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)

    def begin_another(_: Operation) -> None:
        with pytest.raises(Killed):
            backfill(topic, ScriptedStore(store).on("prepare", do=Killed()), replaces=1)

    # Generation 4 has found no other replacement. It is about to fence generation 1, or to announce its replacement.
    slow = ScriptedStore(store).on("put", "*/kept/1/commits/*", begin_another, skip=skip, times=1)
    with pytest.raises((ConfigError, FencedError)):
        backfill(topic, slow, generation=4, replaces=1)
    with pytest.raises(ConfigError, match="generation 2 is replacing files of generation 1"):
        backfill(topic, store, generation=4, replaces=1)
    backfill(topic, store, replaces=1)
    assert (offsets(store, 1), offsets(store, 2), offsets(store, 4)) == ([], [0, 1, 2, 3, 4], [])
    drop(store, 4)
    assert clean(store, 1, 2, 4)


def test_files_that_a_third_generation_replaced_are_not_written_again(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    run_once(topic, store, RIGHT)
    # The backfill dies before its last entry in the log of generation 1.
    dying = ScriptedStore(store).on("delete", "*.parquet", Killed(), moment="after")
    with pytest.raises(Killed):
        backfill(topic, dying, replaces=1)
    backfill(topic, store, generation=4, replaces=2)
    with suppress(ConfigError):
        backfill(topic, store, replaces=1)
    assert (offsets(store, 1), offsets(store, 2), offsets(store, 4)) == ([], [], [0, 1, 2, 3, 4])
    assert clean(store, 1, 2, 4)


@pytest.mark.parametrize("taken", ["replaced", "redriven"])
def test_an_unfinished_backfill_of_offsets_that_another_generation_took_is_removed(
    topic: StoredTopic, taken: str
) -> None:
    store, strict = MemoryObjectStore(), pipeline_of(secor__message__parser__class="json")
    third = with_generation(RIGHT, 3)
    run_once(topic, store, strict)
    if taken == "redriven":
        run_once(topic, store, third, take_over=1)
    with pytest.raises(Killed):
        backfill(topic, ScriptedStore(store).on("put", "*/kept/1/commits/*", do=Killed()), replaces=1)
    if taken == "redriven":
        redrive(topic, store, third)
    else:
        backfill(topic, store, generation=4, replaces=1)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"first remove generation 2 \(pipeline rm\), .* another --generation"):
            backfill(topic, store, replaces=1)
    drop(store, 2)
    if taken == "replaced":
        backfill(topic, store, generation=5, replaces=4)
        assert (offsets(store, 1), offsets(store, 4), offsets(store, 5)) == ([], [], [0, 1, 2, 3, 4])
    assert clean(store, 1, 2, 3, 4, 5)
