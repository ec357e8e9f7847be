"""Brokers under fire: damaged packets by the thousand, clients that mean harm; good ones are served all the while."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter

import pytest

from tests.support.damage.damaged_packets import damaged_packet
from tests.support.pubsub.memq_batches import GOLDEN
from tests.support.pubsub.pubsub_brokers import PacketClient, RunningBroker, message_of, running_broker, write_of
from tests.support.pubsub.pubsub_topics import orders_on, read_values
from tieredstore.pubsub.format.packets import MetadataRequest, Request, parse_response, request_bytes

GOOD = b"a good one"


def originals() -> list[bytes]:
    written = request_bytes(Request(5, 7, write_of(message_of([b"some", b"records"], 7))))
    old = request_bytes(Request(2, 8, write_of(message_of([b"x" * 300], 8, compression="zstd"))))
    golden = [(GOLDEN / f"wire/{name}-request-v5.bin").read_bytes() for name in ("write", "metadata")]
    return [written, old, *golden, request_bytes(Request(5, 9, MetadataRequest()))]


def fire(running: RunningBroker, count: int, seed: int) -> Counter[str]:
    """Each damaged packet on a connection of its own; what became of it."""
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
    # What was stored decodes: none of it is damaged.
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
