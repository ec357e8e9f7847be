"""What a pipeline reads and writes: the stores that it is made of, and the columns of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.remote.source import SegmentSource

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp", "timestampType")
"""What is read of records."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The store that is written and the bucket that is read; opened and closed by whoever makes them."""

    store: ObjectStore
    source: SegmentSource
