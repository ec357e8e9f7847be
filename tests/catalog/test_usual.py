"""Listings and manifests at a glance: what is taken so, is what whoever looks at them one by one takes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bench_catalog import PARTITIONS, StoreBuilder
from tests.support.catalog_stores import manager_of
from tests.support.usual_listings import listings, seen_both_ways
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog import Catalog, listing, load_catalog, planning, usual
from tieredstore.catalog.usual import grouped, rows_of
from tieredstore.errors import SegmentNotFound
from tieredstore.format.keys import Suffix

SEGMENTS = 3 * PARTITIONS


def test_any_listing_has_the_same_segments() -> None:
    seen = [seen_both_ways(prefix, keys) for prefix, keys in listings(5, 600)]
    assert sum(seen) > 400


def test_pieces_of_a_listing_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 2, 4):
        monkeypatch.setattr(listing, "_OBJECTS", size)
        monkeypatch.setattr(listing, "_GROUPED", size)
        for prefix, keys in listings(size, 60):
            seen_both_ways(prefix, keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    StoreBuilder(tmp_path, SEGMENTS).build()
    return tmp_path


def planned(folder: Path) -> Catalog:
    with manager_of(FilesystemObjectStore(folder)) as manager:
        return load_catalog(manager)


def test_all_manifests_that_are_as_usual_are_read_at_a_glance(folder: Path) -> None:
    store = FilesystemObjectStore(folder)
    segments = [listed for listed in grouped(list(store.list()), "") if not isinstance(listed, ObjectInfo)]
    texts = [store.get(objects.objects[2][1].key) for objects in segments]
    rows = rows_of(segments, [*texts], False, True)
    assert [row.path for row in rows if row is not None] == [objects.main_path for objects in segments]
    assert len(rows) == SEGMENTS
    # Answers that are no texts, and demands that a text does not meet.
    assert rows_of(segments[:2], [None, SegmentNotFound("gone")], False, True) == [None, None]
    assert rows_of(segments, [*texts], True, True) == [None] * SEGMENTS


def test_a_catalog_is_the_same_without_a_glance_whatever_its_manifests_say(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = sorted(folder.rglob(f"*.{Suffix.MANIFEST.value}"))
    damages: dict[int, Callable[[bytes], bytes]] = {
        1: lambda raw: raw + b"\n",
        2: lambda raw: raw.replace(b'"compression":true', b'"compression":false'),
        3: lambda raw: raw.replace(b'"endOffset":', b'"endOffset":9'),
        4: lambda raw: raw.replace(b'"txnIdxEmpty":true', b'"txnIdxEmpty":false'),
        5: lambda raw: raw.replace(b'"segmentLeaderEpochs":{"0":0}', b'"segmentLeaderEpochs":{}'),
        6: lambda raw: raw[: len(raw) // 2],
        7: lambda raw: raw.replace(b'"brokerId":1', b'"brokerId":1.5'),
        8: lambda raw: raw.replace(b'transformedChunks":"', b'transformedChunks":"AAAA'),
    }
    for number, damage in damages.items():
        manifests[number].write_bytes(damage(manifests[number].read_bytes()))
    at_a_glance = planned(folder)
    assert len(at_a_glance.problems) >= 3
    monkeypatch.setitem(sys.modules, "tieredstore.catalog._grouping", None)
    plain = runpy.run_path(usual.__file__)
    monkeypatch.setattr(planning, "rows_of", plain["rows_of"])
    monkeypatch.setattr(listing, "grouped", plain["grouped"])
    assert planned(folder) == at_a_glance
