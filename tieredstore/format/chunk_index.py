"""Where each chunk of a segment lies, before and after it was transformed.

A segment's log is cut every ``original_chunk_size`` bytes; the last chunk holds the rest. Each chunk is transformed on
its own and the results are stored back to back. Without compression every stored chunk but the last has the same size
(``fixed``); with it each has its own (``variable``).
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from tieredstore.errors import InvalidRange, ManifestCorrupt
from tieredstore.format.base64_text import decode_base64
from tieredstore.format.chunk_sizes import ChunkSizes, LazyNumbers, pack_chunk_sizes, unpack_chunk_sizes
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.limits import MAX_INT32
from tieredstore.model import ByteRange

_BLOCK: Final = 128  # chunks whose positions are told from one known position


@dataclass(frozen=True, slots=True)
class ChunkIndex(ABC):
    """The chunks of one segment, numbered from 0; every lookup is O(1).

    Sizes and positions are in bytes. An index that contradicts itself cannot be made: ManifestCorrupt.
    """

    original_chunk_size: int
    original_file_size: int

    @abstractmethod
    def positions(self) -> Sequence[int]:
        """``chunk_count + 1`` stored positions: chunk ``i`` is stored at ``[p[i], p[i + 1])``.

        A ``variable`` index unpacks its list at each call: keep the result while working on a segment. A position is
        computed when it is asked for.
        """

    @property
    def chunk_count(self) -> int:
        """How many chunks there are: 0 only for an empty file."""
        return -(-self.original_file_size // self.original_chunk_size)

    @property
    def stored_size(self) -> int:
        """The size of the whole ``.log`` object."""
        return self.positions()[-1]

    def original_size(self, chunk_id: int) -> int:
        """The size of a chunk before it was transformed; InvalidRange if there is no such chunk."""
        return len(self.original_range(chunk_id))

    def original_range(self, chunk_id: int) -> ByteRange:
        """The part of the original file that a chunk holds; InvalidRange if there is no such chunk."""
        if not 0 <= chunk_id < self.chunk_count:
            raise InvalidRange(f"there is no chunk {chunk_id} in a segment of {self.chunk_count} chunks")
        start = chunk_id * self.original_chunk_size
        return ByteRange(start, min(start + self.original_chunk_size, self.original_file_size))

    def chunk_at(self, position: int) -> int:
        """The chunk that holds the byte at ``position`` of the original; InvalidRange if it is outside of it."""
        if not 0 <= position < self.original_file_size:
            raise InvalidRange(f"position {position} is outside of a segment of {self.original_file_size} bytes")
        # All original chunks but the last have one size, with compression too: no search is needed.
        return position // self.original_chunk_size

    def chunks_of(self, byte_range: ByteRange) -> range:
        """The chunks that overlap a range of the original (none for an empty one).

        InvalidRange if the range ends past the file.
        """
        if byte_range.stop > self.original_file_size:
            raise InvalidRange(
                f"bytes {byte_range.start}:{byte_range.stop} reach past a segment of {self.original_file_size} bytes"
            )
        if not len(byte_range):
            return range(0)
        return range(self.chunk_at(byte_range.start), self.chunk_at(byte_range.stop - 1) + 1)

    def _last_original_size(self) -> int:
        return self.original_size(self.chunk_count - 1)

    def _check_original(self) -> None:
        if not 1 <= self.original_chunk_size <= MAX_INT32:
            raise ManifestCorrupt(f"originalChunkSize is {self.original_chunk_size}, not within 1..{MAX_INT32}")
        if not 0 <= self.original_file_size <= MAX_INT32:
            raise ManifestCorrupt(f"originalFileSize is {self.original_file_size}, not within 0..{MAX_INT32}")


@dataclass(frozen=True, slots=True)
class FixedChunkIndex(ChunkIndex):
    """The index of an uncompressed segment: all stored chunks but the last are of one size."""

    transformed_chunk_size: int
    final_transformed_chunk_size: int

    def __post_init__(self) -> None:
        self._check_original()
        # The plugin believes any size here. One that neither form of storing makes is a damaged one, and would shift
        # every chunk after the first.
        if self.overhead not in {0, ENCRYPTION_OVERHEAD}:
            raise ManifestCorrupt(
                f"transformedChunkSize is {self.transformed_chunk_size}: originalChunkSize {self.original_chunk_size} "
                f"or {ENCRYPTION_OVERHEAD} more is possible"
            )
        # Four numbers, of which three give the fourth: each is checked by the others.
        final = self._last_original_size() + self.overhead if self.chunk_count else 0
        if self.final_transformed_chunk_size != final:
            raise ManifestCorrupt(
                f"finalTransformedChunkSize is {self.final_transformed_chunk_size}: the other sizes call for {final}"
            )

    @property
    def overhead(self) -> int:
        """By how much a stored chunk is longer than its original."""
        return self.transformed_chunk_size - self.original_chunk_size

    def positions(self) -> Sequence[int]:
        """See the base class; computed at each lookup, so it costs no memory."""
        return _FixedPositions(self.chunk_count, self.transformed_chunk_size, self.final_transformed_chunk_size)


@dataclass(frozen=True, slots=True)
class VariableChunkIndex(ChunkIndex):
    """The index of a compressed segment: each stored chunk has its own size.

    Thousands of them stay in memory, so the list is kept packed, as the manifest has it: about 3 KB for 2,000 chunks.
    """

    packed_sizes: bytes
    last_size: int = field(init=False, repr=False, compare=False)
    """The last chunk's stored size."""
    base_size: int = field(init=False, repr=False, compare=False)
    """No chunk but the last is stored in fewer bytes: what the list counts its sizes from."""

    def __post_init__(self) -> None:
        self._check_original()
        sizes = unpack_chunk_sizes(self.packed_sizes)
        # Kept, since whoever reads a manifest looks at them more than once, and a catalog reads thousands.
        object.__setattr__(self, "last_size", sizes.last)
        object.__setattr__(self, "base_size", sizes.base)
        count = self.chunk_count
        if not count or sizes.length != count:
            raise ManifestCorrupt(
                f"transformedChunks lists {len(sizes)} chunks where originalFileSize and originalChunkSize make "
                f"{count}, and at least 1 must be"
            )
        if not sizes.are_most_within(1, _most_stored(self.original_chunk_size)):
            for size in sizes.bounds_of_most() or ():
                _check_stored_size(size, self.original_chunk_size)
        # The last chunk may be shorter than the others.
        _check_stored_size(sizes.last, self.original_file_size - (count - 1) * self.original_chunk_size)

    @classmethod
    def from_sizes(cls, original_chunk_size: int, original_file_size: int, sizes: Sequence[int]) -> VariableChunkIndex:
        """The index of chunks with these stored sizes; SegmentTooLarge if the format cannot hold them."""
        return cls(original_chunk_size, original_file_size, pack_chunk_sizes(sizes))

    @classmethod
    def from_text(cls, original_chunk_size: int, original_file_size: int, text: str) -> VariableChunkIndex:
        """The index of a manifest's ``transformedChunks``: standard base64, padding optional."""
        packed = decode_base64(text, "transformedChunks", padded=False)
        return cls(original_chunk_size, original_file_size, packed)

    @property
    def text(self) -> str:
        """``transformedChunks`` as the manifest has it."""
        return base64.b64encode(self.packed_sizes).decode("ascii")

    @property
    def bounds_of_most(self) -> tuple[int, int] | None:
        """The smallest and the greatest stored size of all chunks but the last, None where there is no other; each
        size is looked at."""
        return self.stored_sizes().bounds_of_most()

    def stored_sizes(self) -> ChunkSizes:
        """The stored size of every chunk, unpacked at each call."""
        return unpack_chunk_sizes(self.packed_sizes)

    def positions(self) -> Sequence[int]:
        """See the base class."""
        return _VariablePositions(self.stored_sizes())


