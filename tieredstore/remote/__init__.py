"""The remote storage manager: copies segments to the store and fetches ranges, through Kafka's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager

__all__ = ["RemoteStorageManager"]


def __getattr__(name: str) -> object:
    """Import the manager on first use, so that importing a small module of this package does not import the others."""
    if name != "RemoteStorageManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.remote import manager  # noqa: PLC0415

    return manager.RemoteStorageManager
