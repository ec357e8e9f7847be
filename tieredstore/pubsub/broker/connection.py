"""One client's connection: bytes into frames, without a copy of what is large, and never more than there is room for.

All connections of a broker read into one buffer, since the loop reads one socket at a time: frames that came whole are
taken where they lie, and what is left over is kept by the connection, as little as it is. A large frame gets a buffer
of its own size once the broker has room for all of it; until then the socket is not read, and the client waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.pubsub.errors import PacketCorruptError
from tieredstore.pubsub.format.packets import (
    MAX_PACKET_BYTES,
    REQUEST_HEAD_SIZE,
    Code,
    PacketType,
    error_response,
    request_head,
)

_logger: Final = logging.getLogger(__name__)

_SMALL_BYTES: Final = 64 << 10
_SIZE_BYTES: Final = 4
READ_BYTES: Final = 256 << 10
"""Of the buffer that connections share: what is read at once while there is room; 64 KiB when there is little."""

LEAST_PACE_S: Final = 60.0
"""How long a request may take to come whole, the first one from when the client came: whoever is slower holds memory,
or room that others wait for. It counts from the first byte, the wait for room included, but that a request has
``LEAST_PACE_AFTER_S`` from when there was room. Between two requests a client may take its time."""

LEAST_PACE_AFTER_S: Final = 5.0

_UNSENT_BYTES: Final = 1 << 20
_MOST_SLOW: Final = 16
"""Requests of one connection that wait for the store at once, but for Messages, which have the broker's room."""


class Stop(enum.Enum):
    """Why no request of a connection is read."""

    NO_ROOM = "no room"
    NOT_READ = "answers are not read"
    BEHIND = "answers wait behind a large one"
    BUSY = "enough is asked of the store"
    OTHERS = "others have their turn"
    ENDING = "ending"


_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""By which a client whose machine is gone is noticed after two minutes, where the system can be told."""


class RequestHandler(Protocol):
    """What a broker does with the frames of its connections; on the loop."""

    def admit(self, connection: Connection) -> bool:
        """A client came; False if it is to go."""
        ...

    def forget(self, connection: Connection) -> None:
        """It went."""
        ...

    def request(self, connection: Connection, frame: memoryview, held: int) -> None:
        """A whole request. ``held`` bytes of room are the handler's from now on; ``frame`` only until it returns."""
        ...


class Inlet:
    """What all connections of a broker share: who takes their requests, the room for these, and memory.

    Large frames lie in memory that is used again; ``shared``, which the loop reads one socket at a time into, has
    ``READ_BYTES``.
    """

    def __init__(self, handler: RequestHandler, room: Room, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.room = room
        self.loop = loop
        self.turns: Turns = Turns(loop)
        self.shared: memoryview[int] = memoryview(bytearray(READ_BYTES))
        self.pool: SlabPool = SlabPool()


class Answers:
    """The answers of one connection on their way out: in any order, and behind one that goes out in pieces."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport: asyncio.Transport | None = None  # while the client is there
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = loop
        self._streaming = asyncio.Lock()
        self._behind: list[bytes] = []
        self._behind_bytes = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    def send(self, packet: bytes) -> bool:
        """Send an answer, if the client is still there; False if too many wait behind one that goes out in pieces."""
        if self._streaming.locked():
            self._behind.append(packet)
            self._behind_bytes += len(packet)
            return self._behind_bytes <= _UNSENT_BYTES
        if self.transport is not None and not self.transport.is_closing():
            if not self._unsent:  # what is answered in one moment goes out together
                self._loop.call_soon(self.flush)
            self._unsent.append(packet)
            self._unsent_bytes += len(packet)
            if self._unsent_bytes > _UNSENT_BYTES:  # a client that does not read them is asked no more before the next
                self.flush()
        return True

    def flush(self) -> None:
        """Send what was answered in this moment."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self.transport is not None:
            self.transport.write(b"".join(unsent))

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Callable[[bytes], Awaitable[bool]]]:
        """Send one answer in pieces, by the function that is given: False once the client is gone."""
        async with self._streaming:
            self.flush()
            yield self._send_part
        if not self._streaming.locked():
            behind, self._behind, self._behind_bytes = self._behind, [], 0
            for packet in behind:
                self.send(packet)

    async def _send_part(self, part: bytes) -> bool:
        await self.writable.wait()
        if self.transport is not None:
            self.transport.write(part)
        return self.transport is not None


