"""File names and locations as in Secor: a window's first offset, a hash before the key, another root from a day on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.upkeep.test_upkeep import DAY_MS
from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    commit_unpublished,
    offsets_of,
    pipeline_of,
    redrive,
    run_once,
    texts,
    verify_output,
)
from tests.support.records.hourly_topics import copy_times, hourly_topic
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, ObjectNotFoundError, PreparedGoneError
from tieredstore.ops.steps import Outcome
from tieredstore.pipelines import Pipeline, with_generation
from tieredstore.pipelines.filing.naming import ByDate, Places
from tieredstore.pipelines.parsers import BadMessageError, MessageParser
from tieredstore.pipelines.run.recipes import naming_of, places_of
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.deletion import collect_garbage, drop_generation
from tieredstore.pipelines.upkeep.output_files import origins_of, place_of, read_records
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, Selected

HOURS = {"secor.message.parser.class": "kafka-timestamp", "partitioner.granularity.hour": "true"}
WINDOW = {**HOURS, "name.offset": "window", "max.file.records": "4"}
HASHED = {**HOURS, "secor.s3.prefix.md5hash": "true"}
DATED = {
    "secor.message.parser.class": "kafka-timestamp",
    "secor.s3.alternative.path": "/later",
    "secor.s3.alter.path.date": "2026-01-02",
}


def of(changes: dict[str, str], **more: str) -> Pipeline:
    return pipeline_of(**texts(changes), **more)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield offsets 0 to 9, alternating between noon and 13:00; the last two are of the next day."""
    with hourly_topic(tmp_path, [1, 0, 1, 0, 1, 0, 1, 0, 24, 24]) as topic:
        yield topic


def keys_of(store: ObjectStore) -> list[str]:
    """Return all visible keys."""
    return [info.key for info in store.list("") if "_tieredstore/" not in info.key]


def seen(store: ObjectStore) -> list[int]:
    keys = [key for key in keys_of(store) if not key.endswith("_SUCCESS")]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


def named(store: ObjectStore) -> dict[str, list[int]]:
    """Return the offsets in file names, by day and hour of the directory."""
    names: dict[str, list[int]] = {}
    for key in keys_of(store):
        path, _, name = key.rpartition("/")
        names.setdefault(path.rpartition("/dt=2026-01-")[2], []).append(int(name.split("_")[2].partition(".")[0]))
    return names


def test_all_files_of_a_window_have_its_first_offset(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = of(WINDOW)
    run_once(topic, store, pipeline)
    # The windows begin at 0, 4 and 8. The hour 13:00 has offsets 0, 2, 4 and 6; the hour 12:00 has 1, 3, 5 and 7.
    assert named(store) == {"01/hr=12": [0, 4], "01/hr=13": [0, 4], "02/hr=12": [8]}
    assert seen(store) == list(range(10))
    assert list(verify_output(pipeline, store)) == []
    second = f"out/{TOPIC}/dt=2026-01-01/hr=12/1_{NUMBER}_{4:020}.parquet"
    (origin,) = origins_of(pipeline, store, [second])
    assert (origin.first, origin.last, origin.committed) == (5, 7, True)
    assert [row["offset"] for batch in read_records(pipeline, store, second) for row in batch.to_pylist()] == [5, 7]


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        # Only one file may be open, so a directory's file ends when another directory's file begins.
        ({"secor.max.file.count": "1"}, {"01/hr=12": [0, 3, 5, 7], "01/hr=13": [0, 2, 4, 6], "02/hr=12": [0]}),
        # Each value has one byte, so five records reach the limit. Then all files of the window end, and more begin.
        (
            {"secor.upload.deterministic": "true", "secor.max.input.payload.size.bytes": "5"},
            {"01/hr=12": [0, 5], "01/hr=13": [0, 5], "02/hr=12": [5]},
        ),
    ],
)
def test_a_second_file_of_a_window_in_a_directory_has_an_offset_of_its_own(
    topic: StoredTopic, store: ObjectStore, limits: dict[str, str], names: dict[str, list[int]]
) -> None:
    pipeline = of({**HOURS, "name.offset": "window", **limits})
    (entry,) = run_once(topic, store, pipeline)
    assert len(entry.windows) == 1
    assert named(store) == names
    assert seen(store) == list(range(10))
    assert list(verify_output(pipeline, store)) == []


