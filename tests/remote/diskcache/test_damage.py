"""Damage to the disk cache's files and rows: reads give the right bytes or a miss, and never run code from a row."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.open_files import open_below
from tests.support.stores.disk_cache_access import CHUNKS, KEY, change_table, got, opened, own_folder, rows, value_files
from tieredstore.errors import CorruptDataError
from tieredstore.remote.diskcache.values import HEADER_SIZE, RawDisk, write_value

CHUNK = bytes(range(200))


@settings(deadline=None)
@given(place=st.integers(0, HEADER_SIZE + len(CHUNK) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_a_miss_and_the_entry_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "flips"
    with opened(path) as cache:
        cache.put(KEY, CHUNK)
        (file,) = value_files(path)
        raw = bytearray(file.read_bytes())
        raw[place] ^= 1 << bit
        file.write_bytes(raw)
        assert got(cache, KEY, len(CHUNK)) is None
        assert (cache.stats.damaged, cache.stats.entries, value_files(path)) == (1, 0, [])
        cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
        assert cache.stats.failures == 0


def test_a_damaged_entry_on_a_disk_that_became_read_only_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        value_files(tmp_path)[0].write_bytes(b"damaged")
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", read_only)
            assert got(cache, KEY, len(CHUNK)) is None


def test_a_folder_in_a_files_place_is_a_miss_that_leaves_no_open_file(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        path = value_files(tmp_path)[0]
        path.unlink()
        path.mkdir()
        assert got(cache, KEY, len(CHUNK)) is None
        assert KEY not in cache
        assert open_below(path) == []


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 1, HEADER_SIZE + len(CHUNK) - 1])
def test_a_truncated_file_is_a_miss(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        os.truncate(value_files(tmp_path)[0], size)
        assert got(cache, KEY, len(CHUNK)) is None
        assert (cache.stats.damaged, cache.stats.entries, value_files(tmp_path)) == (1, 0, [])


def test_a_file_with_something_behind_its_value_is_a_miss(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        with value_files(tmp_path)[0].open("ab") as file:
            file.write(b"x")
        assert got(cache, KEY, len(CHUNK)) is None
        assert got(cache, KEY, len(CHUNK) + 1) is None


def test_a_file_that_shrinks_while_it_is_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        (file,) = value_files(tmp_path)
        honest, size = os.fstat, file.stat().st_size

        def shrinking(fd: int) -> os.stat_result:
            status = honest(fd)
            if status.st_size == size:
                os.truncate(file, size - 1)
            return status

        monkeypatch.setattr(os, "fstat", shrinking)
        assert got(cache, KEY, len(CHUNK)) is None
        assert cache.stats.damaged == 1


def test_swapped_files_are_misses(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], b"first")
        cache.put(CHUNKS[1], b"other")
        one, other = value_files(tmp_path)
        raw = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(raw)
        assert [got(cache, key, 5) for key in CHUNKS[:2]] == [None, None]


def test_swapped_rows_change_no_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], b"first")
        cache.put(CHUNKS[1], b"other")
        (first,), (second,) = rows(tmp_path, "key")
        for old, new in ((first, "x"), (second, first), ("x", second)):
            change_table(tmp_path, "UPDATE Cache SET key = ? WHERE key = ?", new, old)
        assert [got(cache, key, 5) for key in CHUNKS[:2]] == [b"first", b"other"]


def test_a_file_removed_by_hand_is_a_miss_and_its_row_is_used_again(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        value_files(tmp_path)[0].unlink()
        assert got(cache, KEY, len(CHUNK)) is None
        cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
        assert (cache.stats.entries, cache.stats.bytes) == (1, len(CHUNK))
        assert (cache.stats.damaged, cache.stats.failures) == (0, 0)


def test_a_row_removed_by_hand_is_listed_again(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        change_table(tmp_path, "DELETE FROM Cache")
        assert got(cache, KEY, len(CHUNK)) == CHUNK
        cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
        assert (cache.stats.entries, cache.stats.bytes) == (1, len(CHUNK))


class Harm:
    """Creates a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._witness),)


