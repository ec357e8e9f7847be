"""The commands of batches on object storage."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Entry, Loaded


def _pubsub() -> Loaded:
    from tieredstore.pubsub.cli import pubsub

    return pubsub.app


COMMANDS: Final = (Entry("pubsub", "Batches of records in a store, in the manner of MemQ.", _pubsub),)
