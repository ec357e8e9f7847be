"""Directories of past periods are marked complete; late records are still filed, and reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from tests.pipelines.upkeep.test_backfill import RIGHT, backfill, clean, offsets
from tests.support.pipelines.pipeline_runs import (
    TOPIC,
    listed,
    listed_offsets,
    pipeline_of,
    run_once,
    verify_output,
)
from tests.support.records.hourly_topics import (
    BY_HOUR,
    HOUR_MS,
    HOURLY,
    NOON_MS,
    copy_times,
    day,
    hourly_topic,
    successes,
)
from tests.support.records.partition_history import PARTITION
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore, LateStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.problems import Problem, ProblemKind
from tieredstore.errors import ConfigError, FencedError, TieredStoreError
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.filing.directories import TimeDirectories
from tieredstore.pipelines.log.commit_log import CommitLog, Progress, changes_since
from tieredstore.pipelines.log.entries import Entry
from tieredstore.pipelines.parser_table import parser_of
from tieredstore.pipelines.run.finalizing import add_partition, watermarks
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.testing.batches import Record, build_batch

NEXT = pipeline_of(**BY_HOUR, secor__generation="2")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield records at noon, one, two and four o'clock: the periods before three are over."""
    with hourly_topic(tmp_path, [0, 0, 1, 2, 4]) as topic:
        yield topic


def run(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline = HOURLY, *, take_over: int | None = None) -> None:
    run_once(topic, store, pipeline, take_over=take_over)


def kinds(store: ObjectStore, pipeline: Pipeline = HOURLY) -> list[str]:
    return [entry.kind for entry in commit_log_of(pipeline, store).entries()]


def test_past_directories_are_finalized_oldest_first_and_late_records_are_reported(
    topic: StoredTopic, store: ObjectStore
) -> None:
    run(topic, store)
    # At four o'clock, with a delay of an hour, all earlier periods are over.
    assert successes(store) == {day(12): (1, 2, 2), day(13): (1, 1, 2), day(14): (1, 1, 2)}
    log = commit_log_of(HOURLY, store)
    assert kinds(store) == ["begin", "batch", "finalize", "published"]
    assert log.entry(2).directories == (day(12), day(13), day(14))
    assert list(verify_output(HOURLY, store)) == []
    (statements,) = store.list("out/_tieredstore/kept/1/hive/")
    first, *_, last = store.get(statements.key).decode().splitlines()
    assert first == "ALTER TABLE `logs`.`events` ADD IF NOT EXISTS PARTITION (`dt`='2026-01-01', `hr`='12');"
    assert last.endswith("`hr`='14');")
    run(topic, store)
    assert kinds(store)[4:] == ["begin"]
    copy_times(topic, 5, [1, 5])
    run(topic, store)
    assert kinds(store)[5:] == ["begin", "batch", "published"]
    assert successes(store)[day(13)] == (2, 2, 6)
    late_change, *_ = list(changes_since(log, 2))
    assert (late_change.kind, late_change.directories) == ("batch", (day(13),))


def test_nothing_is_finalized_unless_asked_and_late_records_are_told_all_the_same(
    topic: StoredTopic, store: ObjectStore
) -> None:
    quiet = pipeline_of(**(BY_HOUR | {"pipeline__finalize": "false"}))
    run(topic, store, quiet)
    assert successes(store) == {}
    with Runner(quiet, Parts(store, topic.manager)) as runner:
        assert [one.path for one in runner.find_unfinalized()] == [day(12), day(13), day(14)]
        assert successes(store) == {}
        assert [(one.files, one.records, one.statement) for one in runner.finalize()][:1] == [(1, 2, None)]
    copy_times(topic, 5, [0])
    run(topic, store, quiet)
    assert successes(store)[day(12)] == (2, 3, commit_log_of(quiet, store).read().written)


