"""Clients that want more of a broker than their share: memory, answers, threads, time. Others are served meanwhile."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.pubsub_brokers import PacketClient, RunningBroker, message_of, running_broker, write_of
from tests.support.pubsub_topics import topics_on, values_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pubsub.broker.authorization import Authorizer, Client
from tieredstore.pubsub.broker.connection import LEAST_PACE_S, Connection
from tieredstore.pubsub.broker.room import MESSAGE_COST
from tieredstore.pubsub.consumer import Consumer
from tieredstore.pubsub.format.notifications import Notification
from tieredstore.pubsub.format.packet_writing import request_bytes
from tieredstore.pubsub.format.packets import Code, MetadataRequest, PacketType, ReadRequest, Request
from tieredstore.pubsub.topics import Topics
from tieredstore.testing.delegating import DelegatingObjectStore

LONG_S = 120.0
MIB = 1 << 20


def fresh(**properties: str) -> Topics:
    topics = topics_on(None, **{"batch_ms": "1", **properties})
    topics.create("orders")
    return topics


def of_a_broker(topics: Topics, **settings: Any) -> Topics:
    own = topics.settings.broker.model_copy(update=settings)
    return Topics(topics.store, topics.settings.model_copy(update={"broker": own}))


def eventually(holds: Callable[[], bool], running: RunningBroker) -> None:
    """Wait until it holds, as long as it may take on a machine that does much else."""
    for _ in range(2400):
        if holds():
            return
        running.call(asyncio.sleep(0.05))
    raise AssertionError("it never came to that")


def on_loop(running: RunningBroker, ask: Callable[[], Any]) -> Any:
    async def asked() -> Any:
        return ask()

    return running.call(asked())


def only(running: RunningBroker) -> Connection:
    (connection,) = running.broker._connections
    return connection


class Broken(Authorizer):
    """One that somebody wrote in a hurry."""

    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        raise KeyError(f"{client.address} {operation} {topic}")


def test_an_authorizer_that_fails_lets_nobody_and_keeps_no_room(caplog: pytest.LogCaptureFixture) -> None:
    topics = of_a_broker(fresh(), serve_reads=True)
    with running_broker(topics, authorizer=Broken()) as running, PacketClient(running.place) as client:
        for payload in (write_of(message_of([b"v"])), ReadRequest("orders", "{}")):
            answer = client.ask(payload)
            assert (answer.code, "KeyError" in answer.error) == (Code.INTERNAL_ERROR, False)
        assert client.ask(MetadataRequest(("orders",))).code is Code.OK
        assert running.broker.room.taken == 0
    assert "KeyError" in caplog.text


def test_answers_that_nobody_reads_are_not_made() -> None:
    """A question of 15 bytes for all topics: one read of 256 KiB holds 17,000 of them, and each answer 25 KB."""
    topics = fresh()
    for number in range(200):
        topics.create(f"topic-with-a-long-name-{number:04}-{'x' * 60}")
    with running_broker(topics) as running, PacketClient(running.place) as client, PacketClient(running.place) as good:
        on_loop(running, running.broker.directory.refresh)
        (size,) = {len(request_bytes(Request(5, 0, MetadataRequest())))}
        flood = request_bytes(Request(5, 0, MetadataRequest())) * (4 * MIB // size)
        flooding = threading.Thread(target=_send_quietly, args=(client, flood), daemon=True)
        flooding.start()
        eventually(lambda: running.broker.counts.metadata_requests > 40, running)
        assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
        asked = [0, on_loop(running, lambda: running.broker.counts.metadata_requests)]
        while asked[-1] > asked[-2]:
            # As long as answers find room on their way it goes on.
            running.call(asyncio.sleep(0.3))
            asked.append(running.broker.counts.metadata_requests)
        answer = len(client.raw_answer())
        assert asked[-1] * answer < 16 * MIB, "it goes on though nobody reads"
        client.socket.shutdown(socket.SHUT_RDWR)
        flooding.join(LONG_S)


def _send_quietly(client: PacketClient, data: bytes) -> None:
    try:
        client.socket.sendall(data)
    except OSError:
        return


class Slow(DelegatingObjectStore):
    """Lookups of topics wait until they may."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.may = threading.Event()
        self.may.set()
        self.asked = 0

    def get_small(self, key: str, most: int) -> bytes | None:
        if "/topics/nobody" in key:
            self.asked += 1
            assert self.may.wait(LONG_S)
        return super().get_small(key, most)


