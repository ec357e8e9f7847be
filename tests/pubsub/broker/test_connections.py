"""Connections of a broker: frames in pieces of any size, thousands of damaged packets, limits of buffers, and closing.
Good clients are served throughout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
from collections import Counter
from functools import partial
from zlib import crc32

import pytest

from tests.support.damage.damaged_packets import damaged_packet
from tests.support.pubsub.memq_batches import GOLDEN
from tests.support.pubsub.pubsub_brokers import (
    LONG_S,
    PacketClient,
    RunningBroker,
    listening_anywhere,
    message_of,
    running_broker,
    write_of,
)
from tests.support.pubsub.pubsub_topics import orders_on, read_values
from tieredstore.pubsub.broker.connection import Room, Waiter
from tieredstore.pubsub.broker.processor import StoredHeaders
from tieredstore.pubsub.format.packets import Code, MetadataRequest, Request, parse_response, request_bytes

fresh = partial(orders_on, batch_ms="20")


@pytest.mark.parametrize(
    "packet",
    [
        b"\0\0\0\x05\0\5abc",
        b"\x7f\xff\xff\xff" + bytes(20),
        b"\xff\xff\xff\xff" + bytes(20),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\x0b\0\6" + bytes(9),
        b"\0\0\0\x0b\0\5" + bytes(8) + b"\7",
        (100_000).to_bytes(4, "big") + b"\0\5" + bytes(8) + b"\1" + bytes(100),
    ],
    ids=["short", "huge", "negative", "http", "version", "type", "large metadata"],
)
def test_bytes_that_are_no_packet_end_only_their_connection(packet: bytes) -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as good:
        with PacketClient(running.place) as bad:
            bad.socket.sendall(packet)
            while not bad.ended():
                pass
        assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
        assert running.broker.room.taken == 0


def test_a_request_whose_fields_are_wrong_is_refused_and_the_next_one_is_taken() -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.socket.sendall(b"\0\0\0\x0d\0\5" + (8).to_bytes(8, "big") + b"\0\0\x7f")
        answer = client.answer()
        assert (answer.request_id, answer.code) == (8, Code.BAD_REQUEST)
        assert client.ask(write_of(message_of([b"v"]))).code is Code.OK


def test_frames_come_in_pieces_of_any_size() -> None:
    topics = fresh(compression="none")
    packets = [message_of([bytes([number]) * (70_000 * number + 1)], number) for number in range(4)]
    with running_broker(topics) as running, PacketClient(running.place) as client:
        stream = b""
        for number, data in enumerate(packets):
            head = b"\0" + b"\0\6orders" + crc32(data).to_bytes(4, "big") + len(data).to_bytes(4, "big")
            frame = b"\0\2" + number.to_bytes(8, "big") + b"\0" + head + data
            stream += len(frame).to_bytes(4, "big") + frame
        at = 0
        for size in [1, 2, 3, 5, 10, 20, 100, 1000, 65_535, 65_536, 65_537]:
            client.socket.sendall(stream[at : at + size])
            at += size
        client.socket.sendall(stream[at:])
        assert sorted(client.answer().request_id for _ in packets) == [0, 1, 2, 3]
    assert sorted(map(len, read_values(topics, 4))) == [1, 70_001, 140_001, 210_001]


def test_more_connections_than_may_be_are_closed() -> None:
    with running_broker(fresh(broker_max_connections="1")) as running, PacketClient(running.place) as first:
        assert first.ask(MetadataRequest()).code is Code.OK
        with PacketClient(running.place) as second:
            assert second.ended()
        assert first.ask(MetadataRequest()).code is Code.OK


@pytest.mark.parametrize("buffer", ["268435456", "5242880"])
def test_requests_sent_in_pieces_by_many_connections_stay_apart(buffer: str) -> None:
    """All connections share one buffer for reading, and pieces of their requests alternate."""
    topics = fresh()
    dice = random.Random(7)
    values = {
        (client, number): b"%d/%d:" % (client, number) + os.urandom(dice.choice([10, 5_000, 65_500, 65_536, 300_000]))
        for client in range(4)
        for number in range(10)
    }
    pieces: list[tuple[int, bytes]] = []
    for client in range(4):
        sent = b"".join(
            request_bytes(Request(5, number, write_of(message_of([values[client, number]], 100 * client + number))))
            for number in range(10)
        )
        while sent:
            size = dice.choice([1, 14, 4_000, 65_536, 262_144, 400_000])
            pieces.append((client, sent[:size]))
            sent = sent[size:]
    # The smaller buffer is below the minimum that settings allow, so all connections wait for room.
    with running_broker(listening_anywhere(topics, buffer_bytes=int(buffer))) as running:
        clients = [PacketClient(running.place) for _ in range(4)]
        answers: list[list[int]] = [[] for _ in clients]

        def listen(client: int) -> None:
            for _ in range(10):
                answer = clients[client].answer()
                assert answer.code is Code.OK
                answers[client].append(answer.request_id)

        listening = [threading.Thread(target=listen, args=(client,)) for client in range(4)]
        for thread in listening:
            thread.start()
        order = sorted(range(len(pieces)), key=lambda at: (pieces[at][0], at))
        turns = [[at for at in order if pieces[at][0] == client] for client in range(4)]
        while any(turns):
            turn = dice.choice([turn for turn in turns if turn])
            client, piece = pieces[turn.pop(0)]
            clients[client].socket.sendall(piece)
        for thread in listening:
            thread.join(LONG_S)
        assert [sorted(ids) for ids in answers] == [list(range(10))] * 4
        for packets in clients:
            packets.socket.close()
        assert running.broker.room.taken == 0
    assert sorted(read_values(topics, 40)) == sorted(values.values())


GOOD = b"a good one"


def originals() -> list[bytes]:
    written = request_bytes(Request(5, 7, write_of(message_of([b"some", b"records"], 7))))
    old = request_bytes(Request(2, 8, write_of(message_of([b"x" * 300], 8, compression="zstd"))))
    golden = [(GOLDEN / f"wire/{name}-request-v5.bin").read_bytes() for name in ("write", "metadata")]
    return [written, old, *golden, request_bytes(Request(5, 9, MetadataRequest()))]


def fire(running: RunningBroker, count: int, seed: int) -> Counter[str]:
    """Send each damaged packet on a connection of its own; count the outcomes."""
    source, outcomes = random.Random(seed), Counter[str]()
    for packet in (damaged_packet(source, source.choice(originals()), framed=0.8) for _ in range(count)):
        with PacketClient(running.place) as client:
            with contextlib.suppress(ConnectionError):
                client.socket.sendall(packet)
                client.socket.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := client.socket.recv(65536):
                    answer += part
        if not answer:
            outcomes["ended"] += 1
            continue
        size = 4 + int.from_bytes(answer[:4], "big")
        outcomes[parse_response(answer[:size]).code.name] += 1
    return outcomes


def shoot(count: int, seed: int) -> None:
    topics = orders_on(batch_ms="1")
    with running_broker(topics) as running, PacketClient(running.place) as good:
        outcomes = fire(running, count, seed)
        assert good.ask(write_of(message_of([GOOD]))).code.name == "OK"
        assert {"ended", "BAD_REQUEST", "OK"} <= outcomes.keys()
        running.until(lambda: not running.broker.room.taken and running.broker.connections == 1)
        running.drain()
    # All stored Messages decode: none is damaged.
    values = read_values(topics, 1)
    assert GOOD in values
    assert set(values) <= {GOOD, b"some", b"records", b"x" * 300}


def test_damaged_packets_are_refused_and_nothing_of_them_is_kept() -> None:
    shoot(150, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
def test_ten_thousand_damaged_packets_at_a_broker(seed: int) -> None:
    shoot(1000, seed)


def test_messages_that_never_come_whole_take_the_buffer_and_give_it_back() -> None:
    topics = orders_on(batch_ms="1", broker_buffer_bytes=str(16 << 20))
    head = request_bytes(Request(5, 1, write_of(bytes(4_000_000))))[:100]
    with running_broker(topics) as running:
        slow = [PacketClient(running.place) for _ in range(10)]
        for client in slow:
            client.socket.sendall(head)
        room = running.broker.room
        running.until(lambda: room.waiting == 6)
        assert room.taken <= 16 << 20
        for client in slow:
            client.socket.close()
        with PacketClient(running.place) as good:
            assert good.ask(write_of(message_of([GOOD]))).code.name == "OK"
        running.until(lambda: (room.taken, room.waiting) == (0, 0))


@pytest.mark.parametrize("how", ["drain", "abandon"])
def test_a_connection_that_is_accepted_while_the_broker_ends_is_closed(how: str) -> None:
    with running_broker(fresh()) as running:

        async def ending() -> PacketClient:
            client = PacketClient(running.place)
            await asyncio.sleep(0)  # the loop sees the connection
            await asyncio.sleep(0)  # the loop accepts it, and would set it up after the next line
            await (running.broker.abandon() if how == "abandon" else running.broker.drain(LONG_S))
            return client

        with running.call(ending()) as client:
            assert client.ended()


def test_who_waits_is_served_in_order_and_a_large_one_is_not_passed_by() -> None:
    room, served = Room(10), list[str]()
    assert room.take(8, lambda: None) is None
    assert room.take(5, lambda: served.append("large")) is not None
    assert room.take(1, lambda: served.append("small")) is not None  # there is room, but earlier waiters go first
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
        room, held, waiting, granted = Room(100), list[int](), dict[int, Waiter](), list[int]()
        for number in range(200):
            size = source.randrange(1, 101)
            action = source.random()
            if action < 0.5:
                waiter = room.take(size, partial(granted.append, number))
                if waiter is None:
                    held.append(size)
                else:
                    waiting[number] = waiter
            elif action < 0.8 and held:
                room.give_back(held.pop(source.randrange(len(held))))
            elif waiting:
                room.forget(waiting.pop(source.choice(list(waiting))))
            while granted:
                held.append(waiting.pop(granted.pop()).size)
            assert (room.taken, room.waiting) == (sum(held), len(waiting))
            assert room.taken <= 100
        for waiter in waiting.values():
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
