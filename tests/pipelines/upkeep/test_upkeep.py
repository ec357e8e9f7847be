"""Upkeep of an output: quarantined messages parsed again, dropped generations, and leftovers of killed runs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from tests.pipelines.upkeep.test_backfill import backfill
from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    commit_unpublished,
    last_entry,
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    redrive,
    run_once,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CommitLogCorruptError, ConfigError, FencedError, PreparedGoneError, TieredStoreError
from tieredstore.ops.steps import Outcome
from tieredstore.pipelines import Entry, Parts, Pipeline, Runner
from tieredstore.pipelines.log.commit_log import CommitLog, changes_since
from tieredstore.pipelines.log.entries import Entry as LogEntry
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.recipes import naming_of
from tieredstore.pipelines.upkeep.comparison import Against
from tieredstore.pipelines.upkeep.deletion import collect_garbage, drop_generation
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, Selected

SMALL = pipeline_of(secor__max__file__size__bytes="9000", secor__offsets__per__partition="150")
NEXT = pipeline_of(secor__generation="2", secor__max__file__size__bytes="20000")
STRICT = pipeline_of(secor__message__parser__class="regex", message__timestamp__input__pattern=r"(\d{13})")
"""Pipeline whose messages are all bad, because no value contains a number that matches the pattern."""
LENIENT = pipeline_of(secor__max__file__size__bytes="20000")
DAY_MS = 86_400_000


def refile(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline) -> list[Entry]:
    """Redrive the quarantined messages; return the entries that this adds to the commit log."""
    return [one.entry for one in redrive(topic, store, pipeline) if one.entry is not None]


def take_over(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline = NEXT, generation: int = 1) -> list[Entry]:
    return run_once(topic, store, pipeline, take_over=generation)


def aside(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("out/_tieredstore/kept/1/quarantine/")]


def unpublished(operation: Operation) -> bool:
    """Return True if the operation publishes a data file."""
    return operation.name == "publish" and "/quarantine/" not in operation.keys[0]


def check_each_failure(
    prepare: Callable[[], ObjectStore], work: Callable[[ObjectStore], object], moment: Moment
) -> None:
    """Let ``work`` fail at each operation in turn, and repeat it; assert that the files are as without a failure."""
    undisturbed = prepare()
    work(undisturbed)
    for _, inner, store in OperationSweep(prepare, work).fail(moment):
        try:
            work(store)
        except TieredStoreError:
            work(inner)
        assert listed(inner) == listed(undisturbed)
        assert list(verify_output(SMALL, inner)) == []


def test_bad_messages_are_filed_once_by_settings_that_know_them(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, STRICT)
    assert listed_offsets(store) == []
    assert refile(topic, store, STRICT) == []
    (before,) = aside(store)
    assert offsets_of(store, before) == list(range(300))
    (entry,) = refile(topic, store, LENIENT)
    assert entry.removed == (before,)
    assert aside(store) == []
    assert listed_offsets(store) == list(range(300))
    assert list(verify_output(LENIENT, store)) == []
    assert refile(topic, store, LENIENT) == []
    progress = commit_log_of(LENIENT, store).read().positions[TOPIC, NUMBER]
    assert (progress.records, progress.next_offset) == (300, 300)
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, LENIENT)
    assert listed_offsets(store) == list(range(350))


def test_messages_that_are_still_bad_stay_in_quarantine_with_their_reason(
    topic: StoredTopic, store: ObjectStore
) -> None:
    run_once(topic, store, STRICT)
    (before,) = aside(store)
    (same,) = redrive(topic, store, STRICT)
    assert (same.entry, same.key, same.window.records, same.window.quarantined) == (None, before, 0, 300)
    assert sorted(same.reasons) == list(range(300))
    # The records' times are 0 to 299 ms: 0 is not a valid time.
    partly = pipeline_of(secor__message__parser__class="kafka-timestamp")
    (one,) = redrive(topic, store, partly)
    entry = one.entry
    assert entry is not None
    assert [(window.records, window.quarantined) for window in entry.windows] == [(299, 1)]
    (rest,) = aside(store)
    assert (one.key, list(one.reasons), one.window) == (rest, [0], entry.windows[0])
    assert rest.endswith(f"1_{NUMBER}_{0:020}.r1.parquet")
    assert offsets_of(store, rest) == [0]
    assert "time" in pq.read_table(io.BytesIO(store.get(rest))).column("reason")[0].as_py()
    assert list(verify_output(partly, store)) == []
    refile(topic, store, LENIENT)
    assert aside(store) == []
    assert listed_offsets(store) == list(range(300))
    assert list(verify_output(LENIENT, store)) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_redriving_may_fail_at_each_operation(topic: StoredTopic, moment: Moment) -> None:
    before = MemoryObjectStore()
    run_once(topic, before, STRICT)

    def work(inner: ObjectStore) -> None:
        refile(topic, inner, LENIENT)

    check_each_failure(copies_of(before), work, moment)


def test_redriven_files_that_the_store_dropped_are_written_again(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, STRICT)
    with pytest.raises(TieredStoreError):
        refile(topic, FaultyStore(store, unpublished), LENIENT)
    for file in last_entry(LENIENT, store).files[1:]:
        store.discard(file.prepared)
    run_once(topic, store, LENIENT)
    assert listed_offsets(store) == list(range(300))
    assert aside(store) == []
    assert list(verify_output(LENIENT, store)) == []


BY_TIME = pipeline_of(secor__message__parser__class="kafka-timestamp", secor__generation="2")
"""The records' times are 0 to 299 ms: 0 is not a valid time."""


