"""The position of each chunk of a segment, in the log and in the stored object.

A segment's log is cut every ``original_chunk_size`` bytes. The last chunk holds the rest. Each chunk is transformed
(compressed, encrypted) on its own, and the stored chunks follow each other without gaps.

Without compression, all stored chunks but the last have the same size (a ``fixed`` index). With compression, each
stored chunk has its own size (a ``variable`` index).

A variable index holds the sizes in a binary form with big-endian integers. A list of ``m`` sizes, each 0 to 2^31-1::

    m = 0    int32 0
    m = 1    int32 1 | int32 size
    m >= 2   int32 m | int32 base | int8 w | (m - 1) x uint of w bytes: size - base | int32 last size

``base`` is the smallest of all sizes except the last. ``w`` (1 to 4) is the smallest number of bytes in which every
difference fits. The last chunk usually differs most, so its size is written in full. The manifest contains this list as
base64 text of one zstd frame that declares its content size.
"""

from __future__ import annotations

import base64
import sys
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import Struct
from typing import ClassVar, Final, overload

import zstandard

from tieredstore.errors import InvalidRangeError, ManifestCorruptError, SegmentTooLargeError
from tieredstore.format.json_object import decode_base64
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.limits import MAX_INT32
from tieredstore.model import ByteRange

MAX_BINARY_SIZE: Final = 10 * 1024 * 1024
"""Maximum length of the chunk index's binary form. The plugin neither writes nor reads a longer form."""

_INT: Final = Struct(">i")
_ONE: Final = Struct(">ii")
_HEAD: Final = Struct(">iib")
_LEVEL: Final = 3  # the plugin writes with this level; any level can be read
_SIZES_A_BLOCK: Final = 4096  # sizes unpacked at a time when all sizes are checked
_BYTES: Final = bytes(range(256))


class LazyNumbers(Sequence[int]):
    """Numbers computed on access: :meth:`at` returns the number at an index within bounds."""

    __slots__ = ()

    noun: ClassVar[str]
    """The word by which error messages name a number of this sequence, such as "size"."""

    @abstractmethod
    def at(self, index: int) -> int:
        """Return the number at ``index``, which is 0 or more and below the length."""

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
    """A list of sizes, kept in its binary form. Each size becomes a number on access.

    A manifest of a kilobyte can list ten million sizes, which as Python numbers would take hundreds of megabytes.
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
        """Return one size."""
        return self.sum_of(index, index + 1)

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks():
            yield from (self.base + difference for difference in block)
        if self.length:
            yield self.last

    def sum_of(self, start: int, stop: int) -> int:
        """Return the sum of the sizes at indexes ``start`` to ``stop`` (half-open), both within the list."""
        most = max(start, min(stop, self.length - 1))  # the last size is not among the differences, but stored in full
        total = sum(self._differences(start, most)) + (most - start) * self.base
        return total + self.last if start < stop == self.length else total

    def bounds_of_most(self) -> tuple[int, int] | None:
        """Return the smallest and the greatest of all sizes except the last; None if there is only one size."""
        extremes = [(min(block), max(block)) for block in self._blocks()]
        if not extremes:
            return None
        return self.base + min(least for least, _ in extremes), self.base + max(most for _, most in extremes)

    def are_most_within(self, least: int, most: int) -> bool:
        """Return True if all sizes except the last lie within ``least..most``.

        The check is fast for lists that the plugin packed, unless a size is near ``most``.
        """
        if self.length < 2:
            return True
        shift = 8 * (self.width - 1)
        if self.base >= least and self.base <= most:
            # Look only at the highest byte of each difference, because these bytes usually show that all differences
            # are small enough.
            small = _BYTES[: (most - self.base) >> shift]
            if not self.differences[:: self.width].translate(None, small):
                return True
        lowest, highest = self.bounds_of_most() or (least, most)
        return least <= lowest and highest <= most

    def _blocks(self) -> Iterator[Sequence[int]]:
        for start in range(0, self.length - 1, _SIZES_A_BLOCK):
            yield self._differences(start, min(start + _SIZES_A_BLOCK, self.length - 1))

    def _differences(self, start: int, stop: int) -> Sequence[int]:
        raw = self.differences[start * self.width : stop * self.width]
        return raw if self.width == 1 else _widen(raw, self.width)


class _OfThread(threading.local):
    """A decompressor for each thread, kept because allocating its memory takes longer than decompressing a list."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_OWN: Final = _OfThread()


