"""A Message: the content of one producer request, and the unit of a batch that has a checksum.

::

    at           size  field
    0            2     header length: 19 + extra
    2            2     version: 100
    4            2     extra: bytes of the next four fields (17 + a), or 0 when they are absent
    6            1     address length a
    7            a     the producer's address
    7 + a        8     the producer's epoch: ms at which it started
    15 + a       8     request id; counts from 0 in each producer
    6 + extra    4     CRC-32 of the body as stored
    10 + extra   1     compression: 0 none, 1 gzip, 2 zstd
    11 + extra   4     number of records
    15 + extra   4     body length
    19 + extra         body
"""

from __future__ import annotations

import enum
import os
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import zstandard

from tieredstore.kafka.batches import Buffer
from tieredstore.pubsub.errors import MessageCorruptError

if TYPE_CHECKING:
    from zlib import crc32

    from tieredstore.pubsub.format._writing import BodyWriter

    crc32_combine: Callable[[int, int, int], int] | None
else:
    try:  # isal is several times as fast as zlib; the extra ``arrow`` installs it
        from isal.isal_zlib import crc32, crc32_combine
    except ModuleNotFoundError:
        from zlib import crc32

        crc32_combine = None

Headers: TypeAlias = Sequence[tuple[str, bytes]]
"""Headers of a record: unique names with their values."""

VERSION: Final = 100
BARE_HEADER_SIZE: Final = 19
"""Bytes of a header without the producer's fields."""

_EXTRA_WITHOUT_ADDRESS: Final = 17
_START: Final = struct.Struct(">hhh")
_PRODUCER: Final = struct.Struct(">qq")
_BODY: Final = struct.Struct(">IBii")
_HEADER_SIZE: Final = struct.Struct(">h")
_CRC: Final = struct.Struct(">I")
# MemQ's reader takes the length byte as signed.
_MOST_ADDRESS: Final = 127
# For smaller Messages, computing a CRC of the bytes is as fast as combining two CRCs.
_LEAST_JOINED: Final = 16 << 10
_COMPRESSORS: Final = threading.local()


class Compression(enum.Enum):
    """Compression of a body; the value is MemQ's number."""

    NONE = 0
    GZIP = 1
    ZSTD = 2

    @classmethod
    def of(cls, name: str) -> Compression:
        """Return the compression named ``none``, ``gzip`` or ``zstd``."""
        return cls[name.upper()]


_COMPRESSIONS: Final[tuple[Compression, ...]] = tuple(Compression)  # the index of a compression is its number


ADDRESS_BYTES: Final = 16
"""Length of the address by which a producer of this project identifies itself."""


def new_address() -> bytes:
    """Return a random, unassigned IPv6 address, unique to a producer. Address and request id then identify a
    Message."""
    return b"\xfd" + os.urandom(ADDRESS_BYTES - 1)


def is_own_address(address: bytes) -> bool:
    """Return True for the address of a producer of this project. Such a producer numbers only requests with records,
    whereas MemQ's producers number all requests."""
    return len(address) == ADDRESS_BYTES and address.startswith(b"\xfd")


class ProducerRequest(NamedTuple):
    """A producer and its request id, which together identify a Message of this project's producers."""

    address: bytes
    epoch_ms: int
    request_id: int


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A Message's place: object name, number of the Message, and its first byte in the object."""

    object_name: str
    number: int
    start: int

    def corrupt(self, byte: int, why: str) -> MessageCorruptError:
        """Return the error that names object, Message and byte; ``byte`` counts from the Message's beginning."""
        return MessageCorruptError(f"{self.object_name}: Message {self.number}, byte {self.start + byte}: {why}")


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """The header of a Message. ``request`` is None if the producer's fields are absent."""

    request: ProducerRequest | None
    crc: int
    compression: Compression
    record_count: int
    body_size: int

    @property
    def size(self) -> int:
        """Bytes of the header."""
        return BARE_HEADER_SIZE + (0 if self.request is None else _EXTRA_WITHOUT_ADDRESS + len(self.request.address))

    def to_bytes(self) -> bytes:
        """Return the header as stored."""
        extra = self.size - BARE_HEADER_SIZE
        producer = b""
        if self.request is not None:
            address, epoch, request_id = self.request
            producer = bytes([len(address)]) + address + _PRODUCER.pack(epoch, request_id)
        body = _BODY.pack(self.crc, self.compression.value, self.record_count, self.body_size)
        return _START.pack(self.size, VERSION, extra) + producer + body


