"""Files of the disk cache, one for each value. The value's key gives the file's name.

The header binds a value to its key. All numbers are big-endian::

    offset  size  field
         0     8  magic
         8    32  digest of the key
        40     8  length of the payload
        48     4  CRC-32C of the 48 bytes above, continued over the payload
        52     -  payload, to the end of the file

This module is separate from ``cache``, because files in this format outlive a release. The tests of the format need no
table.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c
from diskcache import Disk

from tieredstore.backends.base import Buffer
from tieredstore.errors import CorruptDataError
from tieredstore.remote.diskcache._value_files import read_checked

_MAGIC: Final = b"tschunk1"
_BOUND: Final = struct.Struct(">8s32sQ")
HEADER_SIZE: Final = _BOUND.size + 4
_IN_FILE: Final = 2  # the library's number for a row whose value is in a file of bytes
_NAME: Final = re.compile(r"[0-9a-f]{2}/[0-9a-f]{62}\.val|[0-9a-f]{32}\.new")


@dataclass(frozen=True, slots=True)
class Written:
    """A value in a file that the table does not list yet. ``size`` is the size of the payload."""

    path: Path
    size: int


def name_of(key: str) -> str:
    """Return the path of a value's file within the cache's folder. ``key`` is 64 hexadecimal digits."""
    return f"{key[:2]}/{key[2:]}.val"


def is_own(path: Path) -> bool:
    """Return True if the file has a name of this cache: ``*.new``, or ``*.val`` in a folder named by two digits."""
    name = path.name if path.suffix == ".new" else f"{path.parent.name}/{path.name}"
    return _NAME.fullmatch(name) is not None


def write_value(folder: Path, key: bytes, data: Buffer) -> Written:
    """Write ``data`` and the header for ``key`` to a new file. On failure, no file remains. The file is not synced to
    disk."""
    payload = memoryview(data).cast("B")
    bound = _BOUND.pack(_MAGIC, key, len(payload))
    path = folder / f"{os.urandom(16).hex()}.new"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(bound + crc32c(payload, crc32c(bound)).to_bytes(4, "big"))
            file.write(payload)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Written(path, len(payload))


def read_value(file: io.FileIO, key: bytes, buffer: memoryview) -> bool:
    """Read a value into ``buffer``. Return False if the value has another length.

    Raise CorruptDataError if the file is not exactly the value written for ``key``. The buffer is then undefined.
    """
    header = file.read(HEADER_SIZE)
    if len(header) != HEADER_SIZE:
        raise CorruptDataError("a cached value ends within its header")
    magic, own_key, length = _BOUND.unpack_from(header)
    if magic != _MAGIC or own_key != key:
        raise CorruptDataError("a cache file has another format, or the value of another key")
    if os.fstat(file.fileno()).st_size != HEADER_SIZE + length:
        raise CorruptDataError(f"a cached value does not have the {length} bytes that its header states")
    if length != len(buffer):
        return False
    count, checksum = read_checked(file.fileno(), HEADER_SIZE, buffer, crc32c(header[: _BOUND.size]))
    if count != length or checksum.to_bytes(4, "big") != header[_BOUND.size :]:
        raise CorruptDataError("a cached value does not match its checksum")
    return True


class RawDisk(Disk):
    """Storage of values in files, outside of the library's rows. Unlike the library's own class, it pickles nothing
    (CVE-2025-69872).

    This class removes only files with the cache's names. ``removed`` collects the size of each removed payload.
    """

    def __init__(self, directory: str, **_: object) -> None:
        super().__init__(directory)  # ignore the settings that the library passes to this class
        self._folder = Path(directory)
        self.removed: list[int] = []

    def get(self, key: object, raw: object) -> str:
        """Return the key of a row. Raise CorruptDataError if it is not text."""
        if not raw or not isinstance(key, str):
            raise CorruptDataError("the disk cache lists a key that is not text; nothing is unpickled")
        return key

    def store(self, value: object, read: bool, key: str) -> tuple[int, int, str | None, None]:  # noqa: ARG002 - the library passes it
        """Rename the file of a written value to the name for ``key``. Return size, mode and file name for the table's
        row, which does not contain the value.

        None becomes a row without a file. Any other type raises TypeError.
        """
        if value is None:
            return 0, _IN_FILE, None, None
        if not isinstance(value, Written):
            raise TypeError(f"the disk cache stores written values only, not {type(value).__name__}")
        path = self._folder / name_of(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        value.path.rename(path)
        return value.size, _IN_FILE, name_of(key), None

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> None:
        """Return None, because values are read from their files."""

    def remove(self, file_path: object) -> None:
        """Remove a value's file, and ignore a failure."""
        if isinstance(file_path, str) and file_path.endswith(".val") and _NAME.fullmatch(file_path):
            with contextlib.suppress(OSError):
                size = (self._folder / file_path).lstat().st_size - HEADER_SIZE
                (self._folder / file_path).unlink()
                self.removed.append(size)