@pytest.mark.parametrize("kind", ["write", "metadata"])
def test_a_client_that_makes_up_topics_has_few_looked_up_at_once(kind: str) -> None:
    store = Slow()
    topics = topics_on(store, batch_ms="1")
    topics.create("orders")
    with running_broker(topics) as running, PacketClient(running.place) as client, PacketClient(running.place) as good:
        assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
        store.may.clear()
        names = [f"nobody-{number}" for number in range(500)]
        payloads = [MetadataRequest((name,)) if kind == "metadata" else write_of(b"x", name) for name in names]
        client.socket.sendall(b"".join(request_bytes(Request(5, 0, payload)) for payload in payloads))
        eventually(lambda: store.asked > 0, running)
        running.call(asyncio.sleep(0.2))
        assert on_loop(running, lambda: len(running.broker._tasks)) <= 32
        assert good.ask(write_of(message_of([b"w"], 1))).code is Code.OK
        store.may.set()
        assert {client.answer().code for _ in names} == {Code.NOT_FOUND}
        assert running.broker.room.taken == 0


def test_small_messages_take_the_room_that_they_cost() -> None:
    topics = of_a_broker(fresh(batch_ms="600000", batch_messages="100000"), buffer_bytes=16 * MIB)
    one = len(request_bytes(Request(5, 0, write_of(message_of([b"v"])))))
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(10):
            client.send(write_of(message_of([b"v"], number)), number)
        eventually(lambda: running.broker.counts.message_bytes > 0 and running.broker.room.taken > 0, running)
        eventually(lambda: running.broker.room.taken == 10 * (one + MESSAGE_COST), running)
        running.drain()
        assert {client.answer().code for _ in range(10)} == {Code.OK}
    with Consumer(topics, "orders") as consumer:
        assert len(values_of(consumer, at_least=10)) == 10


@pytest.mark.parametrize("sent", [b"", b"\0\0", request_bytes(Request(5, 1, write_of(message_of([bytes(500)]))))[:-1]])
def test_who_connects_and_says_nothing_whole_is_sent_away(sent: bytes) -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as slow, PacketClient(running.place) as idle:
        assert idle.ask(MetadataRequest(("orders",))).code is Code.OK
        slow.socket.sendall(sent)
        eventually(lambda: running.broker.connections == 2, running)
        running.call(asyncio.sleep(0.1))
        now_s = running.loop.time()

        def look(later_s: float) -> None:
            def each() -> None:
                for connection in list(running.broker._connections):
                    connection.check_pace(now_s + later_s)

            on_loop(running, each)

        look(LEAST_PACE_S - 30.0)
        assert idle.ask(MetadataRequest(("orders",))).code is Code.OK
        assert running.broker.connections == 2
        look(LEAST_PACE_S + 60.0)
        assert slow.ended()
        # Who has nothing to say after a whole request may stay, for as long as it likes.
        look(100 * LEAST_PACE_S)
        assert idle.ask(write_of(message_of([b"v"]))).code is Code.OK


def has_taken(running: RunningBroker, size: int) -> bool:
    return running.broker.room.taken > size


def test_who_waits_for_room_is_not_taken_for_slow() -> None:
    topics = of_a_broker(fresh(batch_ms="600000", batch_bytes="67108864", compression="none"), buffer_bytes=16 * MIB)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(5):
            client.socket.settimeout(LONG_S)
            threading.Thread(
                target=_send_quietly,
                args=(client, request_bytes(Request(5, number, write_of(message_of([bytes(4_000_000)], number))))),
                daemon=True,
            ).start()
            eventually(partial(has_taken, running, 4_000_000 * min(number + 1, 4)), running)
        eventually(lambda: running.broker.room.waiting == 1, running)
        now_s = running.loop.time()
        on_loop(running, lambda: only(running).check_pace(now_s + 10 * LEAST_PACE_S))
        assert running.broker.connections == 1
        on_loop(running, running.broker._processors.seal_all)
        assert [client.answer().code for _ in range(4)] == [Code.OK] * 4


def test_a_read_of_more_than_a_packet_holds_is_refused() -> None:
    topics = of_a_broker(fresh(), serve_reads=True)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.ask(write_of(message_of([b"v"])))
        key = next(info.key for info in topics.store.list() if "!" not in info.key)
        largest = Notification("orders", (1 << 31) - 1 - 20, 1, key=key)
        answer = client.ask(ReadRequest("orders", largest.to_json().decode()))
        assert (answer.code, "2147483647 bytes" in answer.error) == (Code.BAD_REQUEST, True)
        assert json.loads(largest.to_json())["headerSize"] == 20