@dataclass(slots=True)
class _Arriving:
    """A large frame that comes into memory of its own, with its room."""

    memory: memoryview
    filled: int
    granted_s: float
    """When there was room for it."""


class Connection(asyncio.BufferedProtocol):
    """Reads frames; answers go out by ``send``, in any order. All of it on the loop.

    The next request of a client is in one of these states:

    ============  =========================================  ======================================================
    ``_coming``   what there is                              goes on
    ============  =========================================  ======================================================
    None          ``_left``: its beginning, or nothing       whole, and no write, or with room: the handler's, None.
                                                             A write without room: Waiter. A write of which there is
                                                             a part, with room: _Arriving
    Waiter        ``_left``, and a place in the room's line  granted: as None, with its room. Client gone: given back
    _Arriving     its room, and memory of its size           whole: the handler's, None. Client gone, or slower than
                                                             ``LEAST_PACE_S``: given back
    ============  =========================================  ======================================================

    The socket is read while ``_stops`` is empty.
    """

    def __init__(self, inlet: Inlet) -> None:
        self.address = ""
        self.principal: str | None = None
        self.expects_to_write = False
        """A Message of its was taken, and since then it was told of no other broker."""
        self._inlet = inlet
        self._answers = Answers(inlet.loop)
        self._stops: set[Stop] = set()
        self._reading = inlet.shared  # where this connection's next bytes go, behind those that are left
        self._left = b""  # what came and was not taken: the beginning of a frame, or what waits for room
        self._coming: Waiter | _Arriving | None = None
        self._began_s: float | None = inlet.loop.time()  # since when the request that comes has not come whole
        self._slow = 0  # requests that wait for the store

    @property
    def is_open(self) -> bool:
        """Whether the client is there."""
        return self._answers.transport is not None

    # --- asyncio calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        made = self._answers.transport = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(_UNSENT_BYTES)
        peer: tuple[object, ...] | None = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.principal = _principal(transport.get_extra_info("ssl_object"))
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:  # a client whose machine is gone must not be remembered for ever
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if not self._inlet.handler.admit(self):
            made.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the protocol's signature
        """It went."""
        # The transport of TLS knows this connection: what it holds is free now, and not at a collection.
        self._answers.transport = None
        self._answers.writable.set()
        self._began_s = None
        coming, self._coming = self._coming, None
        if isinstance(coming, _Arriving):
            self._inlet.room.give_back(len(coming.memory) + MESSAGE_COST)
        elif coming is not None:
            self._inlet.room.forget(coming)
        self._inlet.handler.forget(self)

    def eof_received(self) -> bool:
        """It sends no more: what it has sent is done, and its connection is closed."""
        self._answers.flush()
        return False

    def pause_writing(self) -> None:
        """It reads its answers too slowly: no more of its requests."""
        self._answers.writable.clear()
        self._stop(Stop.NOT_READ)

    def resume_writing(self) -> None:
        """It has read them."""
        self._answers.writable.set()
        self._go_on(Stop.NOT_READ)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the protocol's signature
        """Where the next bytes go."""
        if isinstance(self._coming, _Arriving):
            return self._coming.memory[self._coming.filled :]
        left, room = len(self._left), self._inlet.room
        has_room = not room.waiting and room.taken + READ_BYTES <= room.size
        stop = READ_BYTES if has_room and left < READ_BYTES // 2 else left + _SMALL_BYTES
        self._reading = self._inlet.shared if stop <= READ_BYTES else memoryview(bytearray(stop))
        self._reading[:left] = self._left
        return self._reading[left:stop]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        coming = self._coming
        if not isinstance(coming, _Arriving):
            self._take_frames(self._reading[: len(self._left) + nbytes])
            return
        coming.filled += nbytes
        if coming.filled == len(coming.memory):
            self._coming = self._began_s = None
            self._inlet.handler.request(self, coming.memory, len(coming.memory) + MESSAGE_COST)

    # --- for the handler ---

    def send(self, packet: bytes) -> None:
        """Send an answer, if the client is still there; behind one that goes out in pieces."""
        if not self._answers.send(packet):
            self._stop(Stop.BEHIND)

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Callable[[bytes], Awaitable[bool]]]:
        """Send one answer in pieces, by the function that is given: False once the client is gone. What others answer
        meanwhile waits."""
        async with self._answers.stream() as send:
            yield send
        self._go_on(Stop.BEHIND)

    def waits_for(self, task: asyncio.Task[None]) -> None:
        """A request that the store is asked for: of several no more are read until one is done."""
        self._slow += 1
        if self._slow >= _MOST_SLOW:
            self._stop(Stop.BUSY)
        task.add_done_callback(self._has_waited)

    def _has_waited(self, task: asyncio.Task[None]) -> None:
        del task
        self._slow -= 1
        self._go_on(Stop.BUSY)

    def check_pace(self, now_s: float) -> None:
        """End the connection if what has begun to come does not come whole in time; asked now and then."""
        coming = self._coming
        if self._began_s is None:
            return
        granted_s = coming.granted_s if isinstance(coming, _Arriving) else 0.0
        if Stop.BUSY in self._stops or (
            self._stops and not isinstance(coming, _Arriving) and Stop.NO_ROOM not in self._stops
        ):
            self._began_s = now_s  # it holds no room, or waits for the store
        elif Stop.NO_ROOM in self._stops:
            return
        elif now_s > max(self._began_s + LEAST_PACE_S, granted_s + LEAST_PACE_AFTER_S):
            self._refuse(f"a request did not come whole within {LEAST_PACE_S:g} s")

    def stop_reading(self) -> None:
        """Take no more requests."""
        self._stop(Stop.ENDING)

    def close(self) -> None:
        """Send what was answered, and end."""
        self._answers.flush()
        if self._answers.transport is not None:
            self._answers.transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._answers.transport is not None:
            self._answers.transport.abort()

    # --- frames ---

    def _take_frames(self, came: memoryview) -> None:
        """Of all that is there; what cannot be taken yet is left."""
        start, count = 0, 0
        while self.is_open and not self._stops and not isinstance(self._coming, _Arriving):
            taken = self._take_frame(came[start:])
            if not taken:
                break
            start, count = start + taken, count + 1
            if not isinstance(self._coming, _Arriving):
                self._began_s = None
                if count >= FRAMES_A_CONNECTION:
                    self._wait_for_turn()
        self._left = bytes(came[start:])
        if self._left and self._began_s is None:
            self._began_s = self._inlet.loop.time()

    def _wait_for_turn(self) -> None:
        if Stop.OTHERS not in self._stops:
            self._stop(Stop.OTHERS)
            self._inlet.turns.wait(self.address, partial(self._go_on, Stop.OTHERS))

    def _take_frame(self, came: memoryview) -> int:
        """Hand the next frame on, or begin a large one: so many bytes are taken. 0 if that has to wait, or nothing more
        will come."""
        available = len(came)
        size = self._frame_size(came) if available >= _SIZE_BYTES else None
        if size is None or available < REQUEST_HEAD_SIZE:
            return 0
        try:
            version, request_id, kind = request_head(came)
        except PacketCorruptError as error:
            self._refuse(str(error))
            return 0
        is_write = kind is PacketType.WRITE
        if not is_write and size > _SMALL_BYTES:
            why = f"a request of {size} bytes that is no write"
            self.send(error_response(request_id, version, kind, Code.BAD_REQUEST, why))
            self._refuse(why)
            return 0
        if available < size <= _SMALL_BYTES:
            return 0
        if self._coming is None and not self._inlet.turns.take(self.address):
            self._wait_for_turn()
            return 0
        if is_write and not self._take_room(size + MESSAGE_COST):
            return 0
        if available < size:
            self._begin_large(size, came)
            return available
        self._inlet.handler.request(self, came[:size], size + MESSAGE_COST if is_write else 0)
        return size

    def _frame_size(self, came: memoryview) -> int | None:
        """Of the frame that begins, its own four bytes included; None, and the connection ends, if it cannot be."""
        size = int.from_bytes(came[:_SIZE_BYTES], "big", signed=True)
        if REQUEST_HEAD_SIZE - _SIZE_BYTES <= size <= MAX_PACKET_BYTES:
            return size + _SIZE_BYTES
        self._refuse(f"a request says {size} bytes, and {MAX_PACKET_BYTES} may be")
        return None

    def _take_room(self, size: int) -> bool:
        if self._coming is None:
            self._coming = self._inlet.room.take(size, self._take_granted)
            if self._coming is not None:
                self._stop(Stop.NO_ROOM)
                return False
        self._coming = None  # granted while it waited
        return True

    def _begin_large(self, size: int, came: memoryview) -> None:
        loop = self._inlet.loop
        memory = memoryview(self._inlet.pool.slab(size))[:size]
        memory[: len(came)] = came
        now_s = loop.time()
        self._coming = _Arriving(memory, len(came), now_s)
        if self._began_s is None:
            self._began_s = now_s
        elif self._began_s + LEAST_PACE_S < now_s + LEAST_PACE_AFTER_S:  # others wait behind it
            loop.call_later(LEAST_PACE_AFTER_S + 0.001, lambda: self.check_pace(loop.time()))

    def _take_granted(self) -> None:
        # Not here: others that wait for room are served in the same moment.
        self._inlet.loop.call_soon(self._go_on, Stop.NO_ROOM)

    def _refuse(self, why: str) -> None:
        """What follows cannot be told apart: the connection ends."""
        _logger.info("connection of %s ends: %s", self.address, why)
        self._stop(Stop.ENDING)
        self.close()

    def _stop(self, reason: Stop) -> None:
        if not self._stops and self._answers.transport is not None:
            self._answers.transport.pause_reading()
        self._stops.add(reason)

    def _go_on(self, reason: Stop) -> None:
        self._stops.discard(reason)
        if not self._stops and self._answers.transport is not None:
            self._answers.transport.resume_reading()
            if not isinstance(self._coming, _Arriving):
                self._take_frames(memoryview(self._left))


