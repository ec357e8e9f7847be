"""What a broker's readers have in the system's cache stays there, and what they do not have is no more afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.uploader_disk import BrokerDisk, extents, run_once
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.uploader.page_cache import cache_as_it_was, uncached

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Three blocks and a half."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(7 * MIB // 2))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    yield descriptor
    os.close(descriptor)


class Cache:
    """A cache that a test says, in place of the system's; what is dropped is noted."""

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
    before = list(uncached(file))
    if not before:
        pytest.skip("the file system of the tests' folder keeps all in memory")
    with cache_as_it_was(file):
        assert len(os.pread(file, 4 * MIB, 0)) == 7 * MIB // 2
    assert list(uncached(file)) != []


def test_a_segment_is_shipped_with_the_cache_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BrokerDisk(tmp_path)
    disk.grow(3)
    store = MemoryObjectStore()
    dropped: list[int] = []
    real = os.posix_fadvise

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            dropped.append(length)
        real(descriptor, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr("tieredstore.uploader.page_cache._is_cached", lambda *_: False)
    assert run_once(disk.log_dir, store) == []
    assert len(extents(store)) == 2
    assert dropped == [(disk.folder / f"{base:020d}.log").stat().st_size for base in (0, 10)]
