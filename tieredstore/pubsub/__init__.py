"""Topics stored as batches of records in object storage, with their producers, consumers and brokers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tieredstore.installation import Extra

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import BatchConsumer
    from tieredstore.pubsub.produce.producer import BatchProducer
    from tieredstore.pubsub.queue.memq_topics import open_topics
    from tieredstore.pubsub.queue.queues import Position
    from tieredstore.pubsub.queue.topics import Topic, Topics

__all__ = ["BatchConsumer", "BatchProducer", "Position", "Topic", "Topics", "open_topics"]

_MODULES: Final = {
    "BatchConsumer": "consume.consumer",
    "BatchProducer": "produce.producer",
    "Position": "queue.queues",
    "Topic": "queue.topics",
    "Topics": "queue.topics",
    "open_topics": "queue.memq_topics",
}


def __getattr__(name: str) -> object:
    # Import submodules on first use, because `tieredstore --help` imports this package only for its list of commands.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with Extra("a topic of batches", "kafka"):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
