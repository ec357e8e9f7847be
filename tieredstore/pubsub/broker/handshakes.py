"""TLS handshakes of clients. A handshake begins after the client's first byte. A few handshakes run at once, within the
broker's buffer limit.

From its first moment, a TLS connection takes a hundred times the memory of a socket. A client is therefore only a
socket until its first byte arrives. Then the client waits for its turn, and for memory in the broker's buffer.

This module is separate from ``broker``, because ``broker`` sees a client only after its handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from tieredstore.pubsub.broker.connection import Connection, Room
from tieredstore.pubsub.counts import BrokerCounts

_logger: Final = logging.getLogger(__name__)

TLS_COST: Final = 288 << 10
"""Memory of a TLS connection in bytes: asyncio's read buffer of 256 KiB, and OpenSSL's state. Measured: 276 KiB."""

HANDSHAKES: Final = 32
HANDSHAKES_AN_ADDRESS: Final = 16
WAITING: Final = 1024
WAITING_AN_ADDRESS: Final = 512
"""Limits on sockets that have sent nothing or wait for their TLS handshake: in total, and per client address. Beyond a
limit, the oldest socket that has sent nothing is closed. A TLS client sends the first byte, so a socket that stays
silent is probably not one of a TLS client.
"""

WAIT_S: Final = 10.0
"""Longest time in seconds from a client's connection to the beginning of its TLS handshake."""

HANDSHAKE_S: Final = 10.0
"""Timeout in seconds, applied first to a client's wait for memory, and then to its TLS handshake."""


@dataclass(slots=True, eq=False)
class _Arrival:
    """A client before its handshake."""

    socket: socket.socket
    address: str
    deadline: asyncio.TimerHandle | None = None
    is_handed_on: bool = False  # True once a transport owns the socket and will close it


