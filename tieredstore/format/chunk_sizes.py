"""The list of stored chunk sizes: its binary form, and the zstd frame around it.

All integers are big-endian. A list of ``m`` sizes, each 0 to 2^31-1::

    m = 0    int32 0
    m = 1    int32 1 | int32 size
    m >= 2   int32 m | int32 base | int8 w | (m - 1) x uint of w bytes: size - base | int32 last size

``base`` is the smallest of all sizes but the last, ``w`` (1 to 4) the fewest bytes that hold every difference; the last
chunk is usually the odd one, so it is written in full. In the manifest this is one zstd frame that carries its content
size, as base64 text.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, overload

import zstandard

from tieredstore.errors import ManifestCorrupt, SegmentTooLarge
from tieredstore.limits import MAX_INT32

MAX_BINARY_SIZE: Final = 10 * 1024 * 1024
"""The plugin neither writes nor reads a longer binary form."""

_INT: Final = Struct(">i")
_ONE: Final = Struct(">ii")
_HEAD: Final = Struct(">iib")
_LEVEL: Final = 3  # the plugin's; any level is read
_BLOCK: Final = 4096  # so many sizes are numbers at once where all are looked at
_BYTES: Final = bytes(range(256))


class LazyNumbers(Sequence[int]):
    """Numbers that are worked out when they are asked for: :meth:`at` gives the one at an index that is there."""

    __slots__ = ()

    noun: ClassVar[str]
    """What one of them is called in an error."""

    @abstractmethod
    def at(self, index: int) -> int:
        """The number at ``index``, which is 0 or more and below the length."""

    @overload
    def __getitem__(self, item: int) -> int: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[int]: ...
    def __getitem__(self, item: int | slice) -> int | Sequence[int]:
        if isinstance(item, slice):
            return [self.at(index) for index in range(*item.indices(len(self)))]
        index = item + len(self) if item < 0 else item
        if not 0 <= index < len(self):
            raise IndexError(f"no {self.noun} {item} among {len(self)}")
        return self.at(index)


@dataclass(frozen=True, slots=True)
class ChunkSizes(LazyNumbers):
    """A list of sizes that stays in its binary form: a size becomes a number when it is asked for.

    A manifest of a kilobyte can list ten million sizes, which as numbers would take hundreds of megabytes.
    """

    noun = "size"

    length: int
    base: int
    width: int
    differences: bytes
    last: int

    def __len__(self) -> int:
        return self.length

    def at(self, index: int) -> int:
        """One size."""
        return self.sum_of(index, index + 1)

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks():
            yield from (self.base + difference for difference in block)
        if self.length:
            yield self.last

    def sum_of(self, start: int, stop: int) -> int:
        """The sum of the sizes ``start`` up to ``stop``, both within the list."""
        most = max(start, min(stop, self.length - 1))  # the last size is none of the differences
        total = sum(self._differences(start, most)) + (most - start) * self.base
        return total + self.last if start < stop == self.length else total

    def bounds_of_most(self) -> tuple[int, int] | None:
        """The smallest and the greatest size of all but the last; None where there is no other."""
        extremes = [(min(block), max(block)) for block in self._blocks()]
        if not extremes:
            return None
        return self.base + min(least for least, _ in extremes), self.base + max(most for _, most in extremes)

    def are_most_within(self, least: int, most: int) -> bool:
        """Whether all sizes but the last lie within ``least..most``: told at a glance, unless one comes near ``most``
        or the list was not written as the plugin writes it."""
        if self.length < 2:
            return True
        shift = 8 * (self.width - 1)
        if self.base >= least and self.base <= most:
            # What is left of the highest bytes of all differences without those that are surely small enough.
            small = _BYTES[: (most - self.base) >> shift]
            if not self.differences[:: self.width].translate(None, small):
                return True
        lowest, highest = self.bounds_of_most() or (least, most)
        return least <= lowest and highest <= most

    def _blocks(self) -> Iterator[Sequence[int]]:
        for start in range(0, self.length - 1, _BLOCK):
            yield self._differences(start, min(start + _BLOCK, self.length - 1))

    def _differences(self, start: int, stop: int) -> Sequence[int]:
        raw = self.differences[start * self.width : stop * self.width]
        return raw if self.width == 1 else _widen(raw, self.width)


class _OfThread(threading.local):
    """A decompressor serves one thread at a time, and its memory takes longer to get than a list to decompress."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_OWN: Final = _OfThread()


def zstd_of_thread() -> zstandard.ZstdDecompressor:
    """The decompressor of the thread that asks."""
    return _OWN.zstd


