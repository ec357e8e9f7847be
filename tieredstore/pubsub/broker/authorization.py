"""Authorization of a broker's clients: a hook for the operator's code. Without it, everything is allowed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from tieredstore.config.named_class import import_class
from tieredstore.pubsub.format.packets import PacketType

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its address, and the subject of its certificate (``CN=…,O=…``) if the broker required one."""

    address: str
    principal: str | None


class Authorizer(ABC):
    """Hook that allows or denies writes and reads of a topic. Every client may read metadata, as with MemQ's
    brokers.
    """

    @abstractmethod
    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        """Return True to allow the operation. Called for each request on the event loop, so it must not block."""


def authorizer_of(name: str) -> Authorizer | None:
    """Return an instance of the class that ``pubsub.broker.authorizer`` names; None for ``none``. Raise ConfigError if
    the class cannot be used."""
    if name == NONE:
        return None
    own_class: type[Authorizer] = import_class(
        "pubsub.broker.authorizer", name, Authorizer, "expected none or an importable class"
    )
    return own_class()
