from tieredstore.backends.base import ObjectInfo
from tieredstore.catalog.rows import SegmentRow
from tieredstore.catalog.segment_objects import SegmentObjects

def grouped(listed: list[ObjectInfo], prefix: str, /) -> list[SegmentObjects | ObjectInfo]: ...
def rows_of(
    segments: list[SegmentObjects], manifests: list[object], encryption_required: bool, tells: bool, /
) -> list[SegmentRow | None]: ...