def encode_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Return the binary form of ``sizes``. Raise SegmentTooLargeError if a size is not within 0..2^31-1."""
    if sizes and not 0 <= min(sizes) <= max(sizes) <= MAX_INT32:
        raise SegmentTooLargeError(f"stored chunk sizes {min(sizes)} to {max(sizes)} are not within 0..{MAX_INT32}")
    if not sizes:
        return _INT.pack(0)
    if len(sizes) == 1:
        return _ONE.pack(1, sizes[0])
    # Leave out the last chunk, which has the rest of the file. It could be so much smaller than the others that all
    # differences would need more bytes.
    most = sizes[:-1]
    base = min(most)
    # The format has no width 0, so a difference takes at least one byte, even if all sizes are equal.
    width = max(1, ((max(most) - base).bit_length() + 7) // 8)
    differences = _narrow(array("I", [size - base for size in most]), width)
    return b"".join((_HEAD.pack(len(sizes), base, width), differences, _INT.pack(sizes[-1])))


def decode_chunk_sizes(raw: bytes | bytearray | memoryview) -> ChunkSizes:
    """Return the sizes of a binary form. Raise ManifestCorruptError unless it is exactly one list of sizes within
    0..2^31-1.
    """
    count = _read_int(raw, 0)
    if count == 0:
        _check_length(raw, _INT.size)
        return ChunkSizes(0, 0, 1, b"", 0)
    if count == 1:
        _check_length(raw, _ONE.size)
        return ChunkSizes(1, 0, 1, b"", _read_int(raw, _INT.size))
    return _decode_many(raw, count)


def pack_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Return ``sizes`` as one zstd frame. Raise SegmentTooLargeError if the format cannot hold them."""
    binary = encode_chunk_sizes(sizes)
    if len(binary) > MAX_BINARY_SIZE:
        raise SegmentTooLargeError(f"{len(sizes)} chunks are more than a manifest can list; use a larger chunk.size")
    return zstandard.ZstdCompressor(level=_LEVEL).compress(binary)


def unpack_chunk_sizes(frame: bytes) -> ChunkSizes:
    """Return the sizes in one zstd frame. Raise ManifestCorruptError for a damaged frame. Allocate at most 10 MiB, even
    if the frame claims more.
    """
    try:
        # Only the frame's header is read here. Refuse a frame that declares no content size, because it could expand
        # without end.
        claimed = zstandard.frame_content_size(frame)
        if not 0 <= claimed <= MAX_BINARY_SIZE:
            raise _corrupt_list(f"states no size, or more than {MAX_BINARY_SIZE} bytes")
        binary = _OWN.zstd.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _corrupt_list(f"is not exactly one zstd frame: {error}") from error
    return decode_chunk_sizes(binary)


def _corrupt_list(what: str) -> ManifestCorruptError:
    return ManifestCorruptError(f"transformedChunks: the list of chunk sizes {what}")


