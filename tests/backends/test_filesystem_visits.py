"""Many files of a folder in one visit: what is not as usual is left to whoever looks at one at a time."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tieredstore.backends.filesystem import FilesystemObjectStore, listing, store, visits
from tieredstore.backends.filesystem._files import look_at_files, read_files
from tieredstore.errors import InvalidKey, ObjectNotFound, TieredStoreError

LONG = 65_536


def outcome(job: Callable[[], object]) -> object:
    try:
        return job()
    except TieredStoreError as error:
        return error


def opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("empty", 0), ("one", 1), ("most", LONG), ("more", LONG + 1), ("unreadable", 5)):
        (tmp_path / name).write_bytes(name[:1].encode() * size)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("one")
    os.mkfifo(tmp_path / "pipe")
    os.utime(tmp_path / "one", ns=(0, -1))
    return tmp_path


def test_whole_small_files_are_read_and_nothing_else(folder: Path) -> None:
    descriptor = opened(folder)
    try:
        names = [b"empty", b"one", b"most", b"more", b"folder", b"link", b"pipe", b"absent"]
        assert read_files(descriptor, names, 1 << 20) == [b"", b"o", b"m" * LONG, *[None] * 5]
        assert read_files(descriptor, [b"one", b"empty"], 0) == [None, b""]
        # What does not fit one visit's memory is left over.
        answers = read_files(descriptor, [b"most"] * 20, 1 << 20)
        assert answers == [b"m" * LONG] * 16 + [None] * 4
        with pytest.raises(ValueError, match="1025 files"):
            read_files(descriptor, [b"one"] * 1025, 1)
    finally:
        os.close(descriptor)


def test_sizes_and_times_are_those_of_stat(folder: Path) -> None:
    descriptor = opened(folder)
    names = sorted(path.name for path in folder.iterdir())
    try:
        expected = [os.lstat(folder / name) for name in names]
        looked = look_at_files(descriptor, [*map(os.fsencode, names), b"absent"])
        assert looked == [*((one.st_size, one.st_mtime_ns // 1_000_000) for one in expected), None]
        assert look_at_files(descriptor, [b"one", b"one/below"]) is None
        assert look_at_files(descriptor, []) == []
    finally:
        os.close(descriptor)


def test_without_the_compiled_part_each_file_is_looked_at_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list(FilesystemObjectStore(folder).list())
    monkeypatch.setitem(sys.modules, "tieredstore.backends.filesystem._files", None)
    plain = runpy.run_path(visits.__file__)
    monkeypatch.setattr(listing, "look_at_files", plain["look_at_files"])
    monkeypatch.setattr(store, "read_files", plain["read_files"])
    assert list(FilesystemObjectStore(folder).list()) == listed
    assert FilesystemObjectStore(folder).get_small_batch(["one", "empty"], 1) == [b"o", b""]


def test_each_key_of_a_batch_has_its_own_answer(folder: Path) -> None:
    files = FilesystemObjectStore(folder)
    keys = ["one", "absent", "..", "more", "link", "folder", "caf\udce9", "empty"]
    answers = files.get_small_batch(keys, LONG + 1)
    for key, answer in zip(keys, answers, strict=True):
        alone = outcome(partial(files.get_small, key, LONG + 1))
        assert (type(answer), str(answer)) == (type(alone), str(alone))
    assert isinstance(answers[1], ObjectNotFound)
    assert isinstance(answers[2], InvalidKey)
    assert answers[3] == b"m" * (LONG + 1)
    assert files.get_small_batch(["one"] * 2000, 1) == [b"o"] * 2000
