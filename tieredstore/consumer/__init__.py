"""A Kafka consumer that reads the bucket and the broker as one log. Needs ``tieredstore[kafka]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.installation import Extra

if TYPE_CHECKING:
    from tieredstore.consumer._message import Message
    from tieredstore.consumer.consumer import Consumer, DeserializingConsumer
    from tieredstore.consumer.delivery import PartitionBatch
    from tieredstore.consumer.settings import Mode

__all__ = ["Consumer", "DeserializingConsumer", "Message", "Mode", "PartitionBatch"]


def __getattr__(name: str) -> object:
    # Import these names on first use, because `tieredstore --help` imports this module only for its list of commands.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with Extra("a consumer", "kafka"):
        from tieredstore.consumer import _message, consumer, delivery, settings  # noqa: PLC0415
    return next(getattr(room, name) for room in (_message, consumer, delivery, settings) if name in vars(room))