def _decode_many(raw: bytes | bytearray | memoryview, count: int) -> ChunkSizes:
    if len(raw) < _HEAD.size:
        raise _corrupt_list(f"ends after {len(raw)} bytes, in the middle of its header")
    _, base, width = _HEAD.unpack_from(raw)
    if base < 0 or not 1 <= width <= 4:
        raise _corrupt_list(
            f"states {count} sizes with the minimum {base}, with {width} bytes for each difference: the minimum must "
            "not be negative, and a difference takes 1 to 4 bytes"
        )
    stop = _HEAD.size + (count - 1) * width
    # Compare `count` with the length of the bytes before allocating memory. A damaged count may be too large.
    _check_length(raw, stop + _INT.size)
    sizes = ChunkSizes(count, base, width, bytes(raw[_HEAD.size : stop]), _read_int(raw, stop))
    # Check the sizes only if a difference of this width can make a size exceed the limit.
    if base + (1 << 8 * width) - 1 > MAX_INT32 and not sizes.are_most_within(base, MAX_INT32):
        raise _corrupt_list(f"holds a size above {MAX_INT32}")
    return sizes


def _narrow(values: array[int], width: int) -> bytes:
    """Return the low ``width`` bytes of each 32-bit value, big-endian."""
    whole = _big_endian(values).tobytes()
    narrow = bytearray(len(values) * width)
    for byte in range(width):
        narrow[byte::width] = whole[4 - width + byte :: 4]
    return bytes(narrow)


def _widen(raw: bytes | bytearray | memoryview, width: int) -> array[int]:
    """Do the opposite of ``_narrow``: return 32-bit values. Copying the n-th byte of all values at once is twenty times
    faster than copying value by value.
    """
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
        raise _corrupt_list(f"ends after {len(raw)} bytes, in the middle of a number")
    value: int = _INT.unpack_from(raw, start)[0]
    if value < 0:
        raise _corrupt_list(f"holds the negative number {value}")
    return value


def _check_length(raw: bytes | bytearray | memoryview, expected: int) -> None:
    if len(raw) != expected:
        raise _corrupt_list(f"has {len(raw)} bytes, but its header states so many sizes that it must have {expected}")


_POSITIONS: Final = 128  # Number of chunks whose positions are computed from one known position


