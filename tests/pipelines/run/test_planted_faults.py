"""``verify`` names each fault that is planted in an output, and none in one that is clean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.pipeline_runs import NUMBER, listed, pipeline_of, run_once
from tests.support.records.hourly_topics import BY_HOUR, copy_times, day
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CommitLogCorrupt
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output

TEXT = pipeline_of(**BY_HOUR, secor__file__reader__writer__factory="text", secor__compression__codec="none")
"""Its files have others beside them, and complete directories."""
DATA = f"{day(12)}/1_{NUMBER}_{0:020}.txt"
OTHER = f"{day(13)}/1_{NUMBER}_{2:020}.txt"
BESIDE = f"{day(12)}/.1_{NUMBER}_{0:020}.txt.parquet"
ASIDE = f"out/_tieredstore/kept/1/quarantine/events/1_{NUMBER}_{5:020}.parquet"
COMPLETE = f"{day(12)}/_SUCCESS"
COMMITS = "out/_tieredstore/kept/1/commits/"

Plant = Callable[[MemoryObjectStore], None]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """A clean output, with a bad message."""
    topic = StoredTopic(tmp_path_factory.mktemp("logs") / "logs")
    copy_times(topic, 0, [0, 0, 1, 2, 4, -500_000])
    store = MemoryObjectStore()
    run_once(topic, store, TEXT)
    assert {DATA, OTHER, BESIDE, COMPLETE} <= set(listed(store))
    assert list(verify_output(TEXT, store)) == []
    yield {info.key: store.get(info.key) for info in store.list("")}
    topic.close()


def gone(key: str) -> Plant:
    return lambda store: store.delete([key])


def placed(key: str, data: bytes = b"x") -> Plant:
    return lambda store: store.put(key, data)


def changed(key: str, change: Callable[[bytes], bytes]) -> Plant:
    return lambda store: store.put(key, change(store.get(key)))


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def moved(store: MemoryObjectStore) -> None:
    store.put(f"{day(13)}/1_{NUMBER}_{0:020}.txt", store.get(DATA))
    store.delete([DATA])


def swapped(store: MemoryObjectStore) -> None:
    first, second = store.get(DATA), store.get(OTHER)
    store.put(DATA, second)
    store.put(OTHER, first)


def entry_with(**fields: int) -> Plant:
    """The first file of the batch has other fields in the log."""

    def plant(store: MemoryObjectStore) -> None:
        key = f"{COMMITS}{1:020}.json"
        content: Any = json.loads(store.get(key))
        content["windows"][0]["files"][0].update(fields)
        store.put(key, json.dumps(content).encode())

    return plant


def said(**fields: int) -> Plant:
    return changed(COMPLETE, lambda data: json.dumps(json.loads(data) | fields).encode())


FAULTS: dict[str, tuple[Plant, set[tuple[str, str]]]] = {
    "a file is gone": (gone(DATA), {("missing", DATA)}),
    "a file is cut": (changed(DATA, lambda data: data[:-1]), {("size", DATA)}),
    "a file is empty": (placed(DATA, b""), {("size", DATA)}),
    "a file has more": (changed(DATA, lambda data: data + b"v\n"), {("size", DATA)}),
    "a file has another bit": (changed(DATA, flipped), {("content", DATA)}),
    "a file lies elsewhere": (moved, {("missing", DATA), ("stranger", f"{day(13)}/1_{NUMBER}_{0:020}.txt")}),
    "two files are each other's": (swapped, {("size", DATA), ("size", OTHER)}),
    "a file is nobody's": (placed(f"{day(12)}/1_9_{0:020}.txt"), {("stranger", f"{day(12)}/1_9_{0:020}.txt")}),
    "a file is written twice": (
        changed(f"{day(14)}/1_{NUMBER}_{0:020}.txt", bytes),
        {("stranger", f"{day(14)}/1_{NUMBER}_{0:020}.txt")},
    ),
    "what lies beside is gone": (gone(BESIDE), {("missing", BESIDE)}),
    "what lies beside has another bit": (changed(BESIDE, flipped), {("content", BESIDE)}),
    "what lies beside is nobody's": (
        placed(f"{day(14)}/.1_9_{0:020}.txt.parquet"),
        {("stranger", f"{day(14)}/.1_9_{0:020}.txt.parquet")},
    ),
    "bad messages are gone": (gone(ASIDE), {("missing", ASIDE)}),
    "bad messages are cut": (changed(ASIDE, lambda data: data[:-4]), {("size", ASIDE)}),
    "bad messages have another bit": (changed(ASIDE, flipped), {("content", ASIDE)}),
    "bad messages are nobody's": (
        placed(ASIDE.replace("5.parquet", "4.parquet")),
        {("stranger", ASIDE.replace("5.parquet", "4.parquet"))},
    ),
    "the log has another size": (entry_with(size=1), {("size", DATA)}),
    "the log has offsets out of the window": (entry_with(last_offset=99), {("offsets", DATA)}),
    "the log has offsets in the wrong order": (entry_with(first_offset=4), {("offsets", DATA)}),
    "a directory does not say that it is complete": (gone(COMPLETE), {("missing", COMPLETE)}),
    "a directory tells of other files": (said(files=7), {("content", COMPLETE)}),
    "a directory tells of other records": (said(records=7), {("content", COMPLETE)}),
    "a directory says nothing": (placed(COMPLETE, b""), {("missing", COMPLETE)}),
    "a directory says that it is complete too early": (
        lambda store: store.put(f"{day(16)}/_SUCCESS", store.get(COMPLETE)),
        {("stranger", f"{day(16)}/_SUCCESS")},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(objects: dict[str, bytes], fault: str) -> None:
    store = MemoryObjectStore()
    for key, data in objects.items():
        store.put(key, data)
    plant, expected = FAULTS[fault]
    if fault == "a file is written twice":
        store.put(f"{day(14)}/1_{NUMBER}_{0:020}.txt", store.get(DATA))
    plant(store)
    assert {(problem.kind, problem.subject) for problem in verify_output(TEXT, store)} == expected


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_hole_in_the_log_is_an_error_and_so_is_another_text(objects: dict[str, bytes], number: int) -> None:
    store = MemoryObjectStore()
    for key, data in objects.items():
        store.put(key, data)
    key = f"{COMMITS}{number:020}.json"
    store.put(key, store.get(key)[:-1])
    with pytest.raises(CommitLogCorrupt):
        list(verify_output(TEXT, store))
    store.delete([key])
    with pytest.raises(CommitLogCorrupt):
        list(verify_output(TEXT, store))


def test_what_of_the_last_entry_is_not_written_yet_is_no_fault(tmp_path: Path, objects: dict[str, bytes]) -> None:
    store = MemoryObjectStore()
    for key, data in objects.items():
        store.put(key, data)
    log = commit_log_of(TEXT, store)
    store.delete([f"{COMMITS}{log.read().number:020}.json", COMPLETE])
    assert list(verify_output(TEXT, store)) == []