class _VariablePositions(LazyNumbers):
    """The sums of a list of sizes, known block by block, as far as they were asked for. Safe from several threads."""

    __slots__ = ("_sizes", "_starts")

    noun = "position"

    def __init__(self, sizes: ChunkSizes) -> None:
        self._sizes = sizes
        # 64 bits: the sum may pass 2^31, where the plugin's own arithmetic overflows.
        self._starts = array("q", [0])

    def __len__(self) -> int:
        return self._sizes.length + 1

    def at(self, index: int) -> int:
        """Where the chunk begins; the last one is where all end."""
        block, rest = divmod(index, _BLOCK)
        return self._start_of(block) + self._sizes.sum_of(index - rest, index)

    def __iter__(self) -> Iterator[int]:
        return accumulate(self._sizes, initial=0)

    def _start_of(self, block: int) -> int:
        starts = self._starts
        if block >= len(starts):
            # Twice as many each time, in an array that nobody has seen yet: without a lock, a second thread at worst
            # does the same again.
            starts = array("q", starts)
            for number in range(len(starts), min(max(block + 1, 2 * len(starts)), -(-len(self) // _BLOCK))):
                starts.append(starts[-1] + self._sizes.sum_of((number - 1) * _BLOCK, number * _BLOCK))
            self._starts = starts
        return starts[block]


@dataclass(frozen=True, slots=True)
class _FixedPositions(LazyNumbers):
    """The stored positions of chunks of one ``size`` and a last one of ``final_size``."""

    noun = "position"

    chunk_count: int
    size: int
    final_size: int

    def __len__(self) -> int:
        return self.chunk_count + 1

    def at(self, index: int) -> int:
        """Where the chunk begins; the last one is where all end."""
        if index and index == self.chunk_count:
            return (index - 1) * self.size + self.final_size
        return index * self.size


def _check_stored_size(stored: int, original: int) -> None:
    """Refuse a size that no chunk can have, before a reader allocates it."""
    # A list is a few bytes that can claim 2 GiB a chunk: without this bound a reader would allocate them.
    limit = _most_stored(original)
    if not 1 <= stored <= limit:
        raise ManifestCorrupt(
            f"transformedChunks lists a chunk of {stored} bytes for {original} bytes of the log: 1..{limit} is possible"
        )


def _most_stored(original: int) -> int:
    """zstd adds at most 1/256 and 64 bytes to what it cannot compress; twice the original leaves room for any
    writer."""
    return 2 * original + 1024
