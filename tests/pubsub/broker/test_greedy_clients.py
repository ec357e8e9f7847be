"""Clients that take more than their share of a broker's memory, threads or time. Other clients are still served."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.pubsub.pubsub_brokers import PacketClient, RunningBroker, message_of, running_broker, write_of
from tests.support.pubsub.pubsub_topics import orders_on, read_values
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pubsub.broker.authorization import Authorizer, Client
from tieredstore.pubsub.broker.connection import (
    FRAMES_A_CONNECTION,
    FRAMES_AN_ADDRESS,
    LEAST_PACE_S,
    MESSAGE_COST,
    Connection,
    Inlet,
    Room,
    Stop,
    Turns,
    _Arriving,
)
from tieredstore.pubsub.format.notifications import Notification
from tieredstore.pubsub.format.packets import Code, MetadataRequest, PacketType, ReadRequest, Request, request_bytes

LONG_S = 120.0
MIB = 1 << 20


fresh = partial(orders_on, batch_ms="1")


def only(running: RunningBroker) -> Connection:
    (connection,) = running.broker._connections
    return connection


def has_stopped(running: RunningBroker, reason: Stop) -> bool:
    """Return True if the broker reads no requests of a connection for this reason."""
    return any(reason in connection._stops for connection in running.broker._connections)


class Broken(Authorizer):
    """An authorizer with a bug."""

    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        raise KeyError(f"{client.address} {operation} {topic}")


def test_an_authorizer_that_fails_lets_nobody_and_keeps_no_room(caplog: pytest.LogCaptureFixture) -> None:
    topics = fresh(broker_serve_reads="true")
    with running_broker(topics, authorizer=Broken()) as running, PacketClient(running.place) as client:
        for payload in (write_of(message_of([b"v"])), ReadRequest("orders", "{}")):
            answer = client.ask(payload)
            assert (answer.code, "KeyError" in answer.error) == (Code.INTERNAL_ERROR, False)
        assert client.ask(MetadataRequest(("orders",))).code is Code.OK
        assert running.broker.room.taken == 0
    assert "KeyError" in caplog.text


def test_answers_that_nobody_reads_are_not_made() -> None:
    """A request of 15 bytes for all topics has an answer of 25 KB, and one read of 256 KiB holds 17,000 requests."""
    topics = fresh()
    for number in range(200):
        topics.create(f"topic-with-a-long-name-{number:04}-{'x' * 60}")
    with running_broker(topics) as running, PacketClient(running.place) as client, PacketClient(running.place) as good:
        running.ask(running.broker.directory.refresh)
        (size,) = {len(request_bytes(Request(5, 0, MetadataRequest())))}
        flood = request_bytes(Request(5, 0, MetadataRequest())) * (4 * MIB // size)
        flooding = threading.Thread(target=_send_quietly, args=(client, flood), daemon=True)
        flooding.start()
        running.until(lambda: running.broker.counts.metadata_requests > 40)
        assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
        # The broker goes on answering while the connection's output buffer has room.
        running.until(lambda: has_stopped(running, Stop.NOT_READ))
        asked = running.ask(lambda: running.broker.counts.metadata_requests)
        assert asked * len(client.raw_answer()) < 16 * MIB, "it goes on though nobody reads"
        client.socket.shutdown(socket.SHUT_RDWR)
        flooding.join(LONG_S)


def _send_quietly(client: PacketClient, data: bytes) -> None:
    try:
        client.socket.sendall(data)
    except OSError:
        return


@pytest.mark.parametrize("kind", ["write", "metadata"])
def test_a_client_that_makes_up_topics_has_few_looked_up_at_once(kind: str) -> None:
    may, store = threading.Event(), ScriptedStore(MemoryObjectStore())
    store.on("get", "*/topics/nobody*", lambda _: may.wait(LONG_S))
    topics = orders_on(store, batch_ms="1")
    with running_broker(topics) as running, PacketClient(running.place) as client, PacketClient(running.place) as good:
        assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
        names = [f"nobody-{number}" for number in range(500)]
        payloads = [MetadataRequest((name,)) if kind == "metadata" else write_of(b"x", name) for name in names]
        client.socket.sendall(b"".join(request_bytes(Request(5, 0, payload)) for payload in payloads))
        running.until(lambda: any("nobody" in key for key in store.keys_of("get")))
        running.until(lambda: has_stopped(running, Stop.BUSY))
        assert running.ask(lambda: len(running.broker._tasks)) <= 32
        assert good.ask(write_of(message_of([b"w"], 1))).code is Code.OK
        may.set()
        assert {client.answer().code for _ in names} == {Code.NOT_FOUND}
        assert running.broker.room.taken == 0


def test_small_messages_take_the_room_that_they_cost() -> None:
    topics = fresh(batch_ms="600000", batch_messages="100000", broker_buffer_bytes=str(16 * MIB))
    one = len(request_bytes(Request(5, 0, write_of(message_of([b"v"])))))
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(10):
            client.send(write_of(message_of([b"v"], number)), number)
        running.until(lambda: running.broker.counts.message_bytes > 0 and running.broker.room.taken > 0)
        running.until(lambda: running.broker.room.taken == 10 * (one + MESSAGE_COST))
        running.drain()
        assert {client.answer().code for _ in range(10)} == {Code.OK}
    assert len(read_values(topics, 10)) == 10


@pytest.mark.parametrize("sent", [b"", b"\0\0", request_bytes(Request(5, 1, write_of(message_of([bytes(500)]))))[:-1]])
def test_who_connects_and_says_nothing_whole_is_sent_away(sent: bytes) -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as slow, PacketClient(running.place) as idle:
        assert idle.ask(MetadataRequest(("orders",))).code is Code.OK
        slow.socket.sendall(sent)
        running.until(lambda: running.broker.connections == 2)
        running.until(lambda: any(connection._left == sent for connection in running.broker._connections))
        now_s = running.loop.time()

        def look(later_s: float) -> None:
            def each() -> None:
                for connection in list(running.broker._connections):
                    connection.check_pace(now_s + later_s)

            running.ask(each)

        look(LEAST_PACE_S - 30.0)
        assert idle.ask(MetadataRequest(("orders",))).code is Code.OK
        assert running.broker.connections == 2
        look(LEAST_PACE_S + 60.0)
        assert slow.ended()
        # Between whole requests a client may stay idle for any time.
        look(100 * LEAST_PACE_S)
        assert idle.ask(write_of(message_of([b"v"]))).code is Code.OK


FLOOD = b"".join(request_bytes(Request(5, number, MetadataRequest(()))) for number in range(10_000))
"""Requests of 15 bytes for the metadata of all topics."""


def test_small_requests_of_many_clients_do_not_keep_the_loop_from_others() -> None:
    """The clients disconnect after sending. The test counts turns of the event loop, not their duration."""
    topics = fresh()
    turns = 0
    with running_broker(topics) as running:
        with PacketClient(running.place) as good:
            assert good.ask(MetadataRequest(("orders",))).code is Code.OK
            taken: list[int] = []

            def turn() -> None:
                nonlocal turns
                turns += 1
                taken.append(running.broker.counts.metadata_requests)
                if not is_over.is_set():
                    running.loop.call_soon(turn)

            is_over = threading.Event()
            floods = [PacketClient(running.place) for _ in range(20)]
            running.loop.call_soon_threadsafe(turn)
            threads = [threading.Thread(target=flood, args=(client,)) for client in floods]
            for thread in threads:
                thread.start()
            running.until(lambda: running.broker.counts.metadata_requests > 1000)
            before = turns
            assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
            assert turns > before
            for thread in threads:
                thread.join(LONG_S)
            running.until(lambda: running.broker.connections == 1)
            is_over.set()
            running.ask(lambda: None)
        most = max(later - sooner for sooner, later in itertools.pairwise(taken))
        assert 0 < most <= 2 * FRAMES_AN_ADDRESS
        assert taken[-1] > 1000


def flood(client: PacketClient) -> None:
    """Send the flood, then disconnect."""
    with contextlib.suppress(OSError):
        client.socket.settimeout(1.0)
        client.socket.sendall(FLOOD)
    client.socket.close()


def test_connections_of_one_address_take_turns_and_another_address_has_its_own() -> None:
    async def play() -> list[str]:
        turns, served = Turns(asyncio.get_running_loop()), list[str]()

        def take_some(address: str, name: str, left: int) -> None:
            for number in range(left):
                if number == FRAMES_A_CONNECTION or not turns.take(address):
                    turns.wait(address, partial(take_some, address, name, left - number))
                    return
            served.append(name)

        for number in range(50):
            take_some("greedy", f"greedy {number}", 10 * FRAMES_A_CONNECTION)
        take_some("greedy", "small", 1)
        take_some("other", "other", 2 * FRAMES_A_CONNECTION)
        for _ in range(1000):
            await asyncio.sleep(0)
        return served

    served = asyncio.run(play())
    assert served[:2] == ["other", "small"]
    assert sorted(served[2:]) == sorted(f"greedy {number}" for number in range(50))


class SteppedLoop:
    """Event loop with only the methods that a connection uses, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.later.append((self.now_s, partial(call, *args)))

    def call_later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self.later.append((self.now_s + seconds, partial(call, *args)))

    def run(self) -> None:
        while due := [each for each in self.later if each[0] <= self.now_s]:
            self.later = [each for each in self.later if each not in due]
            for _, call in due:
                call()


