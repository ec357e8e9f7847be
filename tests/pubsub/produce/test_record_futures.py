"""Futures of records are futures in all ways in which somebody may wait for them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

import pytest

from tests.support.pubsub.pubsub_topics import orders_on
from tieredstore.pubsub.errors import DeliveryFailed
from tieredstore.pubsub.produce.futures import MessageOutcome, RecordFuture, RecordPlace
from tieredstore.pubsub.produce.producer import Producer


def futures_of_a_message(count: int) -> tuple[list[RecordFuture], MessageOutcome]:
    outcome = MessageOutcome()
    return [RecordFuture(outcome, number) for number in range(count)], outcome


def places_of(count: int) -> list[RecordPlace]:
    return [RecordPlace(1, 2, 3, number) for number in range(count)]


def test_each_way_of_waiting_hears_of_it_whether_it_began_before_or_after() -> None:
    futures, outcome = futures_of_a_message(5)
    heard: list[RecordPlace] = []
    futures[0].add_done_callback(lambda future: heard.append(future.result()))
    assert not futures[1].done()
    assert wait(futures, timeout=0, return_when=FIRST_COMPLETED).not_done == set(futures)
    waiting = threading.Thread(target=lambda: heard.extend(each.result(60) for each in futures[2:4]))
    waiting.start()
    outcome.stands_at(1, 2, 3)
    waiting.join(60)
    futures[4].add_done_callback(lambda future: heard.append(future.result()))
    assert sorted(heard) == [place for place in places_of(5) if place.record != 1]
    assert set(as_completed(futures, timeout=60)) == wait(futures, timeout=60).done == set(futures)


def test_nobody_who_begins_to_wait_meanwhile_is_forgotten() -> None:
    for _ in range(50):
        futures, outcome = futures_of_a_message(40)
        places: list[RecordPlace] = []
        waiting = threading.Thread(target=lambda: places.extend([each.result(60) for each in reversed(futures)]))  # noqa: B023  joined in its turn
        waiting.start()
        outcome.stands_at(1, 2, 3)
        waiting.join(60)
        assert places == places_of(40)[::-1]


def test_a_failure_is_raised_from_those_that_were_looked_at_and_those_that_were_not() -> None:
    futures, outcome = futures_of_a_message(2)
    assert futures[0].running()
    outcome.fail(DeliveryFailed("gone", maybe_stored=False))
    for future in futures:
        with pytest.raises(DeliveryFailed, match="gone"):
            future.result(0)
    assert "raised DeliveryFailed" in repr(futures[1])


def test_a_loop_can_wait_for_one() -> None:
    async def waited() -> RecordPlace:
        (future,), outcome = futures_of_a_message(1)
        asyncio.get_running_loop().call_soon(outcome.stands_at, 1, 2, 3)
        return await asyncio.wrap_future(future)

    assert asyncio.run(waited()) == RecordPlace(1, 2, 3, 0)


def test_what_was_sent_cannot_be_taken_back_and_is_stored_with_the_others() -> None:
    topics = orders_on()
    with Producer(topics, "orders") as producer:
        futures = [producer.send(b"value") for _ in range(3)]
        assert not futures[1].cancel()
        producer.flush()
    assert [future.result(0).record for future in futures] == [0, 1, 2]


def test_a_future_has_no_other_attribute() -> None:
    (future,), _ = futures_of_a_message(1)
    assert not hasattr(future, "place")


def test_what_the_caller_drops_is_gone_at_once() -> None:
    topics = orders_on()
    with Producer(topics, "orders") as producer:
        dropped = weakref.ref(producer.send(b"value"))
        kept = producer.send(b"value")
        assert dropped() is None
        producer.flush()
    assert kept.result(0).record == 1
