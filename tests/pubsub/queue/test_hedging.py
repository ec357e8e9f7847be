"""A second try beside one that hangs, and the queue that is written so."""

from __future__ import annotations

import threading

import pytest

from tests.support.pubsub.pubsub_topics import orders_on, values_of
from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import Body
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailable
from tieredstore.pubsub.consume.consumer import Consumer
from tieredstore.pubsub.produce.producer import Producer
from tieredstore.pubsub.queue import hedging
from tieredstore.pubsub.queue.hedging import Hedge, UsualTime

LONG_S = 120.0


def test_a_try_is_worth_it_after_three_times_what_is_usual() -> None:
    usual = UsualTime()
    assert usual.hedge_after_s == 1.5
    usual.note(0.001)
    assert usual.hedge_after_s == 0.3
    for number in range(100):
        usual.note(0.2 if number < 96 else 50.0)
    assert usual.hedge_after_s == pytest.approx(0.6)


class Tries:
    """The first ``hanging`` hang; then each gives, or raises, what is next."""

    def __init__(self, hanging: int, *outcomes: object) -> None:
        self.hanging = hanging
        self.outcomes = list(outcomes)
        self.count = 0
        self.released = threading.Event()

    def __call__(self) -> object:
        self.count += 1
        if self.count <= self.hanging:
            assert self.released.wait(LONG_S)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def test_the_first_that_succeeds_counts() -> None:
    hedge = Hedge("test", 4)
    hangs = Tries(1, "second", "first")
    assert hedge.run(hangs) == "second"
    hangs.released.set()
    assert hangs.count == 2
    hedge.close()


def test_what_ends_in_time_is_tried_once_well_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedging, "_LEAST_S", LONG_S)
    hedge = Hedge("test", 4)
    quick = Tries(0, "quick")
    assert hedge.run(quick) == "quick"
    failing = Tries(0, StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable, match="away"):
        hedge.run(failing)
    assert (quick.count, failing.count) == (1, 1)
    hedge.close()


class HangingQueue(DelegatingObjectStore):
    """The first put of an entry takes effect, and its answer never comes."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.released = threading.Event()
        self.entries = 0

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        super().put(key, body, if_absent=if_absent)
        if "/queues/" in key and "start" not in key.rpartition("/")[2]:
            self.entries += 1
            if self.entries == 1:
                assert self.released.wait(LONG_S)


def test_an_entry_whose_answer_hangs_keeps_no_ack_back_and_stands_once() -> None:
    store = HangingQueue()
    topics = orders_on(store, batch_ms="10")
    store.entries = 0
    with Producer(topics, "orders") as producer:
        place = producer.send(b"v").result(LONG_S)
        assert (place.offset, store.released.is_set()) == (0, False)
        with Consumer(topics, "orders") as consumer:
            assert values_of(consumer, at_least=1) == [b"v"]
        store.released.set()