def test_bad_messages_of_generations_that_were_taken_over_are_filed_by_the_next(
    topic: StoredTopic, store: ObjectStore
) -> None:
    run_once(topic, store, STRICT)
    (before,) = aside(store)
    take_over(topic, store, BY_TIME)
    with pytest.raises(ConfigError, match="generation 2 took it over: run generation 2"):
        redrive(topic, store, STRICT)
    with Runner(BY_TIME, Parts(store, topic.manager), threads=1) as runner:
        assert [(one.generation, one.file.key) for one in runner.find_bad_messages()] == [(1, before)]
    (one,) = redrive(topic, store, BY_TIME)
    assert one.entry is not None
    assert (one.entry.removed, one.entry.other) == ((before,), 1)
    assert (one.window.records, one.window.quarantined) == (299, 1)
    assert aside(store) == []
    third = pipeline_of(secor__generation="3")
    take_over(topic, store, third, generation=2)
    assert [one.window.records for one in redrive(topic, store, third)] == [1]
    assert redrive(topic, store, third) == []
    assert listed_offsets(store) == list(range(300))
    for pipeline in (STRICT, BY_TIME, third):
        assert list(verify_output(pipeline, store)) == []
        its = pipeline_of(secor__generation=str(pipeline.own.generation))
        assert list(Against(its, store, topic.manager).problems()) == []
    # The log still has the entry of the takeover, so a repeated takeover has no effect.
    topic.copy_plain(300, 50, size=100)
    take_over(topic, store, third, generation=2)
    assert listed_offsets(store) == list(range(350))
    with pytest.raises(ConfigError, match=r"offsets 0 to 299 .* were written by a later generation"):
        backfill(topic, store, pipeline=LENIENT, generation=7, replaces=1)
    kept = KeptFiles(pipeline_of(), store, TOPIC, 1 << 20)
    batches: list[Any] = list(kept.records(*kept.extents(Selected(TOPIC))))
    assert sorted(offset for batch in batches for offset in batch.column("offset").to_pylist()) == list(range(300))


@pytest.mark.parametrize("moment", ["before", pytest.param("during", marks=pytest.mark.soak), "after"])
def test_redriving_what_was_taken_over_may_fail_at_each_operation(topic: StoredTopic, moment: Moment) -> None:
    before = MemoryObjectStore()
    run_once(topic, before, STRICT)
    take_over(topic, before)

    def work(inner: ObjectStore) -> None:
        refile(topic, inner, NEXT)
        assert listed_offsets(inner) == list(range(300))
        assert aside(inner) == []
        assert list(verify_output(NEXT, inner)) == []

    check_each_failure(copies_of(before), work, moment)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_who_redrives_what_was_taken_over_may_die_at_each_operation(
    topic: StoredTopic, moment: Literal["before", "after"]
) -> None:
    before = MemoryObjectStore()
    run_once(topic, before, STRICT)
    take_over(topic, before)
    for _, inner, store in OperationSweep(copies_of(before), lambda store: refile(topic, store, NEXT)).die(moment):
        with pytest.raises(Killed):
            refile(topic, store, NEXT)
        assert len(listed_offsets(inner)) == len(set(listed_offsets(inner)))
        refile(topic, inner, NEXT)
        assert listed_offsets(inner) == list(range(300))
        assert aside(inner) == []
        for pipeline in (SMALL, NEXT):
            assert list(verify_output(pipeline, inner)) == []


