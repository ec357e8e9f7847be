"""The commands of batches on object storage."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Effect, Entry, Loaded


def _pubsub() -> Loaded:
    from tieredstore.pubsub.cli import pubsub

    return pubsub.app


_EFFECTS: Final[dict[str, Effect]] = {
    "topics": "adds", "produce": "adds", "cat": "reads", "broker": "adds", "gc": "rewrites", "verify": "reads",
}  # fmt: skip
COMMANDS: Final = (Entry("pubsub", "Batches of records in a store, like MemQ.", _EFFECTS, _pubsub),)