def test_an_unwritten_partition_whose_manifest_is_damaged_holds_back_its_topic(
    topic: StoredTopic, store: ObjectStore
) -> None:
    """Its records may be of any period."""
    run(topic, store, quiet := pipeline_of(**(BY_HOUR | {"pipeline__finalize": "false"})))
    before, record = {info.key for info in topic.store.list()}, Record(b"v", timestamp_ms=NOON_MS + 4 * HOUR_MS)
    topic.copy(0, [build_batch([record])], partition=replace(PARTITION, partition=PARTITION.partition + 1))
    (key,) = (one.key for one in topic.store.list() if one.key not in before and one.key.endswith("rsm-manifest"))
    manifest = topic.store.get(key)
    topic.store.put(key, b"{")
    with Runner(quiet, Parts(store, topic.manager)) as runner:
        assert runner.find_unfinalized() == runner.finalize() == []
        topic.store.put(key, manifest)
        runner.renew()
        assert runner.finalize() == []
    run(topic, store, quiet)
    with Runner(quiet, Parts(store, topic.manager)) as runner:
        assert [one.path for one in runner.finalize()] == [day(12), day(13), day(14)]


class Prepared:
    """Store with finalized hours from noon to two. The bucket has a late record and a later hour, not yet written."""

    def __init__(self, topic: StoredTopic) -> None:
        first = MemoryObjectStore()
        run(topic, first)
        self.store = copies_of(first)
        copy_times(topic, 5, [1, 6])
        whole = self.store()
        run(topic, whole)
        self.expected = {path: said[:2] for path, said in successes(whole).items()}
        assert self.expected == {day(12): (1, 2), day(13): (2, 2), day(14): (1, 1), day(16): (1, 1)}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_each_operation_may_fail_and_the_driver_or_the_next_run_completes(topic: StoredTopic, moment: Moment) -> None:
    prepared = Prepared(topic)
    sweep = OperationSweep(prepared.store, lambda store: run(topic, store))
    for number, inner, store in sweep.fail(moment):
        with Runner(HOURLY, Parts(store, topic.manager), threads=1) as runner:
            try:
                list(runner.run_once())
            except TieredStoreError:
                if number % 2:
                    runner.resume()
                    list(runner.run_once())
        run(topic, inner)
        check_whole(inner, prepared.expected)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_may_die_at_each_operation(topic: StoredTopic, moment: Literal["before", "after"]) -> None:
    prepared = Prepared(topic)
    sweep = OperationSweep(prepared.store, lambda store: run(topic, store))
    for _, inner, store in sweep.die(moment):
        with pytest.raises(Killed):
            run(topic, store)
        run(topic, inner)
        check_whole(inner, prepared.expected)


def check_whole(store: ObjectStore, expected: dict[str, tuple[int, int]]) -> None:
    assert {path: said[:2] for path, said in successes(store).items()} == expected
    assert list(verify_output(HOURLY, store)) == []
    numbers = {entry.number: entry for entry in commit_log_of(HOURLY, store).entries()}
    for path, (_, _, number) in successes(store).items():
        assert path in numbers[number].directories
    finalized = {path for entry in numbers.values() if entry.kind == "finalize" for path in entry.directories}
    assert finalized == set(expected)
    statements = [store.get(info.key).decode() for info in store.list("out/_tieredstore/kept/1/hive/")]
    assert sum(text.count("ALTER TABLE") for text in statements) == len(expected)


def test_a_driver_goes_on_after_an_answer_was_lost(topic: StoredTopic, store: ObjectStore) -> None:
    commit = f"out/_tieredstore/kept/1/commits/{2:020}.json"
    faulty = FaultyStore(
        store, lambda operation: (operation.name, operation.keys) == ("put", (commit,)), moment="after"
    )
    with Runner(HOURLY, Parts(faulty, topic.manager), threads=1) as runner:
        with pytest.raises(TieredStoreError):
            list(runner.run_once())
        assert successes(store) == {}
        # The driver marks nothing while it does not know whether the store has the entry.
        assert runner.driver.finalize({TOPIC: NOON_MS * 2}) == []
        runner.resume()
        assert sorted(successes(store)) == [day(12), day(13), day(14)]
        run(topic, store)
        with pytest.raises(FencedError):
            runner.driver.finalize({TOPIC: NOON_MS * 2})
    assert day(16) not in successes(store)


def test_what_is_not_wholly_told_is_never_marked_as_published(topic: StoredTopic, store: ObjectStore) -> None:
    faulty = FaultyStore(store, lambda one: one.name == "put" and one.keys[0].endswith("hr=13/_SUCCESS"))
    with Runner(HOURLY, Parts(faulty, topic.manager), threads=1) as runner:
        with pytest.raises(TieredStoreError):
            list(runner.run_once())
        runner.driver.mark_published()
        assert kinds(store)[-1] == "finalize"
        faulty.fail_at = None
        assert runner.finalize() == []
        assert sorted(successes(store)) == [day(12), day(13), day(14)]
        runner.driver.mark_published()
    assert kinds(store)[-1] == "published"