def _principal(tls: ssl.SSLObject | None) -> str | None:
    """The subject of the client's certificate, as ``CN=…,O=…``; None without one."""
    certificate = None if tls is None else tls.getpeercert()
    if not certificate:
        return None
    pairs = [
        pair
        for names in cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
        for pair in names
    ]
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
    return ",".join(f"{short.get(name, name)}={value}" for name, value in reversed(pairs))


MESSAGE_COST: Final = 1024
"""What a Message takes beside its bytes while it is held: who waits for it, what it is called, where it goes."""


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody for whom there was no room; ``granted`` is called once, when the bytes are taken for it."""

    size: int
    granted: Callable[[], None]
    is_granted: bool = False
    is_gone: bool = False


class Room:
    """Used on the broker's loop alone. Who waits is served in order, so that a large Message comes too.

    A Message takes all of its bytes at once, before the first of them is read: two that have a half each would wait
    for each other.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._waiting: deque[Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> Waiter | None:
        """Take ``size`` bytes: at once (None), or when there is room, which ``granted`` tells."""
        if not self._waiting and self.taken + size <= self.size:
            self.taken += size
            return None
        waiter = Waiter(size, granted)
        self._waiting.append(waiter)
        return waiter

    def give_back(self, size: int) -> None:
        """So many bytes are free again."""
        self.taken -= size
        self._serve()

    def forget(self, waiter: Waiter) -> None:
        """It waits no more; what it was given is free again."""
        waiter.is_gone = True
        if waiter.is_granted:
            self.taken -= waiter.size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.is_gone:
                if self.taken + waiter.size > self.size:
                    return
                self.taken += waiter.size
            self._waiting.popleft()
            if not waiter.is_gone:
                waiter.is_granted = True
                waiter.granted()


FRAMES_AN_ADDRESS: Final = 256
"""In one turn of the loop."""

FRAMES_A_CONNECTION: Final = 64
"""Before others of its address have their turn."""


class Turns:
    """Used on the broker's loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def take(self, address: str) -> bool:
        """Whether a frame of this address may be taken in this turn."""
        if not self._taken:
            self._loop.call_soon(self._begin)
        if self._taken[address] >= FRAMES_AN_ADDRESS:
            return False
        self._taken[address] += 1
        return True

    def wait(self, address: str, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called in a later turn, behind those of this address that wait already."""
        if not self._taken:
            self._loop.call_soon(self._begin)
            self._taken[""] += 1
        self._waiting.setdefault(address, deque()).append(go_on)

    def _begin(self) -> None:
        """A turn begins."""
        self._taken.clear()
        for address in list(self._waiting):
            waiting = self._waiting[address]
            for _ in range(len(waiting)):
                if self._taken[address] >= FRAMES_AN_ADDRESS:
                    break
                waiting.popleft()()
            if not waiting:
                del self._waiting[address]
        if self._waiting and not self._taken.total():
            self._loop.call_soon(self._begin)