class Handshakes:
    """The clients before and during their TLS handshake. Used on the broker's loop only."""

    def __init__(
        self, tls: ssl.SSLContext, room: Room, counts: BrokerCounts, connect: Callable[[], Connection]
    ) -> None:
        self._tls = tls
        self._room = room
        self._connect = connect
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._silent: dict[_Arrival, None] = {}  # oldest first
        self._spoken: dict[str, deque[_Arrival]] = {}  # by client address; each queue is in order of arrival
        self._waiting: Counter[str] = Counter()
        self._shaking: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holding: set[Connection] = set()
        self._is_closed = False
        self._has_warned = False

    @property
    def waiting(self) -> int:
        """Number of sockets that have sent nothing or wait for their handshake."""
        return self._waiting.total()

    @property
    def in_progress(self) -> int:
        """Number of running handshakes."""
        return len(self._tasks)

    def accept(self) -> asyncio.BaseProtocol:
        """Return a protocol for the plain socket of a new client."""
        return _Door(self._take_client)

    def release(self, connection: Connection) -> None:
        """Free the memory that an ended connection had reserved in the broker's buffer, if any."""
        if connection in self._holding:
            self._holding.discard(connection)
            self._room.give_back(TLS_COST)

    def close(self) -> None:
        """Disconnect all clients without a finished handshake."""
        self._is_closed = True
        for arrival in [*self._silent, *(each for waiting in self._spoken.values() for each in waiting)]:
            self._dismiss(arrival)
        for task in self._tasks:
            task.cancel()

    # --- before a handshake ---

    def _take_client(self, client: socket.socket, address: str) -> None:
        if self._is_closed:
            client.close()
            return
        arrival = _Arrival(client, address)
        is_full_here = self._waiting[address] >= WAITING_AN_ADDRESS
        if is_full_here or self.waiting >= WAITING:
            self._counts.refused_connections += 1
            oldest = next((each for each in self._silent if not is_full_here or each.address == address), None)
            if oldest is None:
                client.close()
                return
            self._dismiss(oldest)
        self._waiting[address] += 1
        self._silent[arrival] = None
        arrival.deadline = self._loop.call_later(WAIT_S, self._dismiss, arrival)
        self._loop.add_reader(client, self._speak, arrival)

    def _speak(self, arrival: _Arrival) -> None:
        """Queue a client after its first byte, or drop a client that has disconnected."""
        try:
            is_there = bool(arrival.socket.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            is_there = False
        if not is_there:
            self._dismiss(arrival)
            return
        self._loop.remove_reader(arrival.socket)
        del self._silent[arrival]
        self._spoken.setdefault(arrival.address, deque()).append(arrival)
        self._begin()

    def _dismiss(self, arrival: _Arrival) -> None:
        if arrival in self._silent:
            self._loop.remove_reader(arrival.socket)
            del self._silent[arrival]
        else:
            self._spoken[arrival.address].remove(arrival)
            if not self._spoken[arrival.address]:
                del self._spoken[arrival.address]
        self._leave(arrival)
        arrival.socket.close()

    def _leave(self, arrival: _Arrival) -> None:
        """Remove a client from the waiting clients."""
        if arrival.deadline is not None:
            arrival.deadline.cancel()
        _decrease(self._waiting, arrival.address)

    # --- handshakes ---

    def _begin(self) -> None:
        """Begin handshakes up to the limit, alternating between addresses."""
        while len(self._tasks) < HANDSHAKES and not self._is_closed:
            address = next((each for each in self._spoken if self._shaking[each] < HANDSHAKES_AN_ADDRESS), None)
            if address is None:
                return
            waiting = self._spoken.pop(address)
            arrival = waiting.popleft()
            if waiting:
                self._spoken[address] = waiting  # moves this address behind all other addresses
            self._leave(arrival)
            self._shaking[address] += 1
            task = self._loop.create_task(self._shake_hands(arrival))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, arrival))

    def _end(self, arrival: _Arrival, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        _decrease(self._shaking, arrival.address)
        if not arrival.is_handed_on:
            arrival.socket.close()
        self._begin()

    async def _shake_hands(self, arrival: _Arrival) -> None:
        connection = self._connect()
        if not await self._take_memory(connection):
            self._counts.refused_connections += 1
            return
        arrival.is_handed_on = True
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, arrival.socket, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:
            _logger.info("connection of %s ends: its TLS handshake failed: %s", arrival.address, error)
            # Break a reference cycle. The error's frames hold the TLS objects and the future, and the future holds the
            # error.
            error.with_traceback(None)
        finally:
            # Release the connection here, because the broker gets no callback for a connection that ended during the
            # handshake.
            if not connection.is_open:
                self.release(connection)

    async def _take_memory(self, connection: Connection) -> bool:
        """Reserve memory for a TLS connection, waiting if necessary. Return False if all TLS connections together would
        then hold over half of the broker's buffer.
        """
        if (len(self._holding) + 1) * TLS_COST > self._room.size // 2:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "broker: %d TLS connections hold half of the buffer, so further connections are refused: raise "
                    "pubsub.broker.buffer.bytes",
                    len(self._holding),
                )
            return False
        is_granted = asyncio.Event()
        waiter = self._room.take(TLS_COST, is_granted.set)
        self._holding.add(connection)
        if waiter is None:
            return True
        has_room = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDSHAKE_S):
                    await is_granted.wait()
                    has_room = True
        finally:
            if not has_room:
                self._holding.discard(connection)
                self._room.forget(waiter)
        return has_room


class _Door(asyncio.Protocol):
    """Takes a client's socket from the asyncio transport that accepted it, before this transport reads from the
    socket."""

    def __init__(self, take_client: Callable[[socket.socket, str], None]) -> None:
        self._take_client = take_client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer: tuple[str, int] | None = transport.get_extra_info("peername")
        accepted: socket.socket = transport.get_extra_info("socket")
        try:
            client = accepted.dup()
        except OSError as error:
            _logger.warning("cannot accept a client: %s", error.strerror or error)
        else:
            self._take_client(client, str(peer[0]) if peer else "")
        cast("asyncio.Transport", transport).abort()


def _decrease(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