def test_a_generation_that_takes_over_finalizes_what_went_before(topic: StoredTopic, store: ObjectStore) -> None:
    run(topic, store)
    copy_times(topic, 5, [1, 4, 7])
    with Runner(NEXT, Parts(store, topic.manager)) as runner:
        assert runner.finalize() == []
    run(topic, store, NEXT, take_over=1)
    # The previous generation had already written a file for four o'clock.
    assert successes(store)[day(16)][:2] == (2, 2)
    assert successes(store)[day(13)][:2] == (2, 2)
    assert "finalize" in kinds(store, NEXT)
    list(drop_generation(NEXT, store, dry_run=False))
    assert sorted(successes(store)) == [day(12), day(14)]
    list(drop_generation(HOURLY, store, dry_run=False))
    assert listed(store) == []


def test_a_generation_beside_another_finalizes_for_itself(topic: StoredTopic, store: ObjectStore) -> None:
    run(topic, store)
    run(topic, store, NEXT)
    list(drop_generation(HOURLY, store, dry_run=False))
    assert sorted(successes(store)) == [day(12), day(13), day(14)]
    with (
        pytest.raises(ConfigError, match="was dropped"),
        Runner(HOURLY, Parts(store, topic.manager)) as runner,
    ):
        runner.find_unfinalized()


@pytest.mark.parametrize("dies", [False, True])
def test_a_drop_keeps_the_mark_that_another_generation_adds_before_the_delete(
    topic: StoredTopic, store: ObjectStore, *, dies: bool
) -> None:
    run(topic, store)
    beside = ScriptedStore(store).on("delete", "*_SUCCESS", lambda _: run(topic, store, NEXT), times=1)
    if dies:  # killed right after the delete; the next drop completes the job
        with pytest.raises(Killed):
            list(drop_generation(HOURLY, beside.on("delete", do=Killed(), moment="after", times=1), dry_run=False))
        assert sorted(successes(store)) == [day(13), day(14)]
    list(drop_generation(HOURLY, beside, dry_run=False))
    assert sorted(successes(store)) == [day(12), day(13), day(14)]
    assert list(verify_output(NEXT, store)) == list(verify_output(HOURLY, store)) == []
    list(drop_generation(NEXT, store, dry_run=False))
    assert listed(store) == []


def log_of(partition: int, end: int, *, live: bool = True) -> PartitionLog:
    return PartitionLog("t", partition, Uuid(bytes(16)), None, 0, 0, end, 0 if live else None)


def written(next_offset: int, time_ms: int) -> Progress:
    return Progress(str(Uuid(bytes(16))), next_offset, time_ms, 1, next_offset)


@pytest.mark.parametrize(
    ("logs", "positions", "expected"),
    [
        # The slowest partition decides.
        ([log_of(0, 10), log_of(1, 10)], {0: written(9, NOON_MS), 1: written(10, NOON_MS + 5)}, NOON_MS),
        # A partition that is idle and completely read does not delay the others.
        ([log_of(0, 10), log_of(1, 10)], {0: written(10, 5), 1: written(9, NOON_MS)}, NOON_MS),
        ([log_of(0, 10)], {0: written(10, 5)}, NOON_MS + HOUR_MS),
        # A partition with unread records delays the others. So does a partition without a broker, because more records
        # may come.
        ([log_of(0, 11)], {0: written(10, 5)}, 5),
        ([log_of(0, 10, live=False)], {0: written(10, 5)}, 5),
        # A partition without written records delays the others unless it is empty.
        ([log_of(0, 10), log_of(1, 3)], {0: written(10, NOON_MS)}, -1),
        ([log_of(0, 10), log_of(1, 0)], {0: written(9, NOON_MS)}, NOON_MS),
        # A time in the future is ignored.
        ([log_of(0, 11)], {0: written(10, NOON_MS * 2)}, NOON_MS + HOUR_MS),
        # A deleted or truncated partition counts with its last timestamp.
        ([], {0: written(10, 5)}, 5),
        ([log_of(0, 9), log_of(1, 10)], {0: written(10, 5), 1: written(10, NOON_MS)}, 5),
    ],
)
def test_watermarks(logs: list[PartitionLog], positions: dict[int, Progress], expected: int) -> None:
    limits = watermarks(
        LogSnapshot({log.where: log for log in logs}),
        {("t", number): progress for number, progress in positions.items()},
        now_ms=NOON_MS + HOUR_MS,
        delay_ms=1000,
        begins_elsewhere=False,
    )
    assert limits == {"t": expected - 1000}


