"""What a broker looks at before it holds a Message: one that is damaged would spoil the batch of others."""

from __future__ import annotations

import io
import zlib
from typing import Final

import zstandard

from tieredstore.pubsub.errors import MessageCorrupt
from tieredstore.pubsub.format.messages import (
    Compression,
    MessageHeader,
    MessagePlace,
    check_crc,
    parse_message_header,
    split_checksum,
)
from tieredstore.pubsub.format.packets import WriteRequest

_PLACE: Final = MessagePlace("a request", 0, 0)
_GZIP: Final = 16 + zlib.MAX_WBITS


def check_message(write: WriteRequest, most: int) -> MessageHeader:
    """The header of the Message that a request carries; MessageCorrupt if it is not whole, or larger than ``most``."""
    if len(write.data) > most:
        raise MessageCorrupt(f"a Message of {len(write.data)} bytes, of which a batch holds {most}")
    computed, body_crc = split_checksum(write.data)
    if computed != write.crc:
        raise MessageCorrupt(f"the data have the CRC-32 {computed:08x}, and the request says {write.crc:08x}")
    header = parse_message_header(write.data, _PLACE)
    body = memoryview(write.data)[header.size :]
    check_crc(header, body, _PLACE, body_crc)
    if not header.record_count and _holds_something(header.compression, body):
        raise MessageCorrupt("a Message says to have no records, and has some, which nobody would read")
    return header


def _holds_something(compression: Compression, body: memoryview) -> bool:
    """Whether a body expands to one byte or more; no more than one byte is expanded."""
    if compression is Compression.NONE or not body:
        return bool(body)
    try:
        if compression is Compression.GZIP:
            return bool(zlib.decompressobj(_GZIP).decompress(body, 1))
        return bool(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read(1))
    except (zlib.error, zstandard.ZstdError):
        return True
