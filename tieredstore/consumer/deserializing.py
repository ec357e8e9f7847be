"""confluent-kafka's ``DeserializingConsumer`` over bucket and broker."""

from __future__ import annotations

from typing import Any, Final

import confluent_kafka

from tieredstore.consumer.consumer import Consumer

_WORDS: Final = """A consumer whose messages have deserialized keys and values, by the library's ``key.deserializer``.

The library's class calls its base for what it does not do itself, which is :class:`Consumer` here.
"""

# Made by hand: the library's class narrows what its base returns, which no declaration can do over two bases.
DeserializingConsumer: Any = type(
    "DeserializingConsumer",
    (confluent_kafka.DeserializingConsumer, Consumer),
    {"__doc__": _WORDS, "__module__": __name__},
)