@pytest.mark.parametrize("logs", [[log_of(0, 10)], [log_of(0, 10), log_of(1, 0)]])
def test_a_damaged_segment_of_a_partition_without_progress_may_have_records_of_any_time(
    logs: list[PartitionLog],
) -> None:
    """The partition has no log, or an empty one at the broker."""
    damaged = RemoteLogSegmentId(TopicIdPartition(Uuid(bytes(16)), "t", 1), Uuid.random())
    snapshot = LogSnapshot({log.where: log for log in logs}, unreadable=(Problem(ProblemKind.DAMAGED, damaged, 0, ""),))
    positions = {("t", 0): written(10, NOON_MS)}
    assert watermarks(snapshot, positions, now_ms=NOON_MS, delay_ms=0, begins_elsewhere=False) == {"t": -1}


@pytest.mark.parametrize(
    ("directories", "path", "ends"),
    [
        (TimeDirectories(), "dt=2026-01-01", "2026-01-02T00:00Z"),
        (TimeDirectories(hours=True), "dt=2026-01-01/hr=23", "2026-01-02T00:00Z"),
        (TimeDirectories(hours=True, minutes=True), "dt=2026-01-01/hr=23/min=58", "2026-01-01T23:59Z"),
        (TimeDirectories(formats=("%Y-%m", "%H", "%M")), "dt=2026-12", "2027-01-01T00:00Z"),
        (TimeDirectories(formats=("%Y", "%H", "%M")), "dt=2026", "2027-01-01T00:00Z"),
        (TimeDirectories(formats=("%Y/%m", "%H", "%M")), "dt=2026/11", "2026-12-01T00:00Z"),
        # The day has 25 hours, because the clocks repeat one.
        (TimeDirectories("Europe/Berlin"), "dt=2025-10-26", "2025-10-26T23:00Z"),
        (TimeDirectories("Europe/Berlin", hours=True), "dt=2025-10-26/hr=02", "2025-10-26T02:00Z"),
        # The hour has 90 minutes, because the clocks repeat half an hour.
        (TimeDirectories("Australia/Lord_Howe", hours=True), "dt=2026-04-05/hr=01", "2026-04-04T15:30Z"),
        (TimeDirectories("Antarctica/Troll", hours=True), "dt=2025-10-26/hr=01", "2025-10-26T02:00Z"),
        # Midnight is skipped.
        (TimeDirectories("Africa/Cairo"), "dt=2026-04-23", "2026-04-23T22:00Z"),
        (TimeDirectories(), "base_offset=0", None),
        (TimeDirectories(), "dt=2026-01-01/hr=00", None),
        (TimeDirectories(formats=("%m-%d", "%H", "%M")), "dt=01-01", None),
        (TimeDirectories(formats=("%Y-%d", "%H", "%M")), "dt=2026-01", None),
        (TimeDirectories(), "dt=9999-12-31", None),
    ],
)
def test_when_a_directory_is_over(directories: TimeDirectories, path: str, ends: str | None) -> None:
    assert directories.end_ms(path) == (None if ends is None else datetime.fromisoformat(ends).timestamp() * 1000)


def test_each_minute_lies_before_the_end_of_its_directory_and_not_long() -> None:
    for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe"):
        directories = TimeDirectories(zone, hours=True)
        for minute in range(29_400_000, 29_400_000 + 527_040, 1_013):
            ends_ms = directories.end_ms(directories.of_second(minute * 60))
            assert ends_ms is not None
            assert 0 < ends_ms - minute * 60_000 <= 2 * HOUR_MS


