"""What listings and manifests nearly always are, by compiled code where that is built.

Each function may leave out what it likes, and all of it in a checkout whose compiled parts are older than it: whoever
asks looks at that one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectInfo
    from tieredstore.catalog.rows import SegmentRow
    from tieredstore.catalog.segment_objects import SegmentObjects

try:
    from tieredstore.catalog._grouping import grouped, rows_of
except ImportError:

    def grouped(listed: list[ObjectInfo], _prefix: str, /) -> list[SegmentObjects | ObjectInfo]:
        """Nothing is put together."""
        return [*listed]

    def rows_of(
        segments: list[SegmentObjects], _manifests: list[object], _encryption_required: bool, _tells: bool, /
    ) -> list[SegmentRow | None]:
        """None is read."""
        return [None] * len(segments)


__all__ = ["grouped", "rows_of"]
