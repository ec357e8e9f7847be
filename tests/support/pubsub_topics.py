"""Topics of batches for tests: on a store in memory, or on a folder."""

from __future__ import annotations

from pathlib import Path

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.pubsub.consumer import Consumer
from tieredstore.pubsub.topics import Topics


def topics_on(store: ObjectStore | None = None, **properties: str) -> Topics:
    """The topics of a store; settings by name, ``_`` for a dot."""
    given = {f"pubsub.{name.replace('_', '.')}": text for name, text in properties.items()}
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "4194304", **given})
    return Topics(MemoryObjectStore() if store is None else store, settings)


def topics_in(folder: Path, **properties: str) -> Topics:
    """The topics of a folder, which processes share."""
    return topics_on(FilesystemObjectStore(folder), **properties)


def values_of(consumer: Consumer, timeout_s: float = 0.0, at_least: int = 0, patience: int = 600) -> list[bytes]:
    """The values that a consumer gives until nothing comes; with ``at_least``, until there are so many."""
    values: list[bytes] = []
    for _ in range(patience):
        got = [record.value for record in consumer.records(timeout_s or 0.3)]
        values += got
        if len(values) >= at_least and not got:
            break
    return values