def test_redriving_a_generation_that_has_not_begun_does_not_begin_it(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, STRICT)
    assert redrive(topic, store, NEXT) == []
    take_over(topic, store)
    assert len(refile(topic, store, NEXT)) == 1
    assert listed_offsets(store) == list(range(300))


@pytest.mark.parametrize("end", ["take over", "drop"])
def test_whoever_begins_to_redrive_before_the_generation_ends_writes_nothing_behind_the_end(
    topic: StoredTopic, store: ObjectStore, end: str
) -> None:
    run_once(topic, store, STRICT)
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as old:
        old.begin()
        if end == "take over":
            take_over(topic, store)
        else:
            with pytest.raises(TieredStoreError):  # killed before it deletes the messages
                list(drop_generation(SMALL, FaultyStore(store, lambda one: one.name == "delete"), dry_run=False))
        with pytest.raises(FencedError):
            list(old.redrive())
    assert listed_offsets(store) == []
    if end == "take over":
        refile(topic, store, NEXT)
        assert listed_offsets(store) == list(range(300))
        assert list(verify_output(NEXT, store)) == []


def test_a_generation_goes_on_where_another_is_sealed(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as old:
        list(old.run_once())
        topic.copy_plain(300, 50, size=100)
        entries = take_over(topic, store)
        with pytest.raises(FencedError):
            old.driver.commit([])
    assert [(window.start, window.stop) for entry in entries for window in entry.windows] == [(300, 350)]
    with pytest.raises(ConfigError, match="generation 2 took it over"):
        run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(350))
    assert list(verify_output(SMALL, store)) == []
    assert list(verify_output(NEXT, store)) == []
    topic.copy_plain(350, 50, size=100)
    take_over(topic, store)
    run_once(topic, store, NEXT)
    assert listed_offsets(store) == list(range(400))
    third = pipeline_of(secor__generation="3")
    with pytest.raises(ConfigError, match="generation 2 took it over"):
        take_over(topic, store, third)
    with pytest.raises(ConfigError, match="nothing to take over"):
        take_over(topic, store, third, generation=7)
    run_once(topic, store, third)
    with pytest.raises(ConfigError, match="begun without taking over generation 2"):
        take_over(topic, store, third, generation=2)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_taking_over_may_die_at_each_operation(topic: StoredTopic, moment: Literal["before", "after"]) -> None:
    before = MemoryObjectStore()
    run_once(topic, before, SMALL)
    for _, inner, store in OperationSweep(copies_of(before), lambda store: take_over(topic, store)).die(moment):
        with pytest.raises(Killed):
            take_over(topic, store)
        take_over(topic, inner)
        assert listed_offsets(inner) == list(range(300))


