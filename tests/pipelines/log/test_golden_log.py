"""Compatibility of stored pipeline data: logs, snapshots, claims, object names and fingerprints.

``golden_log.json`` has all internal objects after :func:`written_life`, and the names of all other objects. For each
setting that affects files, ``fingerprints.json`` has a value and the fingerprint of a pipeline with only this setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tests.pipelines.upkeep.test_backfill import backfill
from tests.pipelines.upkeep.test_upkeep import take_over
from tests.support.paths import REPOSITORY
from tests.support.pipelines.pipeline_runs import (
    TOPIC,
    commit_unpublished,
    pipeline_of,
    redrive,
    run_once,
    texts,
    verify_output,
)
from tests.support.records.hourly_topics import HOUR_MS, NOON_MS
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pipelines import CommitLog, Entry
from tieredstore.pipelines.config.settings import own_properties
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import Selected
from tieredstore.testing.segments import Record, build_batch

FOLDER = REPOSITORY / "tests/pipelines/log"
PLAIN = {
    "partitioner__granularity__hour": "true",
    "pipeline__finalize": "true",
    "secor__file__reader__writer__factory": "json",
    "secor__compression__codec": "none",
    "max__file__records": "2",
    f"hive__table__name__{TOPIC}": "logs.events",
}
FIRST = pipeline_of(secor__message__parser__class="json", **PLAIN)
LENIENT = pipeline_of(secor__message__parser__class="kafka-timestamp", **PLAIN)
SECOND, THIRD, LATEST = (
    pipeline_of(secor__message__parser__class="kafka-timestamp", secor__generation=number, **PLAIN, **more)
    for number, more in (("2", {}), ("3", {}), ("9", {"kafka__new__consumer__auto__offset__reset": "latest"}))
)


def copy_hours(topic: StoredTopic, start: int, hours: list[int | None]) -> None:
    """Copy a segment of records at these hours after noon; None: a bad message."""
    records = [
        Record(
            b'{"timestamp": %d}' % (NOON_MS + hour * HOUR_MS) if hour is not None else b"none",
            timestamp_ms=NOON_MS + (hour or 0) * HOUR_MS,
        )
        for hour in hours
    ]
    topic.copy(start, [build_batch(records, start)])


def written_life(folder: Path, store: MemoryObjectStore) -> None:
    """Write a log that has entries of each kind."""
    with closing(StoredTopic(folder / "logs")) as topic:
        copy_hours(topic, 0, [0, 0, None, 1, 4])
        run_once(topic, store, LATEST)
        run_once(topic, store, FIRST)
        redrive(topic, store, LENIENT)
        copy_hours(topic, 5, [0, 6])
        for file in commit_unpublished(topic, store, LENIENT):
            store.discard(file.prepared)
        take_over(topic, store, SECOND)
        copy_hours(topic, 7, [7, 9])
        run_once(topic, store, SECOND)
        backfill(topic, store, Selected(TOPIC, 7), pipeline=LENIENT, generation=3, replaces=2)
        list(drop_generation(THIRD, store, dry_run=False))


def kept(store: MemoryObjectStore) -> dict[str, str | None]:
    """Return all objects, with the content of the log and the completion markers."""
    return {
        info.key: store.get(info.key).decode() if "/_tieredstore/" in info.key or "_SUCCESS" in info.key else None
        for info in store.list("")
        if "/quarantine/" not in info.key
    }


def without_chance(text: str | None) -> object:
    """Replace random parts by constants: the run id, and the places of prepared objects.

    Quarantine files are Parquet, whose bytes depend on the version of pyarrow.
    """
    if text is None or not text.startswith("{"):
        return text
    content: Any = json.loads(text)
    content.pop("writer", None)
    for window in content.get("windows", []):
        for file in window["files"]:
            del file["prepared"]
            if file["kind"] == "quarantine":
                del file["size"], file["sha256"]
    return content


def golden() -> dict[str, str | None]:
    return cast("dict[str, str | None]", json.loads((FOLDER / "golden_log.json").read_text()))


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.pipelines.log.commit_log.SNAPSHOT_EVERY", 4)


@pytest.mark.usefixtures("snapshots")
def test_the_same_calls_write_what_they_wrote(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    written_life(tmp_path, store)
    now, before = kept(store), golden()
    assert now.keys() == before.keys()
    assert {key: without_chance(text) for key, text in now.items()} == {
        key: without_chance(text) for key, text in before.items()
    }


def stored() -> MemoryObjectStore:
    store = MemoryObjectStore()
    for key, text in golden().items():
        store.put(key, (text or "").encode())
    return store


def entries() -> Iterator[tuple[str, bytes]]:
    for key, text in golden().items():
        if "/commits/" in key:
            yield key, (text or "").encode()


def test_entries_that_were_stored_are_read_and_are_the_same_bytes() -> None:
    kinds: set[str] = set()
    for key, data in entries():
        entry = Entry.from_bytes(data, key)
        assert entry.to_bytes() == data
        kinds.add(entry.kind)
    assert kinds == {
        "begin", "batch", "rewrite", "published", "redrive", "finalize", "take-over", "seal", "drop", "backfill",
        "replacing", "replaced",
    }  # fmt: skip


def test_a_snapshot_that_was_stored_says_what_its_entries_say() -> None:
    store = stored()
    found = 0
    for key in golden():
        folder, is_snapshot, _ = key.partition("snapshots/")
        if is_snapshot:
            found += 1
            generation = int(folder.rstrip("/").rpartition("/")[2])
            by_snapshot = CommitLog(store, "out/", "kept", generation)
            bare = MemoryObjectStore()
            for other in store.list(f"{folder}commits/"):
                bare.put(other.key, store.get(other.key))
            assert by_snapshot.read() == CommitLog(bare, "out/", "kept", generation).read()
    assert found


def test_statements_that_were_stored_are_read() -> None:
    store = stored()
    problems = [one for one in verify_output(SECOND, store, contents=False) if one.kind != "size"]
    assert [(one.kind, one.subject.rpartition("/")[2]) for one in problems] == []


def fingerprints() -> Mapping[str, tuple[str, str]]:
    return cast("Mapping[str, tuple[str, str]]", json.loads((FOLDER / "fingerprints.json").read_text()))


@pytest.mark.parametrize("name", fingerprints())
def test_fingerprints_are_what_they_were(name: str) -> None:
    given, fingerprint = fingerprints()[name]
    changes = dict(part.split("=", 1) for part in given.split("\n"))
    assert fingerprint_of(pipeline_of(**texts(changes)).own) == fingerprint


def test_each_setting_has_a_fingerprint() -> None:
    assert fingerprints().keys() == {name for name, _, _ in own_properties()} - {"protobuf.descriptor.set"}
