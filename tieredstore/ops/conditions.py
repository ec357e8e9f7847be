"""What a tool that changes state, which other processes share, asks of a store."""

from __future__ import annotations

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError


def require_conditional_writes(store: ObjectStore, tool: str) -> None:
    """ConfigError, naming store and tool, unless the store's conditional writes are atomic."""
    if not store.conditional_writes:
        raise ConfigError(
            f"{tool} needs a store that replaces an object only if nobody else has changed it, and {store.identity} "
            "cannot promise that; use one that can (S3, GCS, Azure Blob Storage or a folder)"
        )
