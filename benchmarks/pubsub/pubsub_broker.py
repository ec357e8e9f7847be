"""A broker compared with an asyncio sink that checks the same frames, for ``bench_pubsub``. Each runs in a separate
process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.measuring import Taken, to_the_limit
from tests.support.pubsub.pubsub_brokers import listening_anywhere, message_of, write_of
from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.servers.process import free_port
from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import Body
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.format.messages import BARE_HEADER_SIZE, checksum
from tieredstore.pubsub.format.packets import Request, parse_request, request_bytes

TARGET: Final = 0.7
_REQUEST: Final = struct.Struct(">iHqB")
_ANSWER_OK: Final = struct.Struct(">iHqBHH")


class Hollow(DelegatingObjectStore):
    """A store that accepts batches without storing their bytes."""

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        if "!tieredstore" not in key and isinstance(body, bytes | bytearray | memoryview):
            with byte_view(body) as view:
                body = bytes(view[:1])
        super().put(key, body, if_absent=if_absent)


async def _sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read frames, check both checksums of each Message, and acknowledge."""
    try:
        while True:
            head = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(head))
            request = parse_request(memoryview(head + frame))
            payload: Any = request.payload
            body = memoryview(payload.data)[BARE_HEADER_SIZE + 21 :]
            if checksum(payload.data) != payload.crc or checksum(body) != int.from_bytes(payload.data[27:31]):
                raise ValueError("a frame came damaged")
            writer.write(_ANSWER_OK.pack(15, 5, request.request_id, 0, 200, 0))
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


def _serve_sink(pipe: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(_sink, "127.0.0.1", free_port(), limit=8 << 20)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, _answer_usage, pipe)
        server.close()

    asyncio.run(serve())


def _serve_broker(pipe: Connection) -> None:
    topics = topics_on(Hollow(MemoryObjectStore()), batch_ms="20")
    topics.create("orders")

    async def serve() -> None:
        broker = Broker(listening_anywhere(topics))
        await broker.start()
        pipe.send(broker.address.port)
        await asyncio.get_running_loop().run_in_executor(None, _answer_usage, pipe)
        await broker.abandon()

    asyncio.run(serve())


def _answer_usage(pipe: Connection) -> None:
    """Answer requests for the process's CPU time, until a request to end."""
    while pipe.recv():
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(used.ru_utime + used.ru_stime)


def _load(port: int, packets: list[bytes]) -> None:
    """Send all packets while reading the answers, because waiting for an answer must not block sending."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        answers = client.makefile("rb")

        def send() -> None:
            for packet in packets:
                client.sendall(packet)

        sender = threading.Thread(target=send)
        sender.start()
        for _ in packets:
            answer = answers.read(int.from_bytes(answers.read(4)))
            if (code := int.from_bytes(answer[11:13])) != 200:
                raise ValueError(f"the server answers {code}")
        sender.join()


def measure_broker(mib: int, message_kib: int, runs: int) -> dict[str, object]:
    """Compare the two by wall-clock time, and by the processor time of the server process alone."""
    context = multiprocessing.get_context("spawn")
    value = os.urandom(message_kib << 10)
    count = max(1, (mib << 10) // message_kib)
    taken: dict[str, list[Taken]] = {"broker": [], "sink": []}
    servers: dict[str, tuple[Any, Connection, int]] = {}
    kinds: dict[str, Callable[[Connection], None]] = {"broker": _serve_broker, "sink": _serve_sink}
    for name, serve in kinds.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,))
        process.start()
        servers[name] = process, ours, ours.recv()
    request_id = 0
    try:
        for turn in range(runs + 1):
            for name in ("broker", "sink") if turn % 2 else ("sink", "broker"):
                _, pipe, port = servers[name]
                packets: list[bytes] = []
                for _ in range(count):
                    request_id += 1
                    write = write_of(message_of([value], request_id))
                    packets.append(request_bytes(Request(5, request_id, write)))
                before, begin = _used(pipe), time.perf_counter()
                _load(port, packets)
                run = Taken(time.perf_counter() - begin, _used(pipe) - before)
                if turn:
                    taken[name].append(run)
    finally:
        for process, pipe, _ in servers.values():
            pipe.send(False)
            process.join(30)
            process.kill()
    rate = {name: mib * 1.048576 / statistics.median(run.seconds for run in seen) for name, seen in taken.items()}
    return {
        "message_KiB": message_kib,
        "MB_s": {name: round(number) for name, number in rate.items()},
        **to_the_limit(taken, "broker", ("sink",)),
        "target": TARGET,
    }


def _used(pipe: Connection) -> float:
    pipe.send(True)
    used: float = pipe.recv()
    return used
