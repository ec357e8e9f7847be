"""Batch brokers that run on a thread of the test's process, and a client that sends raw packets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from tests.support.servers.process import free_port
from tests.support.waiting import wait_until
from tieredstore.config import Settings
from tieredstore.process.futures import outcome
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, checksum, seal_message
from tieredstore.pubsub.format.packets import (
    MAX_PACKET_BYTES,
    Request,
    RequestPayload,
    Response,
    WriteRequest,
    parse_response,
    request_bytes,
)
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.settings import BatchBrokerSettings, BatchClientSettings

LONG_S = 120.0
_Answer = TypeVar("_Answer")


class RunningBroker:
    """A broker on the event loop of a separate thread."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-broker")
        self._thread.start()
        self.is_gone = False

    def begin(self) -> Self:
        self.call(self.broker.start())
        return self

    def call(self, work: Any) -> Any:
        return outcome(asyncio.run_coroutine_threadsafe(work, self.loop), LONG_S)

    def ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Call the function on the loop and return its result."""

        async def asked() -> _Answer:
            return question()

        answer: _Answer = self.call(asked())
        return answer

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until ``holds`` is true on the loop, because the broker may first have to answer other clients."""
        wait_until(lambda: self.ask(holds))

    @property
    def place(self) -> str:
        address = self.broker.address
        return f"{address.ip}:{address.port}"

    def drain(self, seconds: float = LONG_S) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.call(self.broker.drain(seconds))
            self._end()

    def kill(self) -> None:
        """Stop as by kill -9: clients see their connections end, without answers to pending requests."""
        if not self.is_gone:
            self.is_gone = True
            self.call(self.broker.abandon())
            self._end()

    def _end(self) -> None:
        async def settled() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            # Close all connections that the event loop knows, because a transport reports its opening and closing one
            # iteration later. A socket left to the garbage collector would cause a warning in an unrelated test.
            loop: Any = self.loop
            for transport in list(loop._transports.values()):
                transport.abort()
            for _ in range(100):
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)

        self.call(settled())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LONG_S)
        self.loop.close()


@contextmanager
def running_broker(topics: Topics, **given: Any) -> Generator[RunningBroker]:
    """Run a broker of these topics on any free port."""
    running = RunningBroker(Broker(listening_anywhere(topics), **given))
    try:
        yield running.begin()
    finally:
        running.kill()


def listening_anywhere(topics: Topics, host: str = "127.0.0.1", **given: Any) -> Topics:
    """Return the same topics for a broker on the loopback interface, with these broker settings."""
    own = topics.settings.section(BatchBrokerSettings).model_copy(update={"listen": (host, free_port()), **given})
    return Topics(topics.store, topics.settings.with_section(own))


def client_of(topics: Topics, *places: str, **changes: object) -> Settings:
    """Return settings of a producer that uses these brokers."""
    given = {"bootstrap": places, "linger_ms": 1, **changes}
    client = topics.settings.section(BatchClientSettings).model_copy(update=given)
    return topics.settings.with_section(client)


class PacketClient:
    """Client that sends packets, and reads answers in order."""

    def __init__(self, place: str) -> None:
        host, _, port = place.partition(":")
        self.socket = socket.create_connection((host, int(port)), LONG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, payload: RequestPayload, request_id: int = 0, version: int = 5) -> None:
        self.socket.sendall(request_bytes(Request(version, request_id, payload)))

    def answer(self) -> Response:
        return parse_response(self.raw_answer())

    def raw_answer(self) -> bytes:
        head = self._read(4)
        size = int.from_bytes(head, "big")
        assert size <= 16 * MAX_PACKET_BYTES
        return head + self._read(size)

    def ask(self, payload: RequestPayload, request_id: int = 0, version: int = 5) -> Response:
        self.send(payload, request_id, version)
        return self.answer()

    def ended(self) -> bool:
        """Wait for the broker to end the connection; return True if it does."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            part = self.socket.recv(size - len(read))
            assert part, "the broker has ended the connection"
            read += part
        return read


def message_of(
    values: list[bytes], request_id: int = 0, *, address: bytes = b"\x7f\0\0\1", compression: str = "none"
) -> bytes:
    """Encode records without keys as a Message."""
    body = b"".join(
        b"\0\x0b" + bytes(8) + b"\0" + b"\0\0" + bytes(4) + len(value).to_bytes(4, "big") + value for value in values
    )
    request = ProducerRequest(address, 1_700_000_000_000, request_id)
    return seal_message(body, len(values), request, Compression.of(compression))


def write_of(data: bytes, topic: str = "orders", *, no_acks: bool = False) -> WriteRequest:
    """Return a request that writes a Message."""
    return WriteRequest(topic, checksum(data), data, no_acks, "a-producer")
