"""Whom a producer asks which brokers have its topic: who failed last comes last, whatever has failed before."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.support.pubsub.pubsub_topics import topics_on
from tieredstore.errors import BrokerUnavailable
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.produce.broker_producer import BrokerLink, Place, TopicBrokers
from tieredstore.pubsub.settings import BatchClientSettings

PLACES: list[Place] = [(f"10.0.0.{number}", 9092) for number in range(4)]


class Cluster:
    """Brokers of which one is cut off from the others: it says for ever that it has the topic, and takes nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.asked: list[Place] = []
        self.cut_off = PLACES[0]
        self.has_topic = PLACES[0]
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        topics = topics_on(bootstrap=",".join(f"{host}:{port}" for host, port in PLACES))
        self.brokers = TopicBrokers("orders", topics.settings.section(BatchClientSettings))
        monkeypatch.setattr(self.brokers, "_ask", self.ask)
        monkeypatch.setattr(self.brokers, "_connect", self.connected)

    async def ask(self, place: Place) -> tuple[BrokerAddress, ...]:
        self.asked.append(place)
        host, port = place if place == self.cut_off else self.has_topic
        return (BrokerAddress("", host, port),)

    async def connected(self, place: Place) -> BrokerLink:
        return _Link(place)

    def sends(self, tries: int) -> bool:
        """Whether a Message comes to who has the topic."""
        for _ in range(tries):
            self.now_s += 1.0
            try:
                link = asyncio.run(self.brokers.link())
            except BrokerUnavailable:
                continue
            if link.place == self.has_topic != self.cut_off:
                self.brokers.settle(link.place)
                return True
            self.brokers.left(link, "no answer")
        return False


class _Link(BrokerLink):
    def __init__(self, place: Place) -> None:
        self.place = place

    def lose(self, why: str) -> None:
        assert why


@pytest.mark.parametrize("seed", range(5))
def test_who_is_cut_off_is_left_though_all_have_failed_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(seed)
    cluster = Cluster(monkeypatch)
    for place in PLACES[1:]:
        cluster.now_s += 10.0
        cluster.brokers.left(_Link(place), "it was killed some time ago")
    cluster.brokers._brokers = (BrokerAddress("", *PLACES[0]),)
    cluster.has_topic = PLACES[2]
    assert cluster.sends(20)
    cluster.cut_off, cluster.has_topic = PLACES[2], PLACES[1]
    assert cluster.sends(20)
