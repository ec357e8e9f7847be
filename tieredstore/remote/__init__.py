"""The remote storage manager: copies segments to the store and fetches ranges, through Kafka's interface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.remote.base import RemoteStorageManagerBase
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.remote.source import NextSegment, SegmentSource

__all__ = ["NextSegment", "RemoteStorageManager", "RemoteStorageManagerBase", "SegmentSource", "SegmentStream"]

_MODULES: Final = {
    "NextSegment": "source",
    "RemoteStorageManager": "manager",
    "RemoteStorageManagerBase": "base",
    "SegmentSource": "source",
    "SegmentStream": "fetch.stream",
}


def __getattr__(name: str) -> object:
    """Import a name of ``__all__`` on first use, so that importing a small module of this package does not import the
    other modules.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
