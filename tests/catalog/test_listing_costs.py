"""Cost of listing a folder, counted in examined files and opened folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.bench_catalog import PARTITIONS, StoreBuilder
from tests.support.stores.catalog_stores import manager_of
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.filesystem import store as files
from tieredstore.backends.filesystem import store as filesystem_store
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.planning import load_catalog
from tieredstore.format import chunk_index
from tieredstore.ops.listing import load_listing
from tieredstore.remote.managed_store import ManagerCalls

SEGMENTS = 40 * PARTITIONS
FIRST_BATCH = 32
FOLDERS = 1 + PARTITIONS
"""The number of folders below the root: the topic's, and one for each partition."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FilesystemObjectStore:
    folder: Path = tmp_path_factory.mktemp("segments")
    StoreBuilder(folder, SEGMENTS).build()
    return FilesystemObjectStore(folder)


def how_many(answer: object) -> int:
    """Return the number of requested items that the answer contains."""
    answers = cast("list[object]", answer) if isinstance(answer, list) else [answer]
    return sum(one is not None for one in answers)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count system calls, also from compiled code, and unpackings of chunk size lists."""
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        real: Callable[..., object] = getattr(module, name)

        def counted(*args: object, **options: object) -> object:
            counts[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(module, name, counted)

    for name in ("stat", "open", "scandir", "read", "preadv"):
        count(os, name)
    count(chunk_index, "unpack_chunk_sizes")

    def count_in(module: Any, function: str, names: tuple[str, ...]) -> None:
        """Count each file that a compiled function checked or read as one call under each of ``names``."""
        real: Callable[..., Any] = getattr(module, function)

        def counted(*arguments: Any) -> object:
            answer: object = real(*arguments)
            counts.update(dict.fromkeys(names, how_many(answer)))
            return answer

        monkeypatch.setattr(module, function, counted)

    count_in(files, "look_at_files", ("stat",))
    count(files, "names_of_files")
    count_in(filesystem_store, "read_files", ("open", "read"))
    return counts


def test_a_listing_looks_at_each_object_once_and_at_each_folder_a_few_times(
    store: FilesystemObjectStore, calls: Counter[str]
) -> None:
    assert sum(1 for _ in list_segments(store)) == SEGMENTS
    assert calls["stat"] == 3 * SEGMENTS
    assert calls["names_of_files"] == FOLDERS + 1
    # ``names_of_files`` has read all folders. ``scandir`` reads only those that contain folders again: the root and the
    # topic's.
    assert calls["scandir"] <= 2
    assert calls["open"] <= 6 * (FOLDERS + 1)
    assert calls["read"] == calls["preadv"] == 0


def test_a_manifest_is_opened_read_and_unpacked_once(store: FilesystemObjectStore, calls: Counter[str]) -> None:
    segments = list(list_segments(store))
    calls.clear()
    assert all(segment.whole is not None for segment in load_listing(store, segments))
    # Each file is opened once. Each folder on its path is opened once per batch, and once more per partition.
    depth = segments[0].main_path.count("/") + 1
    assert calls["open"] <= SEGMENTS + depth * (PARTITIONS + SEGMENTS // FIRST_BATCH)
    assert calls["read"] == calls["unpack_chunk_sizes"] == SEGMENTS
    assert calls["stat"] == calls["scandir"] == 0


def test_a_manager_reads_manifests_by_the_batch(store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    visits: Counter[str] = Counter()
    run = ManagerCalls.run

    def counted(calls: ManagerCalls, call: Callable[[], Any]) -> Any:
        visits["run"] += 1
        return run(calls, call)

    monkeypatch.setattr(ManagerCalls, "run", counted)
    with manager_of(store) as manager:
        catalog = load_catalog(manager)
    assert sum(len(catalog.lineage("clicks", partition).spans) for partition in range(PARTITIONS)) == SEGMENTS
    # The sum counts visits for the listing, for the manifests, and for each partition's leader-epoch index.
    assert visits["run"] <= 15 + SEGMENTS // FIRST_BATCH + 4 * PARTITIONS
