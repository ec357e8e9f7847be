"""Every entry point takes every kind of source, and closes only what it opened."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.util import find_spec
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

of_wings = pytest.mark.skipif(find_spec("tieredstore.pubsub") is None, reason="the core alone")

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_point_takes_each_kind_of_source(entry: Entry, kind: str, stored: ts.Bucket, root: Path) -> None:
    source = KINDS[kind](root, stored)
    assert entry(source) == 2357
    # What it was given is open as before.
    assert stored.manager.fetch_manifest(stored.segments("txn")[0].metadata) is not None  # type: ignore[arg-type]
    assert entry(source) == 2357


@of_wings
@pytest.mark.parametrize("kind", KINDS)
def test_producers_and_consumers_of_batches_take_each_kind_of_source(kind: str, stored: ts.Bucket, root: Path) -> None:
    from tieredstore.pubsub import open_topics  # noqa: PLC0415  of a wing

    source = KINDS[kind](root, stored)
    with open_topics(source) as topics:
        topics.create("events")
    for _ in range(2):
        with ts.BatchProducer(source, "events") as producer:
            assert producer.send("value", key="key").result(60).partition == 0
    with ts.BatchConsumer(source, "events") as consumer:
        found = [(record.key, record.value) for record in itertools.islice(consumer.records(60), 2)]
    assert found == [(b"key", b"value")] * 2
    assert len(stored.segments("txn")) == 5


@of_wings
@pytest.mark.parametrize("kind", ["file", "mapping", "bucket of a file", "manager of a file"])
def test_an_uploader_takes_each_source_that_has_its_settings(kind: str, root: Path, disk: Path) -> None:
    texts = {
        "storage.backend.class": "filesystem", "storage.root": str(root), "uploader.leadership": "static",
        "uploader.log.dirs": str(disk),
    }  # fmt: skip
    file = root.parent / "uploader.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    with ts.open(file) as bucket, ts.RemoteStorageManager(file) as manager:
        sources: dict[str, Any] = {
            "file": file,
            "mapping": texts,
            "bucket of a file": bucket,
            "manager of a file": manager,
        }
        with ts.Uploader(sources[kind]) as uploader:
            assert [one.base_offset for one in uploader.plan()] == [0, 605, 1209, 1815]
            assert uploader.run_once() == []
        assert bucket.topics()[0].segments == 4  # the last one is active
