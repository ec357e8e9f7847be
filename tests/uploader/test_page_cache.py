"""Pages that were in the system's page cache stay there. Pages that an upload brings in are dropped afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.uploader.uploader_disk import BrokerDisk, extents, run_once
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.uploader.segment import cache_as_it_was, list_uncached

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Yield a file of three and a half blocks."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(7 * MIB // 2))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    yield descriptor
    os.close(descriptor)


class Cache:
    """Scripted page cache that records the dropped pages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cached: Sequence[int]) -> None:
        self.cached, self.dropped = cached, list[tuple[int, int]]()
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "posix_fadvise", self.advise)

    def preadv(self, _: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if offset // MIB not in self.cached:
            raise BlockingIOError(errno.EAGAIN, "it is not there")
        return len(buffers[0])

    def advise(self, _: int, start: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            self.dropped.append((start, length))


@pytest.mark.parametrize(
    ("cached", "absent"),
    [
        ([0, 1, 2, 3], []),
        ([], [(0, 7 * MIB // 2)]),
        ([0, 2], [(MIB, MIB), (3 * MIB, MIB // 2)]),
        ([3], [(0, 3 * MIB)]),
        ([1, 2], [(0, MIB), (3 * MIB, MIB // 2)]),
    ],
)
def test_only_what_was_not_there_is_dropped(
    file: int, monkeypatch: pytest.MonkeyPatch, cached: list[int], absent: list[tuple[int, int]]
) -> None:
    cache = Cache(monkeypatch, cached)
    with cache_as_it_was(file):
        assert cache.dropped == []
    assert cache.dropped == absent


@pytest.mark.parametrize(("cached", "absent"), [([0], []), ([], [(0, 5000)])])
def test_a_small_file_is_told_by_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: list[int], absent: list[tuple[int, int]]
) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(5000))
    cache = Cache(monkeypatch, cached)
    with path.open("rb") as file, cache_as_it_was(file.fileno()):
        pass
    assert cache.dropped == absent


def test_of_an_empty_file_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    cache = Cache(monkeypatch, [])
    with (tmp_path / "empty").open("rb") as file, cache_as_it_was(file.fileno()):
        pass
    assert cache.dropped == []


def test_where_nobody_tells_what_is_cached_nothing_is_dropped(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(monkeypatch, [])

    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "preadv", refuse)
    with cache_as_it_was(file):
        pass
    assert cache.dropped == []


def test_by_the_systems_own_cache(file: int) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if not list(list_uncached(file)):
        pytest.skip("the file system of the tests' folder keeps all in memory")

    def is_dropped() -> bool:
        with cache_as_it_was(file):
            assert len(os.pread(file, 4 * MIB, 0)) == 7 * MIB // 2
        return bool(list(list_uncached(file)))

    # Repeat, because a busy system may keep pages that it was asked to drop, especially those just read.
    wait_until(is_dropped, 60, meanwhile=lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))


def test_a_segment_is_shipped_with_the_cache_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BrokerDisk(tmp_path, segments=3)
    store = MemoryObjectStore()
    dropped: list[int] = []
    real, preadv = os.posix_fadvise, os.preadv

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            dropped.append(length)
        real(descriptor, start, length, advice)

    def read_from_disk(descriptor: int, buffers: Sequence[bytearray], offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "it is not there")
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(os, "preadv", read_from_disk)
    assert run_once(disk.log_dir, store) == []
    assert len(extents(store)) == 2
    assert dropped == [(disk.folder / f"{base:020d}.log").stat().st_size for base in (0, 10)]
