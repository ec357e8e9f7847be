"""The types by which readers of stored segments name their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager

NextSegment: TypeAlias = Callable[[], RemoteLogSegmentMetadata | None]
"""Function that returns the segment after the current one, or None at the end. The reader calls the function once, on
its own thread, so the function must be fast.
"""

SegmentSource: TypeAlias = "RemoteStorageManager"
"""A manager whose segments are only read. Its owner closes it."""