def test_a_dropped_generation_is_gone_for_good_and_nothing_else_is(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    run_once(topic, store, NEXT)
    others = [key for key in listed(store) if "/2_" in key]
    stranger = f"out/{TOPIC}/base_offset=0/1_9_{0:020}.parquet"
    store.put(stranger, b"x")
    going = list(drop_generation(SMALL, store, dry_run=True))
    assert len(going) == len(listed(store)) - len(others) - 1
    assert commit_log_of(SMALL, store).read().closed == ""
    assert list(drop_generation(SMALL, store, dry_run=False)) == going
    assert listed(store) == sorted([*others, stranger])
    with pytest.raises(ConfigError, match="generation 1 was dropped"):
        run_once(topic, store, SMALL)
    assert list(drop_generation(SMALL, store, dry_run=False)) == []
    assert [(one.kind, one.subject) for one in verify_output(SMALL, store)] == [("stranger", stranger)]
    assert [change.kind for change in changes_since(commit_log_of(SMALL, store), -1)][-1] == "drop"
    with pytest.raises(ConfigError, match="nothing to remove"):
        list(drop_generation(pipeline_of(secor__generation="5"), store, dry_run=False))


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_dropping_may_fail_at_each_operation(topic: StoredTopic, moment: Moment) -> None:
    before = MemoryObjectStore()
    run_once(topic, before, SMALL)

    def work(inner: ObjectStore) -> None:
        list(drop_generation(SMALL, inner, dry_run=False))

    check_each_failure(copies_of(before), work, moment)


def test_what_is_committed_never_appears_once_it_is_dropped(topic: StoredTopic, store: ObjectStore) -> None:
    files = commit_unpublished(topic, store, SMALL)
    list(drop_generation(SMALL, store, dry_run=False))
    for file in files:
        with pytest.raises(PreparedGoneError):
            store.publish(file.prepared)
    assert listed(store) == []


def test_gc_takes_what_nobody_will_publish_and_leaves_what_is_committed(topic: StoredTopic, store: ObjectStore) -> None:
    commit_unpublished(topic, store, SMALL)
    key = f"out/{TOPIC}/base_offset=0/1_7_{0:020}.parquet"
    zombie = store.prepare(key, b"of a task that was killed", staging_prefix=naming_of(SMALL).staging_prefix)
    later = ScriptedStore(store).change("now_ms", change=lambda now_ms: now_ms and now_ms + 2 * DAY_MS)
    young = list(collect_garbage(SMALL, store, min_age_ms=DAY_MS, dry_run=False))
    assert {step.outcome for step in young} == {Outcome.YOUNG, Outcome.COMMITTED}
    for apply in (False, True):
        steps = list(collect_garbage(SMALL, later, min_age_ms=DAY_MS, dry_run=not apply))
        assert [step.outcome for step in steps].count(Outcome.DELETED) == 1
    with pytest.raises(PreparedGoneError):
        store.publish(zombie)
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))
    assert list(collect_garbage(SMALL, later, min_age_ms=DAY_MS, dry_run=False)) == []
    with pytest.raises(ConfigError, match="at least an hour"):
        list(collect_garbage(SMALL, store, min_age_ms=5, dry_run=False))


@pytest.mark.parametrize("below", ["out/", f"{TOPIC}/", f"{TOPIC}/more/"])
def test_gc_leaves_what_a_pipeline_with_a_root_below_has_committed(
    topic: StoredTopic, store: ObjectStore, below: str
) -> None:
    outer = pipeline_of(pipeline__name="outer", output__key__prefix="")
    run_once(topic, store, outer)
    outside = set(listed(store, ""))
    inner = pipeline_of(secor__max__file__size__bytes="9000", output__key__prefix=below)
    commit_unpublished(topic, store, inner)
    # The records have been deleted by retention, so the uploads are their only copy.
    for metadata in topic.copied:
        topic.manager.delete_log_segment_data(metadata)
    later = ScriptedStore(store).change("now_ms", change=lambda now_ms: now_ms and now_ms + 2 * DAY_MS)
    assert list(collect_garbage(outer, later, min_age_ms=DAY_MS, dry_run=False)) == []
    run_once(topic, store, inner)
    written = sorted(set(listed(store, below)) - outside)
    assert sorted(offset for key in written for offset in offsets_of(store, key)) == list(range(300))


def test_changes_are_told_entry_by_entry(topic: StoredTopic, store: ObjectStore) -> None:
    entries = run_once(topic, store, SMALL)
    log = commit_log_of(SMALL, store)
    changed = list(changes_since(log, -1))
    assert sorted(file.key for change in changed for file in change.added) == listed(store)
    assert list(changes_since(log, entries[-1].number)) == []


def test_entries_with_other_fields_are_refused_and_those_of_before_are_read() -> None:
    plain = LogEntry(3, "begin", "w", "f", ())
    assert b"removed" not in plain.to_bytes()
    assert LogEntry.from_bytes(plain.to_bytes(), "k") == plain
    seal = LogEntry(4, "seal", "w", "f", (), removed=("a",), other=7)
    assert LogEntry.from_bytes(seal.to_bytes(), "k") == seal
    for damaged in (b'"removed":[7]', b'"removed":"a"'):
        with pytest.raises(CommitLogCorruptError):
            LogEntry.from_bytes(seal.to_bytes().replace(b'"removed":["a"]', damaged), "k")
    with pytest.raises(CommitLogCorruptError, match="windows"):
        LogEntry.from_bytes(seal.to_bytes().replace(b',"windows":[]', b""), "k")
    store = MemoryObjectStore()
    log = CommitLog(store, "", "p", 1)
    log.read()
    for _ in range(999):
        log.append("begin", "f")
    log.append("seal", "f", other=7)
    again = CommitLog(store, "", "p", 1).read()
    assert (again.closed, again.other, again.number) == ("seal", 7, 999)
