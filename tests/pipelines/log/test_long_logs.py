"""Logs of many entries, and outputs of many files: each is a request, and many of these are under way at once."""

from __future__ import annotations

import hashlib
import threading
import tracemalloc

from tests.support.pipelines.pipeline_runs import listed, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import ObjectStore, Prepared
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pipelines.log.entries import OutputFile, WrittenWindow
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output

AT_ONCE = 4


class Crowd(DelegatingObjectStore):
    """Holds up reads of keys that ``text`` is in until so many are under way."""

    def __init__(self, inner: ObjectStore, text: str) -> None:
        super().__init__(inner)
        self._text = text
        self._lock = threading.Lock()
        self._begun = 0
        self._is_crowded = threading.Event()

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        self._wait(key)
        return super().get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        self._wait(key)
        return super().get_small(key, most)

    def _wait(self, key: str) -> None:
        if self._text in key:
            with self._lock:
                self._begun += 1
                if self._begun == AT_ONCE:
                    self._is_crowded.set()
            assert self._is_crowded.wait(60), "one after the other"


def test_entries_of_a_long_log_are_asked_for_many_at_once_and_come_in_order(
    topic: StoredTopic, store: ObjectStore
) -> None:
    pipeline = pipeline_of()
    run_once(topic, store, pipeline)
    log = commit_log_of(pipeline, store)
    log.read()
    for _ in range(40):
        log.append("begin", "f")
    again = commit_log_of(pipeline, Crowd(store, f"commits/{'0' * 18}2"))
    assert again.read() == log.state
    assert [entry.number for entry in again.entries(5)] == list(range(5, log.state.number + 1))


def test_files_are_verified_many_at_once_and_told_in_order(topic: StoredTopic, store: ObjectStore) -> None:
    pipeline = pipeline_of(max__file__records="10")
    run_once(topic, store, pipeline)
    keys = listed(store)
    assert len(keys) == 30
    for key in keys[3::7]:
        size = store.head(key).size
        store.delete([key])
        store.put(key, bytes(size))
    store.delete(keys[5:6])
    problems = list(verify_output(pipeline, Crowd(store, "/base_offset=")))
    wrong = [("content", key) for key in keys[3::7]] + [("missing", keys[5])]
    assert [(one.kind, one.subject) for one in problems] == sorted(wrong, key=lambda one: one[1])


def test_verifying_many_files_holds_less_than_a_kilobyte_of_each() -> None:
    pipeline, store, entries, files = pipeline_of(), MemoryObjectStore(), 20, 50
    log = commit_log_of(pipeline, store)
    log.read()
    for number in range(entries):
        made_of = tuple(committed_file(number * files + at) for at in range(files))
        window = WrittenWindow("orders", "VGVzdFRvcGljSWRlbnRpZg", 0, number, number + 1, files, 0, 0, made_of)
        log.append("batch", "f", [window])
    tracemalloc.start()
    try:
        committed = Committed.of(commit_log_of(pipeline, store), prepared=False)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(committed.files) == entries * files
    assert held / len(committed.files) < 1000


def committed_file(number: int) -> OutputFile:
    """As one of S3, whose upload has an id of more than a hundred characters."""
    key = f"out/orders/dt=2026-01-31/hr=08/1_0_{number:020}.parquet"
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    place, part = f"{number:0128}", f'"{number:032x}"'
    prepared = Prepared(key, number, sha256, place, (part,), f"{number:032x}")
    return OutputFile("data", key, number, sha256, number, number, 1, 1_700_000_000_000, 1_700_000_000_000, prepared)
