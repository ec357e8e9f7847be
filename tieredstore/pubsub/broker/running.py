"""A broker as a service: the thread of its loop, its topics read again and again, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.broker.directory import refreshed

REFRESH_S: Final = 10.0
"""How often topics are read again, as at MemQ's brokers."""

_LOOK_S: Final = 0.2
_BEAT_S: Final = 60.0
_TOPICS: Final = "topics"


def broker_service(broker: Broker, *, on_start: Callable[[Broker], None] | None = None) -> Service:
    """A service that answers until it is stopped, and then stores what it holds. ``on_start`` is told once it listens:
    ``broker.address`` has the port by then."""
    health = Health({"listening": "it does not listen yet", _TOPICS: "the topics were not read yet"})

    def serve(stop: Stop) -> None:
        asyncio.run(_serve(broker, stop, health, on_start))

    def read_topics(stop: Stop) -> None:
        while True:
            if refreshed(broker.directory):
                health.holds(_TOPICS)
            else:
                health.fails(_TOPICS, "the store did not tell of the topics")
            if stop.wait(REFRESH_S):
                return

    own = broker.own
    # Answers that nobody waits for any more may be cut off after the drain; the loop's own end takes a moment too.
    return Service(
        "broker",
        {"serve": serve, "topics": read_topics},
        drain_s=own.drain_ms / 1000 + 10,
        health=health,
        listen=own.pages,
    )


async def _serve(broker: Broker, stop: Stop, health: Health, on_start: Callable[[Broker], None] | None) -> None:
    await broker.start()
    health.holds("listening")
    if on_start is not None:
        on_start(broker)
    while not stop.is_asked:
        health.beat("serve", within_s=_BEAT_S)
        await asyncio.sleep(_LOOK_S)
    await broker.drain(broker.own.drain_ms / 1000)