@pytest.mark.parametrize("in_file", [False, True])
def test_a_planted_pickle_is_never_loaded(tmp_path: Path, in_file: bool) -> None:
    witness = tmp_path / "witness"
    harm = pickle.dumps(Harm(witness))
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        if in_file:
            value_files(tmp_path)[0].write_bytes(harm)
            change_table(tmp_path, "UPDATE Cache SET mode = 4")
        else:
            change_table(tmp_path, "UPDATE Cache SET mode = 4, filename = NULL, value = ?, size = 0", harm)
        assert got(cache, KEY, len(CHUNK)) == (None if in_file else CHUNK)
        assert cache.stats.damaged == int(in_file)
        cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
    with opened(tmp_path, 100) as cache:
        cache.put(CHUNKS[1], bytes(100))  # in place of the planted row
        assert cache.stats.entries == 1
    assert not witness.exists()
    pickle.loads(harm)
    assert witness.exists(), "the pickle would not have shown it"


@pytest.mark.parametrize("mode", [0, 1, 3, 5, -1, "2", None, b"\2"])
def test_rows_of_other_modes_change_no_byte(tmp_path: Path, mode: object) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        change_table(tmp_path, "UPDATE Cache SET mode = ?, value = ?", mode, b"other")
        for _ in range(2):
            assert got(cache, KEY, len(CHUNK)) == CHUNK
            cache.put(KEY, CHUNK)
        assert rows(tmp_path, "mode, value") == [(2, None)]


def test_a_planted_pickled_key_is_passed_over(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    with opened(tmp_path, 1000) as cache:
        cache.put(KEY, CHUNK)
        change_table(tmp_path, "UPDATE Cache SET key = ?, raw = 0, access_time = 0", pickle.dumps(Harm(witness)))
        assert got(cache, KEY, len(CHUNK)) == CHUNK
        for key in CHUNKS:
            cache.put(key, CHUNK)
        assert cache.stats.bytes <= 1000
    assert not witness.exists()


@pytest.mark.parametrize("name", ["../../foreign", "ab/../../../foreign", "/{path}/foreign", "", "ab", None, b"x", 7])
def test_a_planted_file_name_leads_nowhere(tmp_path: Path, name: str | bytes | int | None) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        foreign = tmp_path / "foreign"
        foreign.write_bytes(value_files(tmp_path)[0].read_bytes())
        planted = name.format(path=tmp_path) if isinstance(name, str) else name
        for _ in range(2):
            change_table(tmp_path, "UPDATE Cache SET filename = ?", planted)
            assert got(cache, KEY, len(CHUNK)) == CHUNK
            cache.put(KEY, CHUNK)  # in place of the planted row
        assert foreign.exists()


def test_a_link_in_a_files_place_is_not_followed(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        (file,) = value_files(tmp_path)
        file.rename(tmp_path / "foreign")
        file.symlink_to(tmp_path / "foreign")
        assert got(cache, KEY, len(CHUNK)) is None
    assert (tmp_path / "foreign").exists()


@pytest.mark.parametrize("value", [b"bytes", bytearray(b"x"), memoryview(b"x"), "text", 1, 1.0, {}, object()])
def test_the_disk_stores_written_values_only(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match="written values only"):
        RawDisk(str(tmp_path)).store(value, False, "k" * 64)
    assert list(tmp_path.iterdir()) == []


def test_the_disk_gives_nothing_of_a_row(tmp_path: Path) -> None:
    disk, witness = RawDisk(str(tmp_path)), tmp_path / "witness"
    _, mode, filename, _ = disk.store(write_value(tmp_path, b"k" * 32, b"x"), False, (b"k" * 32).hex())
    for row in ((mode, filename), (4, None), (4, filename), (1, None), (3, filename), (2, None), (2, "../x")):
        disk.fetch(*row, pickle.dumps(Harm(witness)), read=False)
    assert not witness.exists()


@pytest.mark.parametrize("key", [b"bytes", 1, 1.0, None, ("a",), object()])
def test_a_planted_key_that_is_not_text_is_never_unpickled(tmp_path: Path, key: object) -> None:
    disk, witness = RawDisk(str(tmp_path)), tmp_path / "witness"
    for row in ((key, True), ("text", False), (pickle.dumps(Harm(witness)), False)):
        with pytest.raises(CorruptDataError, match="nothing is unpickled"):
            disk.get(*row)
    assert disk.get("text", True) == "text"
    assert not witness.exists()


def test_trouble_of_one_kind_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as cache:
        for key in CHUNKS:
            cache.put(key, CHUNK)
        for file in value_files(tmp_path):
            file.write_bytes(b"damage")
        for key in CHUNKS:
            assert got(cache, key, len(CHUNK)) is None
        assert cache.stats.damaged == 16
    assert len(caplog.records) == 1
    assert str(own_folder(tmp_path)) in caplog.text
