"""Message transformer in a module that Spark's workers import quickly."""

from __future__ import annotations

from tieredstore.pipelines.transforming import Message


def without_odd(message: Message) -> Message | None:
    """Keep messages with even offsets."""
    return None if message.offset % 2 else message
