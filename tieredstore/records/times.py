"""Offsets by time, looked up with the settings of a read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.catalog.timestamps import offset_for_time

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.records.settings import ReadSettings
    from tieredstore.remote.source import SegmentSource


def offset_at(source: SegmentSource, lineage: Lineage, timestamp_ms: int, settings: ReadSettings) -> int:
    """The offset of the first record, by offset, whose timestamp is ``timestamp_ms`` or later; else the log's end.

    The end markers of transactions count as records. For the requests see :func:`offset_for_time`.
    """
    record = offset_for_time(source, lineage, timestamp_ms, settings.decoding)
    return lineage.end_offset if record is None else record.offset
