"""Connections of a broker: frames in pieces of any size, many clients at once, and what ends a connection."""

from __future__ import annotations

import os
import random
import threading
from functools import partial
from zlib import crc32

import pytest

from tests.support.pubsub.pubsub_brokers import (
    LONG_S,
    PacketClient,
    listening_anywhere,
    message_of,
    running_broker,
    write_of,
)
from tests.support.pubsub.pubsub_topics import orders_on, read_values
from tieredstore.pubsub.format.packets import Code, MetadataRequest, Request, request_bytes

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
def test_what_is_no_packet_ends_its_connection_alone(packet: bytes) -> None:
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
def test_what_many_connections_send_in_pieces_stays_apart(buffer: str) -> None:
    """They read into one buffer: of each a piece comes, and is followed by a piece of another."""
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
    # The second is less than the settings allow: all wait for room.
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
