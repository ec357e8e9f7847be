"""Which names of client properties are any: told by librdkafka, which refuses the first that it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from tieredstore.live.key_stores import OF_JAVAS_STORES
from tieredstore.live.properties import is_never_text, is_translated, renamed

_NONE: Final = "tieredstore.no.such.property"
_UNKNOWN: Final = "No such configuration property"


def unknown_properties(names: Iterable[str]) -> list[str]:
    """Those that are neither librdkafka's nor, translated or without effect, Java's. Looks at no value."""
    return [name for name in names if not _is_known(name)]


def _is_known(name: str) -> bool:
    if is_translated(name) or name in OF_JAVAS_STORES:
        return True
    if is_never_text(name):
        return False
    consumer: Any = Consumer
    try:
        # Names are looked at in this order; behind the last one nothing is begun.
        consumer({"group.id": "names", renamed(name): "", _NONE: ""})
    except KafkaException as error:
        words: str = error.args[0].str()
        return not words.startswith(_UNKNOWN) or _NONE in words
    except (TypeError, ValueError):
        return True
    raise AssertionError(f"librdkafka takes {_NONE}")