@dataclass(frozen=True, slots=True)
class ChunkIndex(ABC):
    """The chunks of one segment, numbered from 0. Every lookup is O(1).

    Sizes and positions are in bytes. The constructor raises ManifestCorruptError for an index that contradicts itself.
    """

    original_chunk_size: int
    original_file_size: int

    @abstractmethod
    def positions(self) -> Sequence[int]:
        """``chunk_count + 1`` stored positions: chunk ``i`` is stored at ``[p[i], p[i + 1])``.

        The returned sequence computes each position on access. A ``variable`` index unpacks its list at each call, so
        callers should keep the sequence.
        """

    @property
    def chunk_count(self) -> int:
        """The number of chunks, 0 only for an empty file."""
        return -(-self.original_file_size // self.original_chunk_size)

    @property
    def stored_size(self) -> int:
        """The size of the whole ``.log`` object."""
        return self.positions()[-1]

    def original_size(self, chunk_id: int) -> int:
        """Return the size of a chunk before it was transformed. Raise InvalidRangeError if there is no such chunk."""
        return len(self.original_range(chunk_id))

    def original_range(self, chunk_id: int) -> ByteRange:
        """Return the part of the original file that a chunk holds. Raise InvalidRangeError if the chunk is absent."""
        if not 0 <= chunk_id < self.chunk_count:
            raise InvalidRangeError(f"there is no chunk {chunk_id} in a segment of {self.chunk_count} chunks")
        start = chunk_id * self.original_chunk_size
        return ByteRange(start, min(start + self.original_chunk_size, self.original_file_size))

    def chunk_at(self, position: int) -> int:
        """Return the chunk that holds the byte at ``position`` of the original. Raise InvalidRangeError for a position
        outside the file.
        """
        if not 0 <= position < self.original_file_size:
            raise InvalidRangeError(f"position {position} is outside of a segment of {self.original_file_size} bytes")
        # A division is enough: before compression, all chunks except the last have the same size.
        return position // self.original_chunk_size

    def chunks_of(self, byte_range: ByteRange) -> range:
        """Return the chunks that overlap a range of the original file; none for an empty range.

        Raise InvalidRangeError if the range ends after the end of the file.
        """
        if byte_range.stop > self.original_file_size:
            raise InvalidRangeError(
                f"bytes {byte_range.start}:{byte_range.stop} reach beyond the end of a segment of "
                f"{self.original_file_size} bytes"
            )
        if not len(byte_range):
            return range(0)
        return range(self.chunk_at(byte_range.start), self.chunk_at(byte_range.stop - 1) + 1)

    def _check_original(self) -> None:
        if not 1 <= self.original_chunk_size <= MAX_INT32:
            raise ManifestCorruptError(f"originalChunkSize is {self.original_chunk_size}, not within 1..{MAX_INT32}")
        if not 0 <= self.original_file_size <= MAX_INT32:
            raise ManifestCorruptError(f"originalFileSize is {self.original_file_size}, not within 0..{MAX_INT32}")


@dataclass(frozen=True, slots=True)
class FixedChunkIndex(ChunkIndex):
    """The index of an uncompressed segment: all stored chunks but the last are of one size."""

    transformed_chunk_size: int
    final_transformed_chunk_size: int

    def __post_init__(self) -> None:
        self._check_original()
        # Encryption adds a fixed number of bytes, and nothing else adds any. Any other size is damage, and would shift
        # every chunk after the first. (The plugin accepts any size.)
        if self.overhead not in {0, ENCRYPTION_OVERHEAD}:
            raise ManifestCorruptError(
                f"transformedChunkSize is {self.transformed_chunk_size}; it must equal originalChunkSize "
                f"({self.original_chunk_size}), or with encryption be {ENCRYPTION_OVERHEAD} more"
            )
        # The fourth number can be computed from the other three, so it must agree with them.
        final = self.original_size(self.chunk_count - 1) + self.overhead if self.chunk_count else 0
        if self.final_transformed_chunk_size != final:
            raise ManifestCorruptError(
                f"finalTransformedChunkSize is {self.final_transformed_chunk_size}, but by the other sizes it "
                f"must be {final}"
            )

    @property
    def overhead(self) -> int:
        """The number of bytes that encryption adds to each chunk."""
        return self.transformed_chunk_size - self.original_chunk_size

    def positions(self) -> Sequence[int]:
        """See the base class. The value is computed at each lookup, so it costs no memory."""
        return _FixedPositions(self.chunk_count, self.transformed_chunk_size, self.final_transformed_chunk_size)


@dataclass(frozen=True, slots=True)
class VariableChunkIndex(ChunkIndex):
    """The index of a compressed segment: each stored chunk has its own size.

    The list stays packed as in the manifest, because thousands of indexes stay in memory. 2,000 chunks take about 3 KB.
    """

    packed_sizes: bytes
    last_size: int = field(init=False, repr=False, compare=False)
    """The last chunk's stored size."""
    base_size: int = field(init=False, repr=False, compare=False)
    """The smallest stored size of all chunks except the last. The list stores differences from this size."""

    def __post_init__(self) -> None:
        self._check_original()
        sizes = unpack_chunk_sizes(self.packed_sizes)
        # Keep two sizes instead of computing them again, because every reader of a manifest needs them more than once.
        # A catalog reads thousands of manifests.
        object.__setattr__(self, "last_size", sizes.last)
        object.__setattr__(self, "base_size", sizes.base)
        count = self.chunk_count
        if not count or sizes.length != count:
            raise ManifestCorruptError(
                f"transformedChunks lists {len(sizes)} chunks, but originalFileSize and originalChunkSize make "
                f"{count}; a compressed segment has at least 1 chunk"
            )
        if not sizes.are_most_within(1, _most_stored(self.original_chunk_size)):
            for size in sizes.bounds_of_most() or ():
                _check_stored_size(size, self.original_chunk_size)
        # The last chunk may be shorter than the others, so its size is checked separately.
        _check_stored_size(sizes.last, self.original_file_size - (count - 1) * self.original_chunk_size)

    @classmethod
    def from_sizes(cls, original_chunk_size: int, original_file_size: int, sizes: Sequence[int]) -> VariableChunkIndex:
        """Return the index of chunks with these stored sizes. Raise SegmentTooLargeError if a size is out of range."""
        return cls(original_chunk_size, original_file_size, pack_chunk_sizes(sizes))

    @classmethod
    def from_text(cls, original_chunk_size: int, original_file_size: int, text: str) -> VariableChunkIndex:
        """Return the index of a manifest's ``transformedChunks``: standard base64, padding optional."""
        packed = decode_base64(text, "transformedChunks", padded=False)
        return cls(original_chunk_size, original_file_size, packed)

    @property
    def text(self) -> str:
        """``transformedChunks`` as the manifest has it."""
        return base64.b64encode(self.packed_sizes).decode("ascii")

    @property
    def bounds_of_most(self) -> tuple[int, int] | None:
        """The smallest and the greatest stored size of all chunks but the last; None if there is only one chunk.
        Checks each size.
        """
        return self.stored_sizes().bounds_of_most()

    def stored_sizes(self) -> ChunkSizes:
        """Return the stored size of every chunk, unpacked at each call."""
        return unpack_chunk_sizes(self.packed_sizes)

    def positions(self) -> Sequence[int]:
        """See the base class."""
        return _VariablePositions(self.stored_sizes())


class _VariablePositions(LazyNumbers):
    """The running sums of a list of sizes, computed block by block on access. Safe from several threads."""

    __slots__ = ("_sizes", "_starts")

    noun = "position"

    def __init__(self, sizes: ChunkSizes) -> None:
        self._sizes = sizes
        # Use 64 bits, because a sum of sizes may exceed 2^31 - 1. (The plugin's own arithmetic overflows there.)
        self._starts = array("q", [0])

    def __len__(self) -> int:
        return self._sizes.length + 1

    def at(self, index: int) -> int:
        """Return the start of the chunk. For the last index, return the end of the object."""
        block, rest = divmod(index, _POSITIONS)
        return self._start_of(block) + self._sizes.sum_of(index - rest, index)

    def __iter__(self) -> Iterator[int]:
        return accumulate(self._sizes, initial=0)

    def _start_of(self, block: int) -> int:
        starts = self._starts
        if block >= len(starts):
            # There is no lock, so extend a copy that no other thread uses. At worst two threads do the same work.
            starts = array("q", starts)
            for number in range(len(starts), min(max(block + 1, 2 * len(starts)), -(-len(self) // _POSITIONS))):
                starts.append(starts[-1] + self._sizes.sum_of((number - 1) * _POSITIONS, number * _POSITIONS))
            self._starts = starts
        return starts[block]


@dataclass(frozen=True, slots=True)
class _FixedPositions(LazyNumbers):
    """The stored positions of chunks that have ``size`` bytes, except the last, which has ``final_size``."""

    noun = "position"

    chunk_count: int
    size: int
    final_size: int

    def __len__(self) -> int:
        return self.chunk_count + 1

    def at(self, index: int) -> int:
        """Return the start of the chunk. For the last index, return the end of the object."""
        if index and index == self.chunk_count:
            return (index - 1) * self.size + self.final_size
        return index * self.size


def _check_stored_size(stored: int, original: int) -> None:
    """Refuse a size that no chunk can have, before a reader allocates it."""
    # Limit each size, because a damaged list of a few bytes can claim 2 GiB per chunk, and a reader would allocate this
    # memory.
    limit = _most_stored(original)
    if not 1 <= stored <= limit:
        raise ManifestCorruptError(
            f"transformedChunks lists a chunk of {stored} bytes for {original} bytes of the log; it must have 1 "
            f"to {limit} bytes"
        )


def _most_stored(original: int) -> int:
    """Return an upper bound of a chunk's stored size.

    zstd adds at most 1/256 and 64 bytes to incompressible data, so no writer exceeds twice the original size plus 1
    KiB.
    """
    return 2 * original + 1024
