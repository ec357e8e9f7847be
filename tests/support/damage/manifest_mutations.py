"""Manifests with random damage."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator

import zstandard

from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex, encode_chunk_sizes
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

_CHUNK = 65_536
_SEGMENT = RemoteLogSegmentId(TopicIdPartition(Uuid(b"partition of one"), "orders", 7), Uuid(b"a segment of it!"))
_NUMBERS = (b"-1", b"-2", b"00", b"", b"2147483648", b"9223372036854775807", b"9223372036854775808", b"9" * 40, b"1e3")
_SIZES = re.compile(rb'(?<="transformedChunks":")[^"]*')


def damaged_manifests(seed: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` texts of manifests, of which few are intact. The same seed gives the same texts."""
    chance = random.Random(seed)
    for _ in range(count):
        sizes = [chance.randrange(29, _CHUNK) for _ in range(chance.choice((1, 2, 7, 300)))]
        whole = _manifest(chance, sizes).to_bytes()
        yield _with_damaged_sizes(chance, whole, sizes) if chance.random() < 0.4 else damaged_text(chance, whole)


def damaged_text(chance: random.Random, whole: bytes) -> bytes:
    """Return ``whole`` with a bit flipped, bytes removed, repeated or inserted, or one number changed."""
    text, place = bytearray(whole), chance.randrange(len(whole))
    match chance.randrange(8):
        case 0:
            del text[place:]
        case 1:
            del text[place : place + chance.randrange(1, 4)]
        case 2:
            text[place:place] = text[place : place + chance.randrange(1, 300)]
        case 3:
            text[place:place] = chance.randbytes(1)
        case 4:
            number = chance.choice(list(re.finditer(rb"\d+", whole)))
            text[number.start() : number.end()] = chance.choice(_NUMBERS)
        case _:
            text[place] ^= 1 << chance.randrange(8)
    return bytes(text)


def _with_damaged_sizes(chance: random.Random, whole: bytes, sizes: list[int]) -> bytes:
    """Return valid text whose packed list of sizes is damaged."""
    binary = bytearray(encode_chunk_sizes(sizes))
    for _ in range(chance.randrange(3)):
        # Damage the front more often, because counts and widths are there.
        binary[chance.randrange(chance.choice((min(9, len(binary)), len(binary))))] = chance.randrange(256)
    if chance.random() < 0.3:
        del binary[chance.randrange(len(binary)) :]
    packed = zstandard.ZstdCompressor(write_content_size=chance.random() < 0.9).compress(bytes(binary))
    text = base64.b64encode(packed[: chance.choice((len(packed), chance.randrange(len(packed))))])
    return _SIZES.sub(lambda _: text, whole)


def _manifest(chance: random.Random, sizes: list[int]) -> SegmentManifest:
    file_size = len(sizes) * _CHUNK
    end, entries = 0, list[IndexEntry]()
    for _ in range(5):
        entries.append(IndexEntry(end, chance.randrange(29, 300)))
        end += entries[-1].size
    epochs = tuple((epoch, 23 + epoch) for epoch in range(chance.choice((0, 1, 3, 64, 65))))
    metadata = RemoteLogSegmentMetadata(_SEGMENT, 23, 2000, file_size, 1_700_000_000_123, 3, -1, epochs, True)
    is_variable = chance.random() < 0.8
    return SegmentManifest(
        VariableChunkIndex.from_sizes(_CHUNK, file_size, sizes)
        if is_variable
        else FixedChunkIndex(_CHUNK, file_size, _CHUNK, _CHUNK),
        SegmentIndexes(entries[0], entries[1], entries[2], entries[3], chance.choice((entries[4], None))),
        compression=is_variable,
        encryption=None
        if not is_variable or chance.random() < 0.5
        else WrappedDataKey("k1", chance.randbytes(40), chance.randbytes(32)),
        metadata=chance.choice((None, metadata)),
    )