class Wire:
    """Transport of a connection that is closed immediately."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.connection_made(self)  # type: ignore[arg-type]

    def close(self) -> None:
        if self.connection.is_open:
            self.connection.connection_lost(None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def feed(self, data: bytes) -> None:
        for start in range(0, len(data), 60_000):
            piece = data[start : start + 60_000]
            self.connection.get_buffer(-1)[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))


class Taker:
    """Broker that counts the complete requests of its connections."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.taken = 0

    def admit(self, connection: Connection) -> bool:
        return bool(connection)

    def forget(self, connection: Connection) -> None:
        assert not connection.is_open

    def request(self, connection: Connection, frame: memoryview, held: int) -> None:
        assert connection.is_open
        assert len(frame) < held
        self.taken += 1
        self.room.give_back(held)


def test_slow_senders_hold_the_room_for_a_minute_and_not_one_after_the_other() -> None:
    """Each slow client sends only the beginning of a large Message. The buffer has room for three, and an honest client
    waits behind all of them. A slow request may take a minute, which includes its wait for room. So a slow client that
    gets room late is soon disconnected. The honest client is served, although it has waited for more than a minute.
    """
    loop, room = SteppedLoop(), Room(16 * MIB)
    broker = Taker(room)
    large = request_bytes(Request(5, 1, write_of(message_of([bytes(4 * MIB - 200)]))))

    inlet = Inlet(broker, loop)  # type: ignore[arg-type]
    slow = [Wire(Connection(inlet)) for _ in range(60)]
    for each in slow:
        each.feed(large[:100])
    honest = Wire(Connection(inlet))
    honest.feed(large[:100])
    assert room.waiting == 58
    while not broker.taken:
        loop.now_s += 1
        loop.run()
        if loop.now_s % 5 == 0:
            for each in (*slow, honest):
                each.connection.check_pace(loop.now_s)
        if isinstance(honest.connection._coming, _Arriving):
            honest.feed(large[100:])
        assert honest.connection.is_open
        assert loop.now_s < 200, "each slow client in turn had a whole minute"
    loop.run()
    assert not any(each.connection.is_open for each in slow[:-3])
    assert loop.now_s > LEAST_PACE_S


