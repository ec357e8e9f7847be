"""Chooses the place of each topic, by the rules of the settings or by the user's own class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.config.named_class import import_class

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.config.endpoint import EndpointRule


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A store and a prefix.

    If ``url`` is None, the endpoint uses the store of the settings. If ``prefix`` is None, the prefix comes from the
    URL or, without a URL, from ``key.prefix``. ``storage`` are pairs of name and text: the properties ``storage.*`` for
    this place that differ from the settings.
    """

    url: str | None = None
    prefix: str | None = None
    storage: tuple[tuple[str, str], ...] = ()


class EndpointProvider(ABC):
    """Chooses the place of each topic. Every process that reads or writes creates its own provider from the settings.

    A topic must get the same endpoint in every process and at all times, because readers look for data only there.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def endpoint(self, topic: str) -> Endpoint:
        """Return the place of the topic's segments, one of :meth:`endpoints`."""

    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint]:
        """Return all places except the settings' own place. A listing of topics visits all of them."""


class RulesProvider(EndpointProvider):
    """Chooses by ``endpoint.rules``: the first rule that matches the topic decides."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._rules = [(rule, _endpoint_of(rule)) for rule in settings.endpoint.rules]

    def endpoint(self, topic: str) -> Endpoint:
        """Return the place of the first matching rule, or the settings' own place if no rule matches."""
        return next((endpoint for rule, endpoint in self._rules if rule.holds(topic)), Endpoint())

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of the rules."""
        return [endpoint for _, endpoint in self._rules]


def _endpoint_of(rule: EndpointRule) -> Endpoint:
    storage = tuple((name, text.get_secret_value()) for name, text in rule.storage)
    return Endpoint(rule.url, rule.prefix, storage)


def provider_of(settings: Settings) -> EndpointProvider:
    """Create the provider that the settings name. Raise ConfigError if the provider's class cannot be used."""
    name = settings.endpoint.provider_class
    if name is None:
        return RulesProvider(settings)
    own_class: type[EndpointProvider] = import_class(
        "endpoint.provider.class", name.replace(":", "."), EndpointProvider, "and no such class can be imported"
    )
    return own_class(settings)
