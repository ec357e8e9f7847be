"""Arguments as callers without a type checker give them: one sentence that names what is of another kind.

No message shows what was given, which may have a password in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tieredstore.errors import ConfigError

_A_MANAGER: Final = "a RemoteStorageManager that is open"


def wrong_kind(name: str, given: object, wanted: str) -> ConfigError:
    """That an argument is of another kind than what is wanted."""
    return ConfigError(f"{name} is of the type {type(given).__name__}; it must be {wanted}")


def check_topic(topic: object) -> None:
    """ConfigError for what is no name."""
    if not isinstance(topic, str):
        raise wrong_kind("topic", topic, "a topic's name")


def check_source(source: object) -> None:
    """ConfigError for what nothing is read from, as settings and their file are, which others take."""
    if not hasattr(source, "fetch_log_segment"):
        raise wrong_kind("source", source, _A_MANAGER)


def check_map(name: str, given: object, wanted: str) -> None:
    """ConfigError for what is neither a map nor left out."""
    if given is not None and not isinstance(given, Mapping):
        raise wrong_kind(name, given, wanted)


def check_client(client: object) -> None:
    """ConfigError for what are no properties of a client."""
    check_map("client", client, 'a map of properties, as {"bootstrap.servers": "localhost:9092"}')


def check_count(name: str, count: object) -> None:
    """ConfigError for what is no number, or less than one."""
    if not isinstance(count, int):
        raise wrong_kind(name, count, "a whole number")
    if count < 1:
        raise ConfigError(f"{name} is {count}; it must be at least 1")


def several_of(name: str, given: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    """What was given, each of this kind; ConfigError for others, and for a text alone, which has letters."""
    if not _are_several(given):
        raise wrong_kind(name, given, f"a list of {wanted}")
    several: tuple[Any, ...] = tuple(given)
    for one in several:
        if not isinstance(one, kind):
            raise wrong_kind(f"one of {name}", one, f"one of {wanted}")
    return several


def _are_several(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes)
