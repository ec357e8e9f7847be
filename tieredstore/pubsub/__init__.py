"""Topics stored as batches of records in object storage, with their producers, consumers and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.installation import Extra

if TYPE_CHECKING:
    from tieredstore.pubsub.consume.consumer import BatchConsumer
    from tieredstore.pubsub.produce.producer import BatchProducer
    from tieredstore.pubsub.queue.memq_topics import open_topics
    from tieredstore.pubsub.queue.queues import Position
    from tieredstore.pubsub.queue.topics import Topic, Topics

__all__ = ["BatchConsumer", "BatchProducer", "Position", "Topic", "Topics", "open_topics"]


def __getattr__(name: str) -> object:
    # Import these modules on first use: `tieredstore --help` imports this package only for its list of commands.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with Extra("a topic of batches", "kafka"):
        from tieredstore.pubsub.consume import consumer  # noqa: PLC0415
        from tieredstore.pubsub.produce import producer  # noqa: PLC0415
        from tieredstore.pubsub.queue import memq_topics, queues, topics  # noqa: PLC0415

    modules = (consumer, memq_topics, producer, queues, topics)
    return next(getattr(module, name) for module in modules if name in vars(module))
