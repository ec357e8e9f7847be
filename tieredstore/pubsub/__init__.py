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
    # Import submodules on first use, because `tieredstore --help` imports this package only for its list of commands.
    with Extra("a topic of batches", "kafka"):
        match name:
            case "BatchConsumer":
                from tieredstore.pubsub.consume import consumer  # noqa: PLC0415

                return consumer.BatchConsumer
            case "BatchProducer":
                from tieredstore.pubsub.produce import producer  # noqa: PLC0415

                return producer.BatchProducer
            case "Position":
                from tieredstore.pubsub.queue import queues  # noqa: PLC0415

                return queues.Position
            case "Topic" | "Topics":
                from tieredstore.pubsub.queue import topics  # noqa: PLC0415

                return getattr(topics, name)
            case "open_topics":
                from tieredstore.pubsub.queue import memq_topics  # noqa: PLC0415

                return memq_topics.open_topics
            case _:
                pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
