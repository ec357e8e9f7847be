"""Intact and damaged compressed batch bodies, and a check that the scanner reads them like the codec's library."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import cramjam

from tests.support.records.record_batches import lz4_library, snappy_framed
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.records._checks import expand
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.kafka.records.codecs import Decompressor

MOST_BYTES: Final = 1 << 20

Body: TypeAlias = tuple[CompressionType, bytes]


COMPRESSORS: Final[list[tuple[CompressionType, Callable[[bytes], bytes]]]] = [
    (CompressionType.SNAPPY, lambda plain: bytes(cramjam.snappy.compress_raw(plain))),
    (CompressionType.SNAPPY, lambda plain: snappy_framed(plain, 32 * 1024)),
    (CompressionType.SNAPPY, lambda plain: snappy_framed(plain, 300)),
    (CompressionType.LZ4, lambda plain: bytes(lz4_library.compress(plain, store_size=False, block_linked=False))),
    (CompressionType.LZ4, lambda plain: bytes(lz4_library.compress(plain, block_linked=True, compression_level=9))),
]
"""Codecs, each with a function that compresses as a client does. The scanner must read all these bodies without a
library.
"""


def plain_text(source: random.Random) -> bytes:
    """Return some noise, and repetitions of all lengths and distances."""
    text = bytearray(source.randbytes(source.choice((1, 3, 20, 100))))
    while len(text) < source.choice((10, 200, 3_000, 100_000)):
        distance = min(source.choice((1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 60, 300, 5_000)), len(text))
        pattern = bytes(text[-distance:])
        length = source.choice((1, 4, 5, 15, 18, 19, 40, 64, 65, 270, 1_000))
        text += (pattern * (length // distance + 1))[:length]
        text += source.randbytes(source.choice((0, 0, 1, 4, 14, 15, 16, 17, 33, 61, 300)))
    return bytes(text)


def damaged_bodies(seed: int, count: int) -> Iterator[Body]:
    """Yield ``count`` bodies with a few changes, the same ones for the same seed."""
    source = random.Random(seed)
    originals = [(codec, compress(plain_text(source))) for codec, compress in COMPRESSORS for _ in range(12)]
    for _ in range(count):
        codec, body = source.choice(originals)
        damaged = bytearray(body)
        for _ in range(source.choice((1, 1, 2, 5))):
            _damage(source, damaged)
        yield codec, bytes(damaged)


def _damage(source: random.Random, body: bytearray) -> None:
    # Damage the first bytes more often, because most decisions of the scanner depend on them.
    at = source.randrange(min(len(body), source.choice((30, len(body)))) or 1)
    match source.randrange(5):
        case 0:
            body[at : at + 1] = bytes([source.randrange(256)])
        case 1:
            body[at : at + 1] = source.choice((b"\0", b"\1", b"\xf0", b"\xff", b"\xff\xff\xff"))
        case 2:
            del body[at : at + source.randrange(1, 9)]
        case 3:
            body[at:at] = body[at // 2 : at // 2 + source.randrange(1, 40)]
        case _:
            del body[-source.randrange(1, 20) :]


def by_library(codec: CompressionType, body: bytes) -> bytes | None:
    """Return the body as the codec's library decompresses it; None if it refuses."""
    try:
        return bytes(Decompressor(shared_pool(), MOST_BYTES).decompress(codec, 2, memoryview(body)))
    except BatchCorruptError:
        return None


def check_body(body: Body) -> bool:
    """Return True if the scanner reads the body itself. Assert that the library then gives the same bytes."""
    codec, stored = body
    expanded = expand(codec.value, stored, MOST_BYTES)
    if expanded is None:
        return False
    if expanded != by_library(codec, stored):
        raise AssertionError(f"{codec.name} {stored.hex()} is something else to its library")
    return True