def parse_message_header(message: Buffer, place: MessagePlace, *, whole: bool = True) -> MessageHeader:
    """Parse the header of ``message``. Raise MessageCorruptError if the header's numbers are inconsistent.

    With ``whole``, ``message`` is the whole Message, and its size must match the header.
    """
    if len(message) < BARE_HEADER_SIZE:
        raise place.corrupt(
            0, f"{len(message)} bytes are too few for a Message, whose header has at least {BARE_HEADER_SIZE}"
        )
    size, version, extra = _START.unpack_from(message)
    if version != VERSION:
        raise place.corrupt(2, f"its version is {version}, not {VERSION}")
    if extra < 0 or size != BARE_HEADER_SIZE + extra:
        raise place.corrupt(
            0, f"its header has an impossible size: {size} bytes, with {extra} bytes of fields of the producer"
        )
    if len(message) < size:
        raise place.corrupt(0, f"its header says that it is {size} bytes long, but only {len(message)} bytes follow")
    request = _parse_request(message, extra, place) if extra else None
    numbers: tuple[int, int, int, int] = _BODY.unpack_from(message, size - _BODY.size)
    crc, compression, count, body_size = numbers
    if not 0 <= compression < len(_COMPRESSIONS):
        raise place.corrupt(10 + extra, f"unknown compression {compression}")
    if count < 0:
        raise place.corrupt(11 + extra, f"its number of records is negative: {count}")
    if body_size < 0 or (whole and size + body_size != len(message)):
        raise place.corrupt(
            15 + extra, f"its header says that the body has {body_size} bytes, but {len(message) - size} bytes follow"
        )
    return MessageHeader(request, crc, _COMPRESSIONS[compression], count, body_size)


def _parse_request(message: Buffer, extra: int, place: MessagePlace) -> ProducerRequest:
    address_size = message[6]
    if extra != _EXTRA_WITHOUT_ADDRESS + address_size or address_size > _MOST_ADDRESS:
        raise place.corrupt(
            6, f"its fields of the producer have {extra} bytes, which does not match an address of {address_size} bytes"
        )
    epoch, request_id = _PRODUCER.unpack_from(message, 7 + address_size)
    return ProducerRequest(bytes(message[7 : 7 + address_size]), epoch, request_id)


def checksum(data: Buffer, before: int = 0) -> int:
    """Return zlib's CRC-32 of ``data``; ``before`` is the CRC-32 of preceding bytes."""
    return crc32(data, before)


def joined_crc(first: int, second: int, data: Buffer) -> int:
    """Return the CRC-32 of two joined parts from the CRC-32 of each. ``data`` is the second part, which is read only
    without isal."""
    return crc32(data, first) if crc32_combine is None else crc32_combine(first, second, len(data))


def message_checksum(message: Buffer, before: int = 0) -> int:
    """Return the CRC-32 of a sealed or checked Message. For a large body, the checksum in the header is used."""
    view = memoryview(message)
    (size,) = _HEADER_SIZE.unpack_from(view)
    crc, body_size = crc32(view[:size], before), len(view) - size
    if body_size < _LEAST_JOINED:
        return crc32(view[size:], crc)
    (body_crc,) = _CRC.unpack_from(view, size - _BODY.size)
    return joined_crc(crc, body_crc, view[size:])


def split_checksum(message: Buffer) -> tuple[int, int]:
    """Return the CRC-32 of a Message and of its body, computed in one pass. This function does not use the checksum in
    the header."""
    view = memoryview(message)
    (size,) = _HEADER_SIZE.unpack_from(view) if len(view) >= _HEADER_SIZE.size else (0,)
    body = view[min(max(size, 0), len(view)) :]
    body_crc = crc32(body)
    return joined_crc(crc32(view[: len(view) - len(body)]), body_crc, body), body_crc


def check_crc(header: MessageHeader, body: Buffer, place: MessagePlace, known: int | None = None) -> None:
    """Raise MessageCorruptError if the stored body does not have the header's checksum.

    ``known`` is the body's checksum if it was computed before."""
    if (computed := crc32(body) if known is None else known) != header.crc:
        raise place.corrupt(header.size, f"its body has CRC-32 {computed:08x}, but its header says {header.crc:08x}")


def seal_message(
    body: BodyWriter | bytes,
    record_count: int,
    request: ProducerRequest | None,
    compression: Compression = Compression.ZSTD,
) -> bytes:
    """Compress a body of ``record_count`` records as a whole, and return its Message. Most of the work releases the
    interpreter's lock."""
    with memoryview(body) as view:
        stored = _COMPRESS[compression](view)
    return MessageHeader(request, crc32(stored), compression, record_count, len(stored)).to_bytes() + stored


def seal_body(body: BodyWriter, request: ProducerRequest | None, compression: Compression) -> bytes | memoryview:
    """Build the Message of a finished body like :func:`seal_message`, but do not copy an uncompressed body.

    Without compression the Message uses the memory of ``body``, so do not use ``body`` afterwards.
    """
    if compression is not Compression.NONE:
        return seal_message(body, body.count, request, compression)
    with memoryview(body) as view:
        header = MessageHeader(request, crc32(view), compression, body.count, len(view))
    return body.add_header(header.to_bytes())


def _zstd(body: memoryview) -> bytes:
    compressor: zstandard.ZstdCompressor | None = getattr(_COMPRESSORS, "zstd", None)
    if compressor is None:
        # Compress as MemQ does: at level 3, in a frame without content size and checksum.
        compressor = zstandard.ZstdCompressor(level=3, write_content_size=False, write_dict_id=False)
        _COMPRESSORS.zstd = compressor
    return compressor.compress(body)


def _gzip(body: memoryview) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


_COMPRESS: Final[dict[Compression, Callable[[memoryview], bytes]]] = {
    Compression.NONE: bytes,
    Compression.GZIP: _gzip,
    Compression.ZSTD: _zstd,
}
