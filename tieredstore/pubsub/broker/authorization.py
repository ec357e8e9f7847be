"""Who may do what at a broker: a hook, and the one that lets everybody."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from tieredstore.errors import ConfigError
from tieredstore.pubsub.format.packets import PacketType

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: its address, and the subject of its certificate (``CN=…,O=…``) where it had to show one."""

    address: str
    principal: str | None


class Authorizer(ABC):
    """Decides over writes and reads of a topic. Metadata are everybody's, as at MemQ's brokers."""

    @abstractmethod
    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        """Whether it may. Called for each request on the broker's own thread: it must not wait for anything."""


class EverybodyMay(Authorizer):
    """No authorization."""

    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:  # noqa: ARG002  the hook's signature
        """Yes."""
        return True


def authorizer_of(name: str) -> Authorizer:
    """What ``pubsub.broker.authorizer`` names; ConfigError for a class that cannot be used."""
    if name == NONE:
        return EverybodyMay()
    module_name, _, class_name = name.rpartition(".")
    try:
        own_class: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"pubsub.broker.authorizer is {name!r:.120}, neither none nor a class that can be imported: {error}"
        ) from error
    if not isinstance(own_class, type) or not issubclass(own_class, Authorizer):
        raise ConfigError(f"pubsub.broker.authorizer is {name!r:.120}, which is no subclass of Authorizer")
    return own_class()
