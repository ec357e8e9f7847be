"""Every entry point takes every kind of source, and closes only sources it opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tieredstore as ts
from tieredstore import polars
from tieredstore.duckdb import attach

Entry = Callable[[Any], int]


def by_open(source: Any) -> int:
    with ts.open(source) as bucket:
        return bucket.read("txn").to_arrow().num_rows


def by_manager(source: Any) -> int:
    with ts.RemoteStorageManager(source) as manager, ts.open(manager) as bucket:
        return bucket.read("txn").to_arrow().num_rows


def by_duckdb(source: Any) -> int:
    connection = duckdb.connect()
    with attach(connection, source):
        ((count,),) = connection.execute("SELECT count(*) FROM txn").fetchall()
    return int(count)


def by_polars(source: Any) -> int:
    return polars.scan(source, "txn").collect().height


ENTRIES: list[Entry] = [by_open, by_manager, by_duckdb, by_polars]

KINDS: dict[str, Callable[[Path, ts.Bucket], Any]] = {
    "folder as text": lambda root, _: str(root),
    "folder": lambda root, _: root,
    "URL": lambda root, _: root.as_uri(),
    "mapping": lambda root, _: {"storage.backend.class": "filesystem", "storage.root": root},
    "file": lambda root, _: root.parent / "store.properties",
    "settings": lambda _, bucket: bucket.settings,
    "bucket": lambda _, bucket: bucket,
    "manager": lambda _, bucket: bucket.manager,
}


@pytest.fixture
def stored(bucket: ts.Bucket, root: Path) -> ts.Bucket:
    (root.parent / "store.properties").write_text(f"storage.backend.class=filesystem\nstorage.root={root}\n")
    return bucket


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_point_takes_each_kind_of_source(entry: Entry, kind: str, stored: ts.Bucket, root: Path) -> None:
    source = KINDS[kind](root, stored)
    assert entry(source) == 2357
    # The given source stays open.
    assert stored.manager.fetch_manifest(stored.segments("txn")[0].metadata) is not None  # type: ignore[arg-type]
    assert entry(source) == 2357
