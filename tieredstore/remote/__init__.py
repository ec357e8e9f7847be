"""The remote storage manager: copies segments to the store and fetches ranges, through Kafka's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.remote.base import RemoteStorageManagerBase
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.remote.source import NextSegment, SegmentSource

__all__ = ["NextSegment", "RemoteStorageManager", "RemoteStorageManagerBase", "SegmentSource", "SegmentStream"]


def __getattr__(name: str) -> object:
    """Import a name of ``__all__`` on first use, so that importing a small module of this package does not import the
    other modules.
    """
    match name:
        case "NextSegment" | "SegmentSource":
            from tieredstore.remote import source  # noqa: PLC0415

            return getattr(source, name)
        case "RemoteStorageManager":
            from tieredstore.remote import manager  # noqa: PLC0415

            return manager.RemoteStorageManager
        case "RemoteStorageManagerBase":
            from tieredstore.remote import base  # noqa: PLC0415

            return base.RemoteStorageManagerBase
        case "SegmentStream":
            from tieredstore.remote.fetch import stream  # noqa: PLC0415

            return stream.SegmentStream
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