def encode_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """The binary form of ``sizes``; SegmentTooLarge if one of them is not within 0..2^31-1."""
    if sizes and not 0 <= min(sizes) <= max(sizes) <= MAX_INT32:
        raise SegmentTooLarge(f"stored chunk sizes {min(sizes)} to {max(sizes)} are not within 0..{MAX_INT32}")
    if not sizes:
        return _INT.pack(0)
    if len(sizes) == 1:
        return _ONE.pack(1, sizes[0])
    # The last one would widen all differences: it is a rest, smaller than the others by any amount.
    most = sizes[:-1]
    base = min(most)
    # At least one byte, even if all sizes are equal: the format has no width 0.
    width = max(1, ((max(most) - base).bit_length() + 7) // 8)
    differences = _narrow(array("I", [size - base for size in most]), width)
    return b"".join((_HEAD.pack(len(sizes), base, width), differences, _INT.pack(sizes[-1])))


def decode_chunk_sizes(raw: bytes | bytearray | memoryview) -> ChunkSizes:
    """The sizes of a binary form; ManifestCorrupt unless it is exactly one list of sizes within 0..2^31-1."""
    count = _read_int(raw, 0)
    if count == 0:
        _check_length(raw, _INT.size)
        return ChunkSizes(0, 0, 1, b"", 0)
    if count == 1:
        _check_length(raw, _ONE.size)
        return ChunkSizes(1, 0, 1, b"", _read_int(raw, _INT.size))
    return _decode_many(raw, count)


def pack_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """``sizes`` as one zstd frame; SegmentTooLarge if the format cannot hold them."""
    binary = encode_chunk_sizes(sizes)
    if len(binary) > MAX_BINARY_SIZE:
        raise SegmentTooLarge(f"{len(sizes)} chunks are more than a manifest can list; use a larger chunk.size")
    return zstandard.ZstdCompressor(level=_LEVEL).compress(binary)


def unpack_chunk_sizes(frame: bytes) -> ChunkSizes:
    """The sizes in one zstd frame, with no allocation above 10 MiB whatever it claims; ManifestCorrupt if damaged."""
    try:
        # The header alone is read here. A frame that does not say its size could grow without end, and is refused.
        claimed = zstandard.frame_content_size(frame)
        if not 0 <= claimed <= MAX_BINARY_SIZE:
            raise ManifestCorrupt(f"the list of chunk sizes does not declare a size up to {MAX_BINARY_SIZE} bytes")
        binary = _OWN.zstd.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ManifestCorrupt(f"the list of chunk sizes is not one whole zstd frame: {error}") from error
    return decode_chunk_sizes(binary)


def _decode_many(raw: bytes | bytearray | memoryview, count: int) -> ChunkSizes:
    if len(raw) < _HEAD.size:
        raise ManifestCorrupt(f"the list of chunk sizes ends after {len(raw)} bytes, inside its head")
    _, base, width = _HEAD.unpack_from(raw)
    if base < 0 or not 1 <= width <= 4:
        raise ManifestCorrupt(f"the list of chunk sizes claims {count} sizes from {base} in {width} bytes each")
    stop = _HEAD.size + (count - 1) * width
    # `count` comes from the bytes: before anything is made of it, it must agree with how many there are.
    _check_length(raw, stop + _INT.size)
    sizes = ChunkSizes(count, base, width, bytes(raw[_HEAD.size : stop]), _read_int(raw, stop))
    # Only if the greatest that so many bytes can say is too great, each has to be looked at.
    if base + (1 << 8 * width) - 1 > MAX_INT32 and not sizes.are_most_within(base, MAX_INT32):
        raise ManifestCorrupt(f"the list of chunk sizes holds a size above {MAX_INT32}")
    return sizes


def _narrow(values: array[int], width: int) -> bytes:
    """The low ``width`` bytes of each 32-bit value, big-endian."""
    whole = _big_endian(values).tobytes()
    narrow = bytearray(len(values) * width)
    for byte in range(width):
        narrow[byte::width] = whole[4 - width + byte :: 4]
    return bytes(narrow)


def _widen(raw: bytes | bytearray | memoryview, width: int) -> array[int]:
    """The inverse of ``_narrow``: byte columns are moved whole, which is twenty times faster than value by value."""
    whole = bytearray(len(raw) // width * 4)
    for byte in range(width):
        whole[4 - width + byte :: 4] = raw[byte::width]
    values = array("I")
    values.frombytes(whole)
    return _big_endian(values)


def _big_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "little":
        values.byteswap()
    return values


def _read_int(raw: bytes | bytearray | memoryview, start: int) -> int:
    if len(raw) < start + _INT.size:
        raise ManifestCorrupt(f"the list of chunk sizes ends after {len(raw)} bytes, inside a number")
    value: int = _INT.unpack_from(raw, start)[0]
    if value < 0:
        raise ManifestCorrupt(f"the list of chunk sizes holds {value}, a negative number")
    return value


def _check_length(raw: bytes | bytearray | memoryview, expected: int) -> None:
    if len(raw) != expected:
        raise ManifestCorrupt(f"the list of chunk sizes has {len(raw)} bytes where its head calls for {expected}")
