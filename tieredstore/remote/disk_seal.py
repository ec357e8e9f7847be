"""How a cached value lies in its file: a header that binds it to its key, and the bytes.

All numbers are big-endian::

    offset  size  field
         0     8  magic, with the version of this layout
         8    32  digest of the key
        40     8  length of the payload
        48     4  CRC-32C of the 48 bytes above, continued over the payload
        52     -  payload, to the end of the file
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from tieredstore.backends.base import Buffer
from tieredstore.errors import CorruptData
from tieredstore.remote._value_files import read_checked

_MAGIC: Final = b"tschunk1"
_BOUND: Final = struct.Struct(">8s32sQ")
_CRC: Final = struct.Struct(">I")
KEY_SIZE: Final = 32
"""The size of a key's digest, in bytes."""

HEADER_SIZE: Final = _BOUND.size + _CRC.size


@dataclass(slots=True)
class Sealed:
    """A value on its way to a file: header and payload, apart, so that the payload is never copied.

    ``filename`` tells where it was stored, for whoever cleans up after a failure.
    """

    header: bytes
    payload: memoryview
    filename: str | None = None


def seal(key: bytes, data: Buffer) -> Sealed:
    """``data`` with the header for ``key``; the payload is a view of ``data``."""
    payload = memoryview(data).cast("B")
    bound = _BOUND.pack(_MAGIC, key, len(payload))
    return Sealed(bound + _CRC.pack(crc32c(payload, crc32c(bound))), payload)


def unseal_into(file: io.FileIO, key: bytes, buffer: memoryview) -> bool:
    """Fill ``buffer`` from a value's file, read from its beginning; False if it holds a payload of another length.

    CorruptData if it is not exactly what was sealed under ``key``; the buffer's content is undefined then.
    """
    header, length = _read_header(file, key)
    if length != len(buffer):
        return False
    _fill(file, header, buffer)
    return True


def unseal(file: io.FileIO, key: bytes, max_size: int) -> bytes:
    """The payload of a value's file, read from its beginning; CorruptData as above, or if it is over ``max_size``."""
    header, length = _read_header(file, key)
    if length > max_size:
        raise CorruptData(f"a cached value says that it has {length} bytes: more than {max_size} are never kept")
    payload = bytearray(length)
    _fill(file, header, memoryview(payload))
    return bytes(payload)


def _read_header(file: io.FileIO, key: bytes) -> tuple[bytes, int]:
    """The header, and the length of a payload that the file does hold."""
    header = file.read(HEADER_SIZE)
    if len(header) != HEADER_SIZE:
        raise CorruptData("a cached value ends within its header")
    magic, sealed_key, length = _BOUND.unpack_from(header)
    if magic != _MAGIC or sealed_key != key:
        raise CorruptData("a file of the cache does not hold the value that its name is listed for")
    if os.fstat(file.fileno()).st_size != HEADER_SIZE + length:
        raise CorruptData(f"a cached value does not have the {length} bytes that its header tells")
    return header, length


def _fill(file: io.FileIO, header: bytes, buffer: memoryview) -> None:
    (expected,) = _CRC.unpack_from(header, _BOUND.size)
    count, checksum = read_checked(file.fileno(), HEADER_SIZE, buffer, crc32c(header[: _BOUND.size]))
    if count != len(buffer):
        raise CorruptData("a cached value became shorter while it was read")
    if checksum != expected:
        raise CorruptData("a cached value does not have its checksum")
