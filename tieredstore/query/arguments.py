"""Checks arguments, for callers without a type checker. The error for a wrong type is one sentence with the argument's
name.

The errors do not show the argument's value, because it may be a password.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import Uuid

Partitions: TypeAlias = "int | Sequence[int] | None"
"""One partition, several (a ``range`` too), or None for all."""

TopicIdLike: TypeAlias = "Uuid | str | None"
"""Kafka's topic id. It selects one incarnation of a topic that was deleted and re-created."""


def wrong_kind(name: str, given: object, wanted: str) -> ConfigError:
    """Return the error for an argument of a wrong type."""
    return ConfigError(f"{name} is of the type {type(given).__name__}; it must be {wanted}")


def path_of(name: str, given: str | os.PathLike[str]) -> Path:
    """Convert an argument to a path. Raise ConfigError if that is impossible."""
    try:
        return Path(os.fsdecode(given))
    except TypeError:
        raise wrong_kind(name, given, "a path") from None


def check_callback(name: str, given: object) -> None:
    """Raise ConfigError unless the argument is a function or None."""
    if given is not None and not callable(given):
        raise wrong_kind(name, given, "a function")


def check_topic(topic: object) -> None:
    """Raise ConfigError unless the topic is a text."""
    if not isinstance(topic, str):
        raise wrong_kind("topic", topic, "a topic's name")


def check_map(name: str, given: object, wanted: str) -> None:
    """Raise ConfigError unless the argument is a mapping or None."""
    if given is not None and not isinstance(given, Mapping):
        raise wrong_kind(name, given, wanted)


def check_client(client: object) -> None:
    """Raise ConfigError unless the argument is None or a mapping with the properties of a Kafka client."""
    check_map("client", client, 'a map of properties, as {"bootstrap.servers": "localhost:9092"}')


def topic_id_of(given: TopicIdLike, name: str = "topic_id") -> Uuid | None:
    """Convert an argument to a topic id; raise ConfigError for an invalid id."""
    match given:
        case None | Uuid():
            return given
        case str():
            return Uuid.parse(given)
        case _:
            raise ConfigError(f"{name} is of the type {type(given).__name__}; give the topic id as text")


def topic_ids_of(given: Mapping[str, TopicIdLike] | None, name: str = "topic_ids") -> dict[str, Uuid]:
    """Return the topic ids by topic name. Raise ConfigError for an invalid id, or if ``given`` is not a mapping."""
    check_map(name, given, 'a map from topics to their ids, as {"orders": "AAAAAAAAQACAAAAAAAAAAA"}')
    ids = ((topic, topic_id_of(one, f"the entry {topic} of {name}")) for topic, one in (given or {}).items())
    return {topic: topic_id for topic, topic_id in ids if topic_id is not None}


def check_count(name: str, count: object) -> None:
    """Raise ConfigError unless the argument is a whole number of at least one."""
    if not isinstance(count, int):
        raise wrong_kind(name, count, "a whole number")
    if count < 1:
        raise ConfigError(f"{name} is {count}; it must be at least 1")


def several_of(name: str, given: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    """Return the values as a tuple. Raise ConfigError if any value has a type other than ``kind``.

    Also raise ConfigError for a single text, which Python would take as a sequence of letters.
    """
    if not _are_several(given):
        raise wrong_kind(name, given, f"a list of {wanted}")
    several: tuple[Any, ...] = tuple(given)
    for one in several:
        if not isinstance(one, kind):
            raise wrong_kind(f"one of {name}", one, f"one of {wanted}")
    return several


def _are_several(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes)


def partition_set(given: Partitions) -> tuple[int, ...] | None:
    """Return the partitions in ascending order, each once; raise ConfigError for an invalid partition number."""
    if given is None:
        return None
    _check_kind(given)
    numbers = (given,) if isinstance(given, int) else tuple(given)
    if not all(type(number) is int and 0 <= number <= MAX_INT32 for number in numbers):
        raise ConfigError(f"partitions is {given!r:.60}: give 0, [0, 2] or range(3)")
    if not numbers:
        raise ConfigError("partitions is empty: leave it out for all of a topic")
    return tuple(sorted(set(numbers)))


def _check_kind(given: object) -> None:
    if isinstance(given, str | bytes) or not isinstance(given, int | Sequence):
        raise ConfigError(f"partitions is a {type(given).__name__}: give 0, [0, 2] or range(3)")
