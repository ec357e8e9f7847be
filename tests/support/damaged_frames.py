"""Frames of Zstandard with damage, and the question put to each: is a beginning of it what others read there?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, TypeAlias

import zstandard

from tieredstore.transform._blocks import decompress_beginning, decompress_whole
from tieredstore.transform.zstd import compress

Frame: TypeAlias = tuple[bytes, int, int]
"""The frame, the size of its content, and how much of that is wanted."""

HAS_BLOCKS: Final = decompress_beginning(compress(bytes(2)), memoryview(bytearray(2)), 1)
"""Whether the system has a library that beginnings are read by."""


def damaged_frames(seed: int, count: int) -> Iterator[Frame]:
    """``count`` of them, the same ones for the same seed."""
    chance = random.Random(seed)
    contents = [
        b"".join(chance.choice((b"abc", b"order", chance.randbytes(4))) for _ in range(chance.choice((9, 100_000))))
        for _ in range(6)
    ]
    frames = [(compress(content, chance.choice((1, 3, 19))), len(content)) for content in contents]
    for _ in range(count):
        whole, size = chance.choice(frames)
        frame = bytearray(whole)
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(min(len(frame), chance.choice((20, len(frame)))))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del frame[chance.randrange(len(frame)) :]
        yield bytes(frame), size, chance.randrange(size) + 1


def beginning_is_as_others_read_it(damaged: Frame) -> bool:
    """Whether there is a beginning, in memory of its own size; then it has to be what Python's library reads."""
    frame, size, wanted = damaged
    out = memoryview(bytearray(size))
    return decompress_beginning(frame, out, wanted) and _is_as_others_read_it(frame, out[:wanted])


def whole_is_as_others_read_it(damaged: Frame) -> bool:
    """The same of a whole frame."""
    frame, size, _ = damaged
    out = memoryview(bytearray(size))
    return decompress_whole(frame, out) and _is_as_others_read_it(frame, out)


def _is_as_others_read_it(frame: bytes, read: memoryview) -> bool:
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            assert reader.read(len(read)) == read
    except zstandard.ZstdError:
        # The system's version is another one than Python's, and one notices damage that the other reads over.
        return False
    return True
