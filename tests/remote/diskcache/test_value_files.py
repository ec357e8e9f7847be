"""Files of the disk cache are read and checksummed in one step; the sums equal another library's, for any pieces."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tieredstore.remote.diskcache._value_files import read_checked

PIECE = 131_072
BYTES = random.Random(5).randbytes(3 * PIECE + 1_000)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("values") / "value"
    path.write_bytes(BYTES)
    return os.open(path, os.O_RDONLY)


@settings(deadline=None)
@given(start=st.integers(0, 3_000), size=st.integers(0, len(BYTES)), before=st.binary(max_size=60))
@example(start=0, size=PIECE, before=b"")
@example(start=52, size=PIECE + 1, before=b"header")
@example(start=52, size=2 * PIECE, before=b"header")
@example(start=1_000, size=3 * PIECE, before=b"")
@example(start=0, size=len(BYTES), before=b"x")
def test_bytes_and_sum_are_those_of_the_file(descriptor: int, start: int, size: int, before: bytes) -> None:
    there = BYTES[start : start + size]
    memory = bytearray(b"\xaa" * (size + 2))
    got = read_checked(descriptor, start, memoryview(memory)[1 : 1 + size], crc32c(before))
    assert got == (len(there), crc32c(before + there))
    assert memory == b"\xaa" + there + b"\xaa" * (1 + size - len(there))


def test_the_files_own_position_stays(descriptor: int) -> None:
    os.lseek(descriptor, 7, os.SEEK_SET)
    read_checked(descriptor, 100, bytearray(10), 0)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 7


def test_what_the_system_refuses_is_its_error(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            read_checked(folder, 0, bytearray(10), 0)
    finally:
        os.close(folder)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_checked(folder, 0, bytearray(10), 0)


def test_memory_that_may_not_be_written_is_refused(descriptor: int) -> None:
    with pytest.raises((BufferError, ValueError)):
        read_checked(descriptor, 0, memoryview(bytes(10)), 0)
