"""Prepared objects in a folder: hidden files, links, and publishers killed between two steps."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tieredstore.backends.base import DRAFT_PREFIX, Prepared
from tieredstore.backends.filesystem import FilesystemObjectStore, drafts
from tieredstore.backends.filesystem.drafts import start_writing
from tieredstore.errors import InvalidKeyError, PreparedGoneError

BODY = b"what is prepared"


@pytest.fixture
def store(tmp_path: Path) -> FilesystemObjectStore:
    return FilesystemObjectStore(tmp_path)


@pytest.fixture
def prepared(store: FilesystemObjectStore) -> Prepared:
    return store.prepare("topic/0/object", BODY, staging_prefix="_staging/")


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_it_waits_as_a_hidden_file_beside_its_place(tmp_path: Path, prepared: Prepared) -> None:
    draft = tmp_path / "topic" / "0" / prepared.place
    assert draft.read_bytes() == BODY
    assert prepared.place.startswith(DRAFT_PREFIX)
    assert list(tmp_path.iterdir()) == [tmp_path / "topic"]


def test_a_publisher_killed_behind_its_link_is_followed_by_another(
    tmp_path: Path, store: FilesystemObjectStore, prepared: Prepared
) -> None:
    folder = tmp_path / "topic" / "0"
    os.link(folder / prepared.place, folder / "object")
    store.publish(prepared)
    assert files(tmp_path) == ["object"]


def test_a_publisher_killed_before_its_sync_is_followed_by_another(
    tmp_path: Path, store: FilesystemObjectStore, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = tmp_path / "topic" / "0", list[Path]()
    (folder / prepared.place).rename(folder / "object")
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    store.publish(prepared)
    assert folder in synced


def test_where_there_are_no_links_it_is_renamed(
    tmp_path: Path, store: FilesystemObjectStore, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    store.publish(prepared)
    store.publish(prepared)
    assert files(tmp_path) == ["object"]


def test_the_same_bytes_of_another_write_are_its_own_work(
    tmp_path: Path, store: FilesystemObjectStore, prepared: Prepared
) -> None:
    store.put(prepared.key, BODY)
    store.publish(prepared)
    assert files(tmp_path) == ["object"]


def test_a_file_that_was_cut_short_is_not_published(
    tmp_path: Path, store: FilesystemObjectStore, prepared: Prepared
) -> None:
    os.truncate(tmp_path / "topic" / "0" / prepared.place, 3)
    with pytest.raises(PreparedGoneError):
        store.publish(prepared)
    assert list(store.list()) == []


def test_it_is_listed_among_the_abandoned_writes(store: FilesystemObjectStore, prepared: Prepared) -> None:
    writes = list(store.abandoned_writes("topic/"))
    assert [(write.key, write.size) for write in writes] == [(f"topic/0/{prepared.place}", len(BODY))]
    assert store.discard(writes[0])
    with pytest.raises(PreparedGoneError):
        store.publish(prepared)


@pytest.mark.parametrize("place", ["object", "../object", f"{DRAFT_PREFIX}a/../../b", f"{DRAFT_PREFIX}\0", "", "."])
def test_a_place_that_is_no_hidden_file_is_refused(
    store: FilesystemObjectStore, prepared: Prepared, place: str
) -> None:
    store.put("topic/0/object", b"other")
    for verb in (store.publish, store.discard):
        with pytest.raises(InvalidKeyError):
            verb(replace(prepared, place=place))
    assert store.get("topic/0/object") == b"other"


def test_a_disk_is_given_a_large_file_while_it_is_written(
    tmp_path: Path, store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []

    def started(descriptor: int, start: int, size: int) -> None:
        assert os.fstat(descriptor).st_size == start + size
        start_writing(descriptor, start, size)
        ranges.append((start, size))

    monkeypatch.setattr(drafts, "start_writing", started)
    piece = bytes(3 << 20)
    store.publish(store.prepare("topic/0/object", [piece] * 7, staging_prefix="_staging/"))
    assert ranges == [(0, 9 << 20), (9 << 20, 9 << 20)]
    assert (tmp_path / "topic" / "0" / "object").read_bytes() == piece * 7


def test_what_has_no_disk_to_be_given_to_is_left_to_the_sync() -> None:
    start_writing(-1, 0, 1)
