"""Many files of a folder in one visit: unusual files are left to the code that handles them one by one."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.stores.changing_files import ChangingFiles
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.filesystem import store as files
from tieredstore.backends.filesystem._files import look_at_files, names_of_files, read_files
from tieredstore.backends.values import ObjectInfo
from tieredstore.errors import InvalidKeyError, ObjectNotFoundError, TieredStoreError

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
        names = ["empty", "one", "most", "more", "folder", "link", "pipe", "absent"]
        assert read_files(descriptor, 0, names, 1 << 20) == [b"", b"o", b"m" * LONG, *[None] * 5]
        assert read_files(descriptor, 2, ["a/one", "b/empty", "./"], 0) == [None, b"", None]
        # Files beyond one call's memory are left to the caller.
        answers = read_files(descriptor, 0, ["most"] * 20, 1 << 20)
        assert answers == [b"m" * LONG] * 16 + [None] * 4
        with pytest.raises(ValueError, match="1025 files"):
            read_files(descriptor, 0, ["one"] * 1025, 1)
    finally:
        os.close(descriptor)


def test_sizes_and_times_are_those_of_stat(folder: Path) -> None:
    descriptor = opened(folder)
    names = sorted(path.name for path in folder.iterdir())
    try:
        expected = [os.lstat(folder / name) for name in names]
        assert look_at_files(descriptor, "at/", [*names, "absent"]) == [
            *(
                ObjectInfo(f"at/{name}", one.st_size, None, one.st_mtime_ns // 1_000_000)
                if stat.S_ISREG(one.st_mode)
                else None
                for name, one in zip(names, expected, strict=True)
            ),
            None,
        ]
        assert look_at_files(descriptor, "", ["one", "one/below"]) is None
        assert look_at_files(descriptor, "", []) == []
    finally:
        os.close(descriptor)


def test_a_name_is_what_the_system_takes_for_one(folder: Path) -> None:
    descriptor = opened(folder)
    (folder / "caf\u00e9").write_bytes(b"1")
    try:
        for names in (["one\0more"], ["one", "\0"]):
            with pytest.raises(ValueError, match="embedded null"):
                look_at_files(descriptor, "", names)
        odd = ["", ".", "..", "one\0more", "x" * 256, "caf\u00e9", "caf\udce9", "folder/one", "./one", " one"]
        assert read_files(descriptor, 0, odd, 9) == [None] * len(odd)
        # A name's start must lie within its key.
        for start in (-1, 3, 4, 1 << 40):
            assert read_files(descriptor, start, ["one"], 9) == [None]
        modified_ms = (folder / "caf\u00e9").stat().st_mtime_ns // 1_000_000
        assert look_at_files(descriptor, "", ["caf\u00e9"]) == [ObjectInfo("caf\u00e9", 1, None, modified_ms)]
    finally:
        os.close(descriptor)


def test_names_are_told_of_folders_of_plain_files_alone(tmp_path: Path) -> None:
    def told() -> list[str] | None:
        descriptor = opened(tmp_path)
        try:
            # The second call returns the same, because the first leaves the descriptor's position unchanged.
            first, second = names_of_files(descriptor), names_of_files(descriptor)
            assert first == second
            return None if first is None else sorted(first)
        finally:
            os.close(descriptor)

    assert told() == []
    names = sorted(f"{number:04}-{'x' * (number % 200)}.log" for number in range(500))
    for name in names:
        (tmp_path / name).touch()
    assert told() == names
    for odd in ("caf\u00e9", ".~tieredstore-1", "a b", "back\\slash"):
        (tmp_path / odd).touch()
        assert told() is None
        (tmp_path / odd).unlink()
    special = tmp_path / "special"
    special.mkdir()
    assert told() is None
    special.rmdir()
    os.mkfifo(special)
    assert told() is None
    special.unlink()
    special.symlink_to(names[0])
    assert told() is None
    descriptor = os.open(tmp_path / names[0], os.O_RDONLY)
    assert names_of_files(descriptor) is None
    os.close(descriptor)


def test_a_time_that_has_no_milliseconds_in_64_bits_is_left_to_others(tmp_path: Path) -> None:
    file = tmp_path / "late"
    file.touch()
    os.utime(file, (0, 1 << 60))  # some file systems keep such a time, others truncate it
    descriptor = opened(tmp_path)
    try:
        expected = file.stat().st_mtime_ns // 1_000_000
        assert look_at_files(descriptor, "", ["late"]) in ([ObjectInfo("late", 0, None, expected)], None)
    finally:
        os.close(descriptor)
    assert [info.modified_ms for info in FilesystemObjectStore(tmp_path).list()] == [expected]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="no file of this system is longer than its stated size"
)
def test_a_file_that_is_longer_than_it_said_is_left_to_others() -> None:
    descriptor = opened(Path("/proc/self"))
    try:
        assert read_files(descriptor, 0, ["status"], LONG) == [None]
    finally:
        os.close(descriptor)


def test_files_that_change_meanwhile_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    files = ChangingFiles(tmp_path, 1)
    before = len(list(Path("/dev/fd").iterdir()))

    def change() -> None:
        for _ in range(400):
            files.change()

    changing = threading.Thread(target=change)
    changing.start()
    visits = 0
    while changing.is_alive() or visits < 100:
        files.visit()
        visits += 1
    changing.join()
    files.check_settled()
    # Each call also opened entries that are not files, and must have closed them. The margin is for other threads.
    assert len(list(Path("/dev/fd").iterdir())) < before + 50


def test_what_is_no_file_any_more_is_not_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = FilesystemObjectStore(folder)
    plain = [info.key for info in objects.list()]
    assert plain == ["empty", "more", "most", "one", "unreadable"]

    def nothing_is_told(*_: object) -> None:
        return None

    monkeypatch.setattr(files, "names_of_files", nothing_is_told)
    assert [info.key for info in objects.list()] == plain
    # Name every entry as a file, as if files had become something else after the folder was read.
    monkeypatch.setattr(files, "names_of_files", os.listdir)
    assert [info.key for info in objects.list()] == plain
    monkeypatch.setattr(files, "look_at_files", nothing_is_told)
    assert [info.key for info in objects.list()] == plain


def test_each_key_of_a_batch_has_its_own_answer(folder: Path) -> None:
    files = FilesystemObjectStore(folder)
    keys = ["one", "absent", "..", "more", "link", "folder", "caf\udce9", "empty"]
    answers = files.get_small_batch(keys, LONG + 1)
    for key, answer in zip(keys, answers, strict=True):
        alone = outcome(partial(files.get_small, key, LONG + 1))
        assert (type(answer), str(answer)) == (type(alone), str(alone))
    assert isinstance(answers[1], ObjectNotFoundError)
    assert isinstance(answers[2], InvalidKeyError)
    assert answers[3] == b"m" * (LONG + 1)
    assert files.get_small_batch(["one"] * 2000, 1) == [b"o"] * 2000
