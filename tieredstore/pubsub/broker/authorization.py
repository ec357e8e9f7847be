"""Who may do what at a broker: a hook, and the one that lets everybody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from tieredstore.config.named_class import named_class
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
    own_class: type[Authorizer] = named_class(
        "pubsub.broker.authorizer", name, Authorizer, "neither none nor a class that can be imported"
    )
    return own_class()
