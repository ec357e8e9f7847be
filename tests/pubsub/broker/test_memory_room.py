"""The bytes that a broker may hold: in order, all at once, and none forgotten."""

from __future__ import annotations

import random

from tieredstore.pubsub.broker.connection import Room, Waiter
from tieredstore.pubsub.broker.processor import StoredHeaders


def test_who_waits_is_served_in_order_and_a_large_one_is_not_passed_by() -> None:
    room, served = Room(10), list[str]()
    assert room.take(8, lambda: None) is None
    assert room.take(5, lambda: served.append("large")) is not None
    assert room.take(1, lambda: served.append("small")) is not None  # there is room, and others were first
    room.give_back(2)
    assert served == []
    room.give_back(1)
    assert (served, room.taken) == (["large"], 10)
    room.give_back(5)
    assert (served, room.taken, room.waiting) == (["large", "small"], 6, 0)


def test_one_that_is_gone_gives_back_what_it_was_granted() -> None:
    room = Room(10)
    room.take(10, lambda: None)
    first, second = room.take(4, lambda: None), room.take(4, lambda: None)
    assert first is not None
    assert second is not None
    room.forget(first)
    room.give_back(10)
    assert room.taken == 4
    room.forget(second)
    assert (room.taken, room.waiting) == (0, 0)


def test_whatever_comes_and_goes_the_room_is_never_over_full_and_empty_in_the_end() -> None:
    source = random.Random(7)
    for _ in range(50):
        room, held, waiting = Room(100), list[int](), list[Waiter]()
        for _ in range(200):
            size = source.randrange(1, 101)
            action = source.random()
            if action < 0.5:
                waiter = room.take(size, lambda: None)
                if waiter is None:
                    held.append(size)
                else:
                    waiting.append(waiter)
            elif action < 0.8 and held:
                room.give_back(held.pop(source.randrange(len(held))))
            elif waiting:
                room.forget(waiting.pop(source.randrange(len(waiting))))
            held += [waiter.size for waiter in waiting if waiter.is_granted]
            waiting = [waiter for waiter in waiting if not waiter.is_granted]
            assert room.taken == sum(held) <= 100
        for waiter in waiting:
            room.forget(waiter)
        for size in held:
            room.give_back(size)
        assert (room.taken, room.waiting) == (0, 0)


def test_seen_messages_are_forgotten_by_time_and_by_number() -> None:
    now = 0.0
    seen = StoredHeaders(window_s=10, most=3, monotonic=lambda: now)
    for name in (b"a", b"b", b"c", b"d"):
        seen.add(name)
    assert [name in seen for name in (b"a", b"b", b"c", b"d")] == [False, True, True, True]
    now = 9.0
    seen.add(b"b")
    now = 12.0
    assert (b"c" in seen, b"b" in seen) == (False, True)
    seen.add(b"e")
    assert len(seen) == 2
