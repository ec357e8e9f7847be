"""A broker as a service: start the broker's event loop, refresh the topics, and stop the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.process.deadline import Deadline
from tieredstore.process.health import Health
from tieredstore.process.log_once import LogOnce
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop, nothing_under_way
from tieredstore.pubsub.broker.authorization import authorizer_of
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.governor.assigning import BrokerSeat, strategy_of
from tieredstore.pubsub.governor.directory import Directory, Governor, StoreTopics, rest_s
from tieredstore.pubsub.governor.store_governor import StoreGovernor, broker_name
from tieredstore.pubsub.governor.zookeeper_governor import ZooKeeperGovernor
from tieredstore.pubsub.governor.zookeeper_nodes import ZooKeeperTopics
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.settings import BatchBrokerSettings

REFRESH_S: Final = 10.0
"""Seconds between refreshes of the broker's topics, as in MemQ's brokers."""

_LOOK_S: Final = 0.2
_FOLLOW_S: Final = 0.3
_BEAT_S: Final = 60.0
_TOPICS: Final = "topics"
_ASSIGNED: Final = "assignments"
_logger: Final = logging.getLogger(__name__)


def make_governed_broker(topics: Topics) -> tuple[Broker, Governor | None]:
    """Return the broker that the settings describe, and its governor. The governor assigns topics to brokers. The
    governor is None for a broker that has all topics.
    """
    own = topics.settings.section(BatchBrokerSettings)
    authorizer = authorizer_of(own.authorizer)
    if own.coordinator == "none":
        return Broker(topics, authorizer=authorizer), None

    def seat() -> BrokerSeat:
        return BrokerSeat(broker_name(broker.address), broker.address, own.capacity_mb, own.serve_reads)

    strategy = strategy_of(own.assignment)
    directory = Directory(StoreTopics(topics))
    if own.zookeeper is not None and own.coordinator == "zookeeper":
        session_s = own.zookeeper_session_ms / 1000
        directory = Directory(ZooKeeperTopics(ZooKeeperSession(own.zookeeper, session_s), topics), StoreTopics(topics))
        session = ZooKeeperSession(own.zookeeper, session_s)
        governor: Governor = ZooKeeperGovernor(session, seat, directory.all, strategy)
    else:
        governor = StoreGovernor(topics.folder, seat, lambda: [topic.load for topic in directory.all()], strategy)
    broker = Broker(topics, assignment=governor, authorizer=authorizer, directory=directory)
    return broker, governor


def broker_service(broker: Broker, governor: Governor | None = None) -> Service:
    """Return a service that runs the broker until it is stopped, then stores its Messages."""
    health = _health(governor)
    listens, handed_over, ended = threading.Event(), threading.Event(), threading.Event()

    def serve(stop: Stop) -> None:
        try:
            asyncio.run(_serve(broker, stop, health, listens, handed_over if governor is not None else None))
        finally:
            listens.set()
            ended.set()
            broker.directory.close()

    def govern(stop: Stop) -> None:
        assert governor is not None
        listens.wait()
        has_part = _govern(governor, stop, health)
        try:
            if has_part:
                _leave(governor, broker, handed_over, ended)
        finally:
            handed_over.set()
            governor.close()
        health.rest("governor")

    def read_topics(stop: Stop) -> None:
        while True:
            with nothing_under_way():
                has_read = broker.directory.try_refresh()
            if has_read:
                health.holds(_TOPICS)
            else:
                health.fails(_TOPICS, "the topics could not be listed")
            if stop.wait(REFRESH_S):
                return

    own = broker.own
    # Allow 10 s after the drain for the loop to end, although this may cut off requests to the store that no client
    # waits for.
    return Service(
        "broker",
        {"serve": serve, "topics": read_topics, **({} if governor is None else {"governor": govern})},
        drain_s=own.drain_ms / 1000 + 10,
        health=health,
        listen=own.pages,
    )


def _health(governor: Governor | None) -> Health:
    server = "ZooKeeper" if isinstance(governor, ZooKeeperGovernor) else "store"
    conditions = {"listening": "not listening yet", _TOPICS: "topics not read yet"}
    if governor is not None:
        conditions[_ASSIGNED] = "no assignment of topics yet"
    return Health(conditions, servers={_TOPICS: server, _ASSIGNED: server})


def _govern(governor: Governor, stop: Stop, health: Health) -> bool:
    """Tick the governor until the service stops. Return True if any tick has succeeded."""
    has_part, once = False, LogOnce(_logger)
    while True:
        begin_s = time.monotonic()
        try:
            # Before the first successful tick, a stop of the service does not wait for the running tick, because this
            # broker has no topics yet. If the tick has announced the broker, the announcement soon expires.
            with contextlib.nullcontext() if has_part else nothing_under_way():
                governor.tick()
            has_part = True
        except TieredStoreError as error:
            # The broker keeps its current assignment until a tick succeeds.
            once.warn(f"governor: {error}")
            health.fails(_ASSIGNED, f"assignments unknown: {type(error).__name__}")
        else:
            health.holds(_ASSIGNED)
        health.beat("governor", within_s=_BEAT_S)
        if stop.wait(rest_s(time.monotonic() - begin_s)):
            return has_part


def _leave(governor: Governor, broker: Broker, handed_over: threading.Event, ended: threading.Event) -> None:
    """Give up the broker's topics. Then keep reading the new assignments until the broker has ended, because they name
    the brokers to which it redirects its clients."""
    try:
        if not governor.leave():
            return
        while not ended.is_set():
            begin_s = time.monotonic()
            governor.follow()
            if not broker.serves_any():
                handed_over.set()
            ended.wait(rest_s(time.monotonic() - begin_s) if handed_over.is_set() else _FOLLOW_S)
    except TieredStoreError as error:
        _logger.warning("governor: other brokers will notice this broker's end only by timeout: %s", error)


async def _serve(
    broker: Broker, stop: Stop, health: Health, listens: threading.Event, handed_over: threading.Event | None
) -> None:
    await broker.start()
    health.holds("listening")
    listens.set()
    while not stop.is_asked:
        health.beat("serve", within_s=_BEAT_S)
        await asyncio.sleep(_LOOK_S)
    deadline = Deadline.after(broker.own.drain_ms / 1000)
    if handed_over is not None:
        # A broker without topics need not wait for its governor, which may hang on a store that does not answer.
        await broker.hand_over(lambda: handed_over.is_set() or not broker.serves_any(), deadline.remaining_s() / 2)
    await broker.drain(deadline.remaining_s())
