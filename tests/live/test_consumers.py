"""Tests of lent consumers: each serves one read at a time, threads lend and return them at once, and all are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tieredstore.live import clients
from tieredstore.live.clients import ConsumerPool, Statistics
from tieredstore.live.faults import Trouble


class IdleConsumer:
    """A substitute for librdkafka's consumer."""

    instances: list[IdleConsumer]

    def __init__(self, configuration: object) -> None:
        self.trouble = Trouble()
        self.statistics = Statistics()
        self.is_closed = False
        self.on_unassign: Callable[[], None] = lambda: None
        self.instances.append(self)

    def unassign(self) -> None:
        self.on_unassign()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def idle_consumers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[IdleConsumer]]:
    IdleConsumer.instances = []
    monkeypatch.setattr(clients, "LiveConsumer", IdleConsumer)
    yield IdleConsumer.instances
    del IdleConsumer.instances


def test_a_pool_that_is_closed_while_one_comes_back(idle_consumers: list[IdleConsumer]) -> None:
    pool = ConsumerPool({})
    with pool.lend():
        idle_consumers[0].on_unassign = pool.close
    assert idle_consumers[0].is_closed


def test_one_that_cannot_be_used_again_is_closed(idle_consumers: list[IdleConsumer]) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    pool = ConsumerPool({})
    with pool.lend():
        idle_consumers[0].on_unassign = fail
    assert idle_consumers[0].is_closed
    with pool.lend():
        assert len(idle_consumers) == 2


def test_trouble_of_one_read_is_not_the_next_ones(idle_consumers: list[IdleConsumer]) -> None:
    pool = ConsumerPool({})
    with pool.lend() as consumer:
        consumer.trouble.note(KafkaError(KafkaError._TRANSPORT))
    with pool.lend() as consumer:
        assert len(idle_consumers) == 1
        assert consumer.trouble.noted is None
