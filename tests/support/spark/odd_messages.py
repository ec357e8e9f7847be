"""A transformer of messages, in a module that a worker of Spark's imports quickly."""

from __future__ import annotations

from tieredstore.pipelines.transforming import Message


def without_odd(message: Message) -> Message | None:
    """Those of even offsets."""
    return None if message.offset % 2 else message
