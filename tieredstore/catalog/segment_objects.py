"""The objects of one segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentId

_EVERY: Final = tuple(Suffix)


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The objects found under one main path (what lies between prefix and suffix in their keys); up to three."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: tuple[tuple[Suffix, ObjectInfo], ...]
    main_path: str

    def find(self, suffix: Suffix) -> ObjectInfo | None:
        """The object with this suffix, if it is there."""
        for own, info in self.objects:
            if own is suffix:
                return info
        return None

    @property
    def missing(self) -> tuple[Suffix, ...]:
        """The suffixes of the objects that are not there: () for a whole segment."""
        present = [suffix for suffix, _ in self.objects]
        return tuple(suffix for suffix in _EVERY if suffix not in present)

    @property
    def stored_size(self) -> int:
        """Bytes of all objects found."""
        return sum(info.size for _, info in self.objects)
