"""What there is of one segment, beside what its manifest says there should be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tieredstore.backends.base import ObjectInfo
from tieredstore.catalog.stored import StoredSegment
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.keys import Suffix


class ObjectDamage(enum.Enum):
    """What is wrong with an object under a valid manifest, as far as a listing tells."""

    MISSING = "missing"
    WRONG_SIZE = "wrong_size"


@dataclass(frozen=True, slots=True)
class InspectedObject:
    """One of a segment's three objects. ``expected_size`` is None where the manifest does not say one: of itself."""

    suffix: Suffix
    info: ObjectInfo | None
    expected_size: int | None

    @property
    def damage(self) -> ObjectDamage | None:
        """What is wrong with it."""
        if self.info is None:
            return ObjectDamage.MISSING
        return None if self.expected_size in {None, self.info.size} else ObjectDamage.WRONG_SIZE


def inspect_objects(segment: StoredSegment) -> tuple[InspectedObject, ...]:
    """All three objects, those too that are not there. Asks no store."""
    manifest = segment.manifest
    expected = {Suffix.LOG: manifest.chunk_index.stored_size, Suffix.INDEXES: manifest.segment_indexes.total_size}
    return tuple(InspectedObject(suffix, segment.objects.find(suffix), expected.get(suffix)) for suffix in Suffix)


@dataclass(frozen=True, slots=True)
class StoredChunkSizes:
    """How large the chunks of a log are as they are stored."""

    smallest: int
    average: int
    largest: int

    @classmethod
    def of(cls, index: ChunkIndex) -> StoredChunkSizes | None:
        """The sizes that a chunk index tells; None without chunks."""
        if not index.chunk_count:
            return None
        average = index.stored_size // index.chunk_count
        if isinstance(index, FixedChunkIndex):
            # All but the last are of one size, so that there is no need to look at each.
            last = index.final_transformed_chunk_size
            largest = max(last, index.transformed_chunk_size) if index.chunk_count > 1 else last
            return cls(last, average, largest)
        assert isinstance(index, VariableChunkIndex)  # there are two kinds
        every = (index.last_size, *(index.bounds_of_most or ()))
        return cls(min(every), average, max(every))