def test_other_parsers_directories(topic: StoredTopic) -> None:
    by_offset = {"secor__message__parser__class": "daily-offset", "secor__offsets__per__partition": "2"}
    daily = pipeline_of(**by_offset, pipeline__finalize="true", hive__table__prefix="logs.raw_")
    copy_times(topic, 5, [48])
    store = MemoryObjectStore()
    run(topic, store, daily)
    assert {path: said[:2] for path, said in successes(store).items()} == {f"out/{TOPIC}/dt=2026-01-01": (3, 5)}
    (statements,) = store.list("out/_tieredstore/kept/1/hive/")
    assert store.get(statements.key).startswith(f"ALTER TABLE `logs`.`raw_{TOPIC}` ADD".encode())
    backup = pipeline_of(pipeline__name="raw", secor__generation="3", pipeline__finalize="true")
    run(topic, store, backup)
    assert len(successes(store)) == 1
    by_field = pipeline_of(secor__message__parser__class="split-by-field", message__split__field__name="a")
    parser = parser_of(by_field.own)
    assert parser.period("a%2Fb/dt=2026-01-01") == ("a%2Fb/dt=2026-01-01", NOON_MS + 12 * HOUR_MS)
    assert parser.period("dt=2026-01-01") is None


def test_statements_for_hive() -> None:
    assert add_partition("", "t", "a=it's%2F`b`") == "ALTER TABLE `t` ADD IF NOT EXISTS PARTITION (`a`='it\\'s/`b`')"
    assert add_partition("", "t", "dt=1/plain") is None
    for name, text in (("hive__table__name__t", "a;b"), ("hive__table__name__", "t"), ("hive__table__prefix", "a-")):
        with pytest.raises(ConfigError):
            pipeline_of(**{name: text})


def test_a_snapshot_holds_the_directories() -> None:
    store = MemoryObjectStore()
    log = CommitLog(store, "", "p", 1)
    log.read()
    log.append("finalize", "f", directories=["t/dt=1"])
    for _ in range(999):
        log.append("begin", "f")
    (info,) = store.list("_tieredstore/p/1/snapshots/")
    store.put(f"_tieredstore/p/1/commits/{3:020}.json", b"not read")
    assert CommitLog(store, "", "p", 1).read() == log.state
    assert log.state.finalized == {"t/dt=1"}
    store.put(f"_tieredstore/p/1/commits/{3:020}.json", replace(log.entry(4), number=3).to_bytes())
    store.delete([info.key])
    assert CommitLog(store, "", "p", 1).read() == log.state
    assert b"directories" not in Entry(0, "begin", "w", "f", ()).to_bytes()


def test_a_clock_that_jumps_decides_when_a_directory_is_complete_and_nothing_else(
    topic: StoredTopic, store: ObjectStore
) -> None:
    start = 5
    # The clock is first at the epoch, then far in the future, then back on the day of the records.
    for wall_s, complete in ((0.0, set[int]()), (4e9, {12, 13, 14}), (NOON_MS / 1000, {12, 13, 14})):
        with Runner(HOURLY, Parts(store, topic.manager), threads=1, wall_clock=partial(float, wall_s)) as runner:
            list(runner.run_once())
        assert set(successes(store)) == {day(hour) for hour in complete}
        copy_times(topic, start, [0, 4])
        start += 2
    run(topic, store)
    assert listed_offsets(store) == list(range(start))
    assert list(verify_output(HOURLY, store)) == []


def stopped(topic: StoredTopic, store: ObjectStore) -> LateStore:
    """Return a store that stopped its process at the first write of a ``_SUCCESS``."""
    stopping = LateStore(store, "*/_SUCCESS", Killed())
    with pytest.raises(Killed):
        run_once(topic, stopping, HOURLY)
    return stopping


def test_one_that_comes_behind_a_drop_is_named_and_taken_away_by_the_next(
    topic: StoredTopic, store: ObjectStore
) -> None:
    stopping = stopped(topic, store)
    list(drop_generation(HOURLY, store, dry_run=False))
    assert listed(store) == []
    stopping.land()
    (key,) = listed(store)
    (problem,) = verify_output(HOURLY, store)
    assert (problem.kind, problem.subject) == ("stranger", key)
    assert "repeat pipeline rm" in problem.words
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

    # The hours are finalized. A backfill with other settings replaces their files.
    sweep = OperationSweep(
        copies_of(first),
        lambda store: backfill(topic, store, pipeline=RIGHT, replaces=1),
        numbers=slice(None, None, step),
    )
    for at, inner, store in sweep.sleep(stopping.land):
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

    # The stopped write takes effect when the backfill prepares its first file.
    late = ScriptedStore(store).on("prepare", do=lambda _: stopping.land(), times=1)
    late.on("prepare", do=lambda _: seen.append(sorted(successes(store)))).on("publish", do=is_withdrawn)
    backfill(topic, late, pipeline=RIGHT, replaces=1)
    assert seen[0] == [day(12)]
    assert clean(store, 1, 2)