def has_taken(running: RunningBroker, size: int) -> bool:
    return running.broker.counts.message_bytes > size


def test_who_waits_for_room_is_not_taken_for_slow_and_has_open_batches_written() -> None:
    may = threading.Event()
    store = ScriptedStore(MemoryObjectStore()).on("put", "??/*", lambda _: may.wait(LONG_S))
    limits = {"batch_ms": "600000", "batch_bytes": "67108864", "broker_buffer_bytes": str(16 * MIB)}
    topics = fresh(store, 1, compression="none", **limits)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(5):
            client.socket.settimeout(LONG_S)
            threading.Thread(
                target=_send_quietly,
                args=(client, request_bytes(Request(5, number, write_of(message_of([bytes(4_000_000)], number))))),
                daemon=True,
            ).start()
            running.until(partial(has_taken, running, 4_000_000 * min(number + 1, 4)))
        running.until(lambda: running.broker.room.waiting == 1)
        now_s = running.loop.time()
        running.ask(lambda: only(running).check_pace(now_s + 10 * LEAST_PACE_S))
        assert running.broker.connections == 1
        may.set()
        assert [client.answer().code for _ in range(4)] == [Code.OK] * 4


def test_a_request_that_needs_more_room_than_a_write_frees_has_the_other_batches_written() -> None:
    may = threading.Event()
    store = ScriptedStore(MemoryObjectStore()).on("put", "??/*", lambda _: may.wait(LONG_S))
    limits = {"batch_ms": "600000", "batch_bytes": "4200000", "broker_buffer_bytes": str(16 * MIB)}
    topics = fresh(store, 1, compression="none", **limits)
    large = 4_190_000  # does not fit a batch together with the first Message
    messages = [("orders", 20_000), ("orders", large), ("a", large), ("b", large), ("c", 100_000), ("orders", large)]
    for name in "abc":
        topics.create(name)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.socket.settimeout(LONG_S)
        frames = [
            request_bytes(Request(5, number, write_of(message_of([bytes(size)], number), topic)))
            for number, (topic, size) in enumerate(messages)
        ]
        threading.Thread(target=_send_quietly, args=(client, b"".join(frames)), daemon=True).start()
        running.until(partial(has_taken, running, sum(size for _, size in messages[:5])))
        running.until(lambda: running.broker.room.waiting == 1)
        may.set()
        assert [client.answer().code for _ in range(5)] == [Code.OK] * 5


def test_a_read_of_more_than_a_packet_holds_is_refused() -> None:
    topics = fresh(broker_serve_reads="true")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.ask(write_of(message_of([b"v"])))
        key = next(info.key for info in topics.store.list() if "!" not in info.key)
        largest = Notification("orders", (1 << 31) - 1 - 20, 1, key=key)
        answer = client.ask(ReadRequest("orders", largest.to_json().decode()))
        assert (answer.code, "2147483647 bytes" in answer.error) == (Code.BAD_REQUEST, True)
        assert json.loads(largest.to_json())["headerSize"] == 20