def test_names_are_the_same_where_the_store_dropped_what_was_prepared(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = of(WINDOW)
    committed = commit_unpublished(topic, store, pipeline)
    for file in committed:
        store.discard(file.prepared)
    run_once(topic, store, pipeline)
    assert {file.key for file in committed} <= set(keys_of(store))
    assert seen(store) == list(range(10))
    assert list(verify_output(pipeline, store)) == []


def test_a_process_may_die_at_each_operation(topic: StoredTopic) -> None:
    pipeline = of({**WINDOW, "secor.s3.prefix.md5hash": "true"})
    sweep = OperationSweep(
        MemoryObjectStore, lambda store: run_once(topic, store, pipeline), numbers=slice(None, None, 3)
    )
    for _, inner, store in sweep.die("after"):
        with pytest.raises(Killed):
            run_once(topic, store, pipeline)
        run_once(topic, inner, pipeline)
        assert seen(inner) == list(range(10))
        assert list(verify_output(pipeline, inner)) == []


class Lenient(MessageParser):
    """Parser that files everything in one directory."""

    def parts(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int
    ) -> Sequence[tuple[str, str]]:
        return [("all=", "x")]


class Choosy(Lenient):
    """Parser that rejects some messages, including the first."""

    def parts(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int
    ) -> Sequence[tuple[str, str]]:
        if offset in {0, 3}:
            raise BadMessageError("it is not wanted")
        return super().parts(key, value, timestamp_ms, offset)


CHOOSY = {"secor.message.parser.class": "tests.pipelines.filing.test_naming:Choosy"}
LENIENT = {"secor.message.parser.class": "tests.pipelines.filing.test_naming:Lenient"}


def test_what_was_bad_where_a_window_starts_gets_a_name_of_its_own(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, of({**CHOOSY, "name.offset": "window"}))
    again = of({**LENIENT, "name.offset": "window"})
    redrive(topic, store, again)
    assert [key.rpartition("/")[2] for key in keys_of(store)] == [
        f"1_{NUMBER}_{0:020}.parquet",
        f"1_{NUMBER}_{0:020}.r1.parquet",
    ]
    assert seen(store) == list(range(10))
    assert list(verify_output(again, store)) == []


def test_a_name_that_another_file_has_is_refused_before_it_is_committed(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, of({**CHOOSY, "name.offset": "window"}))
    with pytest.raises(ConfigError, match="run pipeline backfill --bad-messages again"):
        redrive(topic, store, of(LENIENT))
    assert list(verify_output(of(CHOOSY), store)) == []
    redrive(topic, store, of({**LENIENT, "name.offset": "window"}))
    assert seen(store) == list(range(10))


def test_a_backup_named_by_windows_is_backfilled_from(topic: StoredTopic, store: ObjectStore) -> None:
    backup = of({"name.offset": "window", "max.file.records": "4"}, pipeline__name="backup")
    run_once(topic, store, backup)
    chosen = with_generation(of(HOURS), 2)
    source = KeptFiles(backup, store, TOPIC, 1 << 20)
    list(Backfill(chosen, store, source, threads=1).run(Selected(TOPIC)))
    keys = [key for key in keys_of(store) if "/2_" in key]
    assert sorted(offset for key in keys for offset in offsets_of(store, key)) == list(range(10))


def test_the_hash_is_secors() -> None:
    places = places_of(of({**HASHED, "output.key.prefix": "raw/"}))
    assert places.path("mytopic", "dt=2015-07-07") == "1bef/raw/mytopic/dt=2015-07-07"
    assert places.path("mytopic", "offset=0") == "0b02/raw/mytopic/offset=0"


@given(
    st.booleans(), st.booleans(), st.sampled_from(["", "out/", "out/x/"]), st.sampled_from(["t", "out", "x", "later"]),
    st.lists(st.text("a=0/", min_size=1), max_size=2), st.dates(date(2020, 1, 1), date(2030, 1, 1)),
)  # fmt: skip
def test_each_place_tells_its_directory(
    hashed: bool, dated: bool, root: str, topic: str, parts: list[str], day: date
) -> None:
    since = date(2026, 1, 2)
    places = Places(root, hashed, ByDate("later/", since) if dated else None)
    directory = "/".join([*(part.strip("/") or "a" for part in parts), f"dt={day}"])
    path = places.path(topic, directory)
    assert places.directory(topic, path) == directory
    assert places.inner(f"{path}/name") == f"{topic}/{directory}/name"
    assert (f"later/{topic}/" in path) >= (dated and day >= since)
    assert any(path.startswith(prefix) for prefix in places.prefixes)


def test_hashed_files_are_seen_by_all_that_looks_at_an_output(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = of(HASHED, pipeline__finalize="true")
    run_once(topic, store, pipeline)
    naming = naming_of(pipeline)
    paths = {hour: naming.places.path(TOPIC, f"dt=2026-01-01/hr={hour}") for hour in ("12", "13")}
    assert {key.rpartition("/")[0] for key in keys_of(store)} >= set(paths.values())
    # The next day's records show that both hours are complete.
    assert [key for key in keys_of(store) if key.endswith("_SUCCESS")] == sorted(
        f"{path}/_SUCCESS" for path in paths.values()
    )
    assert seen(store) == list(range(10))
    assert list(verify_output(pipeline, store)) == []
    key = next(key for key in keys_of(store) if key.startswith(paths["12"]) and key.endswith(".parquet"))
    assert place_of(naming.places, key) == (TOPIC, NUMBER)
    with pytest.raises(ObjectNotFoundError):
        place_of(naming.places, key.partition("/")[2])
    stranger = f"{paths['13']}/1_9_{0:020}.parquet"
    store.put(stranger, b"x")
    assert [(one.kind, one.subject) for one in verify_output(pipeline, store)] == [("stranger", stranger)]
    other = f"{paths['13']}/2_9_{0:020}.parquet"
    store.put(other, b"x")
    with pytest.raises(ConfigError, match="has no commit log"):
        run_once(topic, store, of(HASHED, secor__generation="2"))
    store.delete([stranger, other])
    list(drop_generation(pipeline, store, dry_run=False))
    assert keys_of(store) == []


def test_secors_hashed_files_are_backfilled_by_their_names(topic: StoredTopic, store: ObjectStore) -> None:
    theirs = of({**HASHED, "name.offset": "window", "max.file.records": "4"})
    written = MemoryObjectStore()
    run_once(topic, written, theirs)
    for key in keys_of(written):
        store.put(key, written.get(key))
    key = next(key for key in keys_of(store) if "hr=12" in key and f"{4:020}" in key)
    (origin,) = origins_of(theirs, store, [key])
    assert (origin.topic, origin.first, origin.last, origin.committed) == (TOPIC, 4, 7, False)
    source = KeptFiles(theirs, store, TOPIC, 1 << 20)
    list(Backfill(with_generation(of(HOURS), 2), store, source, threads=1).run(Selected(TOPIC)))
    keys = [key for key in keys_of(store) if key.startswith("out/")]
    assert sorted(offset for key in keys for offset in offsets_of(store, key)) == list(range(10))


def test_days_from_one_on_lie_below_another_root(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = of(DATED, pipeline__finalize="true")
    run_once(topic, store, pipeline)
    assert [key.rpartition("/")[0] for key in keys_of(store) if key.endswith(".parquet")] == [
        f"later/{TOPIC}/dt=2026-01-02",
        f"out/{TOPIC}/dt=2026-01-01",
    ]
    assert list(verify_output(pipeline, store)) == []
    # The dated root belongs to the first pipeline, so a pipeline with other settings cannot write there.
    with pytest.raises(ConfigError, match="belongs to the pipeline 'kept'"):
        run_once(topic, store, of(HOURS, output__key__prefix="later/"))
    run_once(topic, store, pipeline)
    key = f"later/{TOPIC}/dt=2026-01-02/1_7_{0:020}.parquet"
    staging = naming_of(pipeline).staging_prefix
    zombie = store.prepare(key, b"of a task that was killed", staging_prefix=staging)
    steps = list(
        collect_garbage(
            pipeline,
            ScriptedStore(store).change("now_ms", change=lambda now_ms: now_ms and now_ms + 2 * DAY_MS),
            min_age_ms=DAY_MS,
            dry_run=False,
        )
    )
    assert [step.outcome for step in steps] == [Outcome.DELETED]
    with pytest.raises(PreparedGoneError):
        store.publish(zombie)
    store.put(key, b"x")
    assert [(one.kind, one.subject) for one in verify_output(pipeline, store)] == [("stranger", key)]


def test_settings_of_places_may_change_between_runs(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, of(HOURS))
    copy_times(topic, 10, [0, 24])
    run_once(topic, store, of(HASHED))
    copy_times(topic, 12, [0, 48])
    moved = of({**HASHED, **DATED, "partitioner.granularity.hour": "true"})
    run_once(topic, store, moved)
    assert seen(store) == list(range(14))
    for pipeline in (moved, of(HASHED), of(HOURS)):
        assert list(verify_output(pipeline, store)) == []
    list(drop_generation(moved, store, dry_run=False))
    assert keys_of(store) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"secor.s3.alter.path.date": "2026-01-02"}, "secor.s3.alternative.path is missing"),
        ({**DATED, "secor.s3.alter.path.date": "soon"}, "a day, as 2026-01-31"),
        ({**DATED, "secor.s3.alternative.path": "../x"}, "secor.s3.alternative.path"),
        ({**DATED, "secor.message.parser.class": "offset"}, "the parser offset makes none"),
        ({**DATED, "partitioner.granularity.date.format": "yyyy-MM"}, "with year, month and day"),
        ({**DATED, "hive.table.prefix": "a."}, "Hive tables need"),
        ({**HASHED, f"hive.table.name.{TOPIC}": "a"}, "Hive tables need"),
        ({**HASHED, "secor.message.parser.class": "daily-offset", "pipeline.finalize": "true"}, "daily-offset"),
        ({"name.offset": "batch"}, "file, window"),
    ],
)
def test_what_no_file_could_be_named_by_is_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        of(changes)
