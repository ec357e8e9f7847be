"""Compares the objects of a segment with its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.backends.base import ObjectInfo
from tieredstore.catalog.stored import StoredSegment
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.keys import Suffix


@dataclass(frozen=True, slots=True)
class InspectedObject:
    """One of a segment's three objects. ``expected_size`` is None for the manifest, which does not contain its own
    size.
    """

    suffix: Suffix
    info: ObjectInfo | None
    expected_size: int | None

    @property
    def is_damaged(self) -> bool:
        """True if the object is missing or has another size than expected."""
        return self.info is None or self.expected_size not in {None, self.info.size}


def inspect_objects(segment: StoredSegment) -> tuple[InspectedObject, ...]:
    """Return the segment's three objects, including missing ones, without any request."""
    return tuple(InspectedObject(suffix, segment.objects.find(suffix), segment.sizes.get(suffix)) for suffix in Suffix)


@dataclass(frozen=True, slots=True)
class StoredChunkSizes:
    """Sizes of a log's chunks in the store."""

    smallest: int
    average: int
    largest: int

    @classmethod
    def of(cls, index: ChunkIndex) -> StoredChunkSizes | None:
        """Return the sizes in a chunk index; None if it has no chunks."""
        if not index.chunk_count:
            return None
        average = index.stored_size // index.chunk_count
        if isinstance(index, FixedChunkIndex):
            # In a fixed index, all chunks but the last have the same size.
            last = index.final_transformed_chunk_size
            largest = max(last, index.transformed_chunk_size) if index.chunk_count > 1 else last
            return cls(last, average, largest)
        assert isinstance(index, VariableChunkIndex)  # the only other class
        every = (index.last_size, *(index.bounds_of_most or ()))
        return cls(min(every), average, max(every))
