"""Which brokers take a topic's Messages, and the connections to them: found by seeds, own zone first, in turn."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import time
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import BrokerUnavailable, ConfigError, TieredStoreError
from tieredstore.pubsub.errors import TopicNotFound
from tieredstore.pubsub.format.packets import (
    BrokerAddress,
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    Request,
    Response,
)
from tieredstore.pubsub.produce.link import BrokerLink, Place
from tieredstore.pubsub.settings import BatchClientSettings

VERSION: Final = 5

_CONNECT_S: Final = 5.0
_STALE_S: Final = 60.0
_FIRST_REST_S: Final = 0.2
_MOST_REST_S: Final = 5.0
_NOT_FOUND_S: Final = 15.0
"""A topic may be new, and MemQ's brokers read their topics every ten seconds."""


@dataclass(slots=True)
class _Rest:
    """How long a broker that failed is left alone."""

    until_s: float = 0.0
    seconds: float = 0.0
    failed_s: float = 0.0
    """When it has failed last."""


class TopicBrokers:
    """Used on one loop. ``link`` gives a connection to the broker whose turn it is."""

    def __init__(self, topic: str, settings: BatchClientSettings) -> None:
        self._topic = topic
        self._settings = settings
        self._tls = client_tls(settings)
        self._seeds = [_place(text) for text in settings.bootstrap]
        self._links: dict[Place, BrokerLink] = {}
        self._rests: dict[Place, _Rest] = {}
        self._brokers: tuple[BrokerAddress, ...] = ()
        self._asked_s = -_STALE_S
        self._failure: tuple[float, TieredStoreError] | None = None
        self._unknown_since_s: float | None = None
        self._ids = itertools.count()
        self._turn = itertools.count(random.randrange(1 << 16))  # noqa: S311  which broker is first
        self._order = random.random()  # noqa: S311  clients do not all prefer the same ones
        self._asking = asyncio.Lock()
        self._connecting: dict[Place, asyncio.Lock] = {}

    async def link(self) -> BrokerLink:
        """A connection to write to; BrokerUnavailable if none can be had now, TopicNotFound if there is no topic."""
        await self._ask_if_stale()
        places = self._chosen()
        if not places:
            raise BrokerUnavailable(f"no broker of topic {self._topic} answers now")
        place = places[next(self._turn) % len(places)]
        async with self._connecting.setdefault(place, asyncio.Lock()):
            return await self._connected(place)

    def left(self, link: BrokerLink, why: str) -> None:
        """It failed: left alone for a while, and the metadata are asked for again."""
        link.lose(why)
        self._rest(link.place)
        self.stale()

    def stale(self) -> None:
        """The topic is elsewhere by now."""
        self._asked_s = -_STALE_S

    def close(self) -> None:
        """End all connections."""
        for link in self._links.values():
            link.lose("the producer was closed")

    # --- connections ---

    async def _connected(self, place: Place) -> BrokerLink:
        link = self._links.get(place)
        if link is None or link.is_lost:
            try:
                link = self._links[place] = await BrokerLink.open(place, self._tls, _CONNECT_S)
            except BrokerUnavailable:
                self._rest(place)
                self.stale()
                raise
        return link

    def answered(self, place: Place) -> None:
        """It works."""
        self._rests.pop(place, None)

    def _rest(self, place: Place) -> None:
        rest = self._rests.setdefault(place, _Rest())
        now_s = rest.failed_s = time.monotonic()
        if rest.until_s <= now_s:  # many Messages may tell of one loss
            rest.seconds = min(_MOST_REST_S, max(_FIRST_REST_S, 2 * rest.seconds))
            rest.until_s = now_s + rest.seconds * (0.5 + random.random() / 2)  # noqa: S311  jitter

    def _failed_s(self, place: Place) -> float:
        return self._rests[place].failed_s if place in self._rests else -1.0

    def _chosen(self) -> list[Place]:
        """The brokers to write to: of the own zone if one of those is well, as many as wanted."""
        now_s = time.monotonic()
        well = [
            broker
            for broker in self._brokers
            if (broker.ip, broker.port) not in self._rests or self._rests[broker.ip, broker.port].until_s <= now_s
        ]
        near = [broker for broker in well if self._settings.rack and broker.locality == self._settings.rack]
        places = sorted({(broker.ip, broker.port) for broker in near or well})
        random.Random(self._order).shuffle(places)  # noqa: S311  the same order each time, another for each client
        return places[: self._settings.endpoints]

    # --- metadata ---

    async def _ask_if_stale(self) -> None:
        if time.monotonic() - self._asked_s < _STALE_S:
            return
        async with self._asking:
            if time.monotonic() - self._asked_s < _STALE_S:
                return
            if self._failure is not None and time.monotonic() - self._failure[0] < _FIRST_REST_S:
                raise self._failure[1]  # asked for another Message, a moment ago
            known = [(broker.ip, broker.port) for broker in self._brokers]
            seeds = random.sample(self._seeds, len(self._seeds))
            error: TieredStoreError | None = None
            # Who has not answered what was written to it is asked last, and who did so just now behind those that did
            # long ago: a broker that is cut off from the others says for ever that it has the topic.
            for place in sorted(dict.fromkeys([*known, *seeds]), key=self._failed_s):
                try:
                    self._brokers = await self._ask(place)
                except BrokerUnavailable as failure:
                    error = failure
                else:
                    # A topic that nobody has yet is assigned in a moment.
                    self._asked_s = time.monotonic() - (0.0 if self._brokers else _STALE_S - _MOST_REST_S / 10)
                    return
            if error is not None:
                self._failure = (time.monotonic(), error)
                raise error

    async def _ask(self, place: Place) -> tuple[BrokerAddress, ...]:
        link = self._links.get(place)
        own = link is None or link.is_lost
        if link is None or link.is_lost:
            link = await BrokerLink.open(place, self._tls, _CONNECT_S)
        try:
            request = Request(VERSION, next(self._ids), MetadataRequest((self._topic,)))
            response = await link.ask(request, PacketType.METADATA, _CONNECT_S)
        finally:
            if own:
                link.lose("it was asked for metadata alone")
        return self._writers_in(response, place)

    def _writers_in(self, response: Response, place: Place) -> tuple[BrokerAddress, ...]:
        where = f"broker {place[0]}:{place[1]}"
        if response.code is Code.NOT_FOUND:
            now_s = time.monotonic()
            self._unknown_since_s = now_s if self._unknown_since_s is None else self._unknown_since_s
            if now_s - self._unknown_since_s >= _NOT_FOUND_S:
                raise TopicNotFound(f"{where}: there is no topic {self._topic}")
            raise BrokerUnavailable(f"{where}: there is no topic {self._topic} yet")
        if response.code is not Code.OK or not isinstance(response.payload, MetadataAnswer):
            raise BrokerUnavailable(f"{where} does not tell of topic {self._topic}: {response.error:.200}")
        self._unknown_since_s = None
        return tuple(
            broker for topic in response.payload.topics if topic.topic == self._topic for broker in topic.write_brokers
        )


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def client_tls(settings: BatchClientSettings) -> ssl.SSLContext | None:
    """How brokers are spoken to; ConfigError for files that cannot be used."""
    if settings.tls == "none":
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the files of pubsub.tls.* cannot be used: {error}") from error
    return context
