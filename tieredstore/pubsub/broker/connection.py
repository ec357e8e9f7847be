"""One client's connection: splits received bytes into frames, without copying large frames or exceeding the broker's
buffer.

The event loop reads one socket at a time, so all connections of a broker read into one shared memory. A connection
handles complete frames in that memory, and copies only the incomplete frame at the end.

A large frame gets separate memory once its whole size is free in the broker's buffer (``pubsub.broker.buffer.bytes``).
Until then the connection does not read the socket, so the client waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import ssl
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.pubsub.errors import PacketCorruptError
from tieredstore.pubsub.format.packets import (
    MAX_PACKET_BYTES,
    REQUEST_HEAD_SIZE,
    Code,
    PacketType,
    Response,
    request_head,
    response_bytes,
)

if TYPE_CHECKING:
    from tieredstore.pubsub.broker.broker import Broker

_logger: Final = logging.getLogger(__name__)

_SMALL_BYTES: Final = 64 << 10
_SIZE_BYTES: Final = 4
READ_BYTES: Final = 256 << 10
"""Size of the memory that all connections read into. While fewer bytes are free in the broker's buffer, a read takes
at most 64 KiB.
"""

LEAST_PACE_S: Final = 60.0
"""The longest time in seconds for a request to arrive, because a slower client would hold memory that others wait for.

``LEAST_PACE_S`` counts from the request's first byte. For the first request, it counts from the moment of connecting.
``LEAST_PACE_S`` includes the wait for free memory in the broker's buffer.

Once its memory is reserved, a request has at least ``LEAST_PACE_AFTER_S`` left. Idle time between requests is
unlimited.
"""

LEAST_PACE_AFTER_S: Final = 5.0

_UNSENT_BYTES: Final = 1 << 20
_MOST_SLOW: Final = 16
"""Maximum number of requests of one connection that wait for the store at once. Writes do not count, since the broker's
buffer limits them.
"""


class Stop(enum.Enum):
    """Reasons why a connection temporarily reads no requests."""

    NO_ROOM = "no room"
    NOT_READ = "the client does not read its answers"
    BEHIND = "answers wait behind a streamed answer"
    BUSY = "too many requests wait for the store"
    OTHERS = "other connections have their turn"
    ENDING = "ending"


_PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Keep-alive settings that detect a vanished machine within two minutes, on systems that support them."""


class Inlet:
    """Resources that all connections of a broker share: the broker, its limit on buffered bytes, and memory.

    ``pool`` recycles the memory of large frames. All connections read into ``shared``, a memory of ``READ_BYTES``
    bytes, one socket at a time.
    """

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.room: Room = broker.room
        self.loop = loop
        self.turns: Turns = Turns(loop)
        self.shared: memoryview[int] = memoryview(bytearray(READ_BYTES))
        self.pool: SlabPool = SlabPool()


class Answers:
    """Outgoing answers of one connection, in any order. While a streamed answer is sent, other answers are queued."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport: asyncio.Transport | None = None  # None unless the client is connected
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = loop
        self._streaming = asyncio.Lock()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    def send(self, packet: bytes) -> bool:
        """Send an answer if the client is connected. Return False if too many answers queue behind a streamed
        answer."""
        if self.transport is None or self.transport.is_closing():
            return True
        if not self._unsent:  # one write sends all answers of a loop iteration
            self._loop.call_soon(self.flush)
        self._unsent.append(packet)
        self._unsent_bytes += len(packet)
        if self._unsent_bytes <= _UNSENT_BYTES:
            return True
        # Write now, so that asyncio calls ``pause_writing`` if the client does not read its answers. The broker then
        # reads no more requests from this client.
        self.flush()
        return not self._streaming.locked()

    def flush(self) -> None:
        """Write the answers that have gathered, unless a streamed answer is being sent."""
        if not self._streaming.locked():
            self._write_unsent()

    def _write_unsent(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self.transport is not None:
            self.transport.write(b"".join(unsent))

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Callable[[bytes], Awaitable[bool]]]:
        """Yield a function that sends one part of a streamed answer, and returns False if the client has
        disconnected."""
        async with self._streaming:
            self._write_unsent()
            yield self._send_part
        self.flush()

    async def _send_part(self, part: bytes) -> bool:
        await self.writable.wait()
        if self.transport is not None:
            self.transport.write(part)
        return self.transport is not None


@dataclass(slots=True)
class _Arriving:
    """A large frame that arrives in separate memory. Its bytes are reserved in the broker's buffer."""

    memory: memoryview
    filled: int
    granted_s: float
    """Time at which the frame's memory was reserved."""


class Connection(asyncio.BufferedProtocol):
    """Connection of one client: reads frames, and sends answers in any order by ``send``. Runs on the loop.

    The next request of a client is in one of these states:

    ============  =========================================  ===========================================================
    ``_coming``   holds                                      next
    ============  =========================================  ===========================================================
    None          ``_left``: the request's beginning, or     None: the request is complete, and was handed on.
                  nothing                                    Waiter: a write needs memory.
                                                             _Arriving: a large write has begun, its memory reserved
    Waiter        ``_left``, and a place in the queue for    None: the memory was reserved. If the client disconnects,
                  memory                                     the place or the memory is given back
    _Arriving     reserved memory for the whole request      None: the request is complete, and was handed on. If the
                                                             client disconnects or is slower than ``LEAST_PACE_S``, the
                                                             memory is given back
    ============  =========================================  ===========================================================

    The connection reads its socket only while ``_stops`` is empty.
    """

    def __init__(self, inlet: Inlet) -> None:
        self.address = ""
        self.principal: str | None = None
        self.expects_to_write = False
        """True if the client has sent a Message and was not redirected since."""
        self._inlet = inlet
        self._answers = Answers(inlet.loop)
        self._stops: set[Stop] = set()
        # Memory for the next read. The memory begins with a copy of ``_left``.
        self._reading = inlet.shared
        # Received bytes that are not handled yet: the beginning of a frame, or frames that wait for memory.
        self._left = b""
        self._coming: Waiter | _Arriving | None = None
        # Time at which the incomplete request began to arrive.
        self._began_s: float | None = inlet.loop.time()
        self._slow = 0  # number of requests that wait for the store

    @property
    def is_open(self) -> bool:
        """True while the client is connected."""
        return self._answers.transport is not None

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a new connection."""
        made = self._answers.transport = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(_UNSENT_BYTES)
        peer: tuple[object, ...] | None = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.principal = _principal(transport.get_extra_info("ssl_object"))
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:  # detect clients whose machine has vanished
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if not self._inlet.broker.admit(self):
            made.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the protocol's signature
        """Release the memory that the connection has reserved, and report its end to the broker."""
        # A TLS transport and its connection refer to each other. Break this cycle now, instead of leaving it to the
        # garbage collector.
        self._answers.transport = None
        self._answers.writable.set()
        self._began_s = None
        coming, self._coming = self._coming, None
        if isinstance(coming, _Arriving):
            self._inlet.room.give_back(len(coming.memory) + MESSAGE_COST)
        elif coming is not None:
            self._inlet.room.forget(coming)
        self._inlet.broker.forget(self)

    def eof_received(self) -> bool:
        """The client has closed its sending side. Let the requests received so far finish, then close."""
        self._answers.flush()
        return False

    def pause_writing(self) -> None:
        """Stop reading requests of a client that reads its answers too slowly."""
        self._answers.writable.clear()
        self._stop(Stop.NOT_READ)

    def resume_writing(self) -> None:
        """Continue reading requests after the client has read its answers."""
        self._answers.writable.set()
        self._go_on(Stop.NOT_READ)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the protocol's signature
        """Return the memory for the next bytes."""
        if isinstance(self._coming, _Arriving):
            return self._coming.memory[self._coming.filled :]
        left, room = len(self._left), self._inlet.room
        has_room = not room.waiting and room.taken + READ_BYTES <= room.size
        stop = READ_BYTES if has_room and left < READ_BYTES // 2 else left + _SMALL_BYTES
        self._reading = self._inlet.shared if stop <= READ_BYTES else memoryview(bytearray(stop))
        self._reading[:left] = self._left
        return self._reading[left:stop]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle ``nbytes`` new bytes."""
        coming = self._coming
        if not isinstance(coming, _Arriving):
            self._take_frames(self._reading[: len(self._left) + nbytes])
            return
        coming.filled += nbytes
        if coming.filled == len(coming.memory):
            self._coming = self._began_s = None
            self._inlet.broker.request(self, coming.memory, len(coming.memory) + MESSAGE_COST)

    # --- for the broker ---

    def send(self, packet: bytes) -> None:
        """Send an answer if the client is connected. The answer queues behind a streamed answer."""
        if not self._answers.send(packet):
            self._stop(Stop.BEHIND)

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Callable[[bytes], Awaitable[bool]]]:
        """Yield a function that sends one part of a streamed answer, and returns False if the client has disconnected.

        Other answers queue until the context ends."""
        async with self._answers.stream() as send:
            yield send
        self._go_on(Stop.BEHIND)

    def waits_for(self, task: asyncio.Task[None]) -> None:
        """Count ``task`` as a request that waits for the store. At the limit, stop reading until a request is done."""
        self._slow += 1
        if self._slow >= _MOST_SLOW:
            self._stop(Stop.BUSY)
        task.add_done_callback(self._has_waited)

    def _has_waited(self, task: asyncio.Task[None]) -> None:
        del task
        self._slow -= 1
        self._go_on(Stop.BUSY)

    def check_pace(self, now_s: float) -> None:
        """Close the connection if its incomplete request arrives too slowly; called periodically."""
        coming = self._coming
        if self._began_s is None:
            return
        granted_s = coming.granted_s if isinstance(coming, _Arriving) else 0.0
        if Stop.BUSY in self._stops or (
            self._stops and not isinstance(coming, _Arriving) and Stop.NO_ROOM not in self._stops
        ):
            # Allow the full time again, because the request holds no memory, or waits for the store.
            self._began_s = now_s
        elif Stop.NO_ROOM in self._stops:
            return
        elif now_s > max(self._began_s + LEAST_PACE_S, granted_s + LEAST_PACE_AFTER_S):
            self._refuse(f"a request did not arrive completely within {LEAST_PACE_S:g} s")

    def stop_reading(self) -> None:
        """Read no more requests."""
        self._stop(Stop.ENDING)

    def close(self) -> None:
        """Send all answers, then close."""
        self._answers.flush()
        if self._answers.transport is not None:
            self._answers.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._answers.transport is not None:
            self._answers.transport.abort()

    # --- frames ---

    def _take_frames(self, came: memoryview) -> None:
        """Handle all complete frames in ``came``, and keep the incomplete rest for the next read."""
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
        """Pass the next complete frame to the broker, or begin a large frame. Return the number of bytes taken from
        ``came``.

        Return 0 if the frame has to wait or the connection ends."""
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
            why = f"a request of {size} bytes is too large: only a write may exceed {_SMALL_BYTES}"
            self.send(response_bytes(Response(version, request_id, kind, Code.BAD_REQUEST, why)))
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
        self._inlet.broker.request(self, came[:size], size + MESSAGE_COST if is_write else 0)
        return size

    def _frame_size(self, came: memoryview) -> int | None:
        """Return the size of the next frame, including the four bytes of its length. If that size is invalid, end the
        connection and return None."""
        size = int.from_bytes(came[:_SIZE_BYTES], "big", signed=True)
        if REQUEST_HEAD_SIZE - _SIZE_BYTES <= size <= MAX_PACKET_BYTES:
            return size + _SIZE_BYTES
        self._refuse(f"a request says that {size} bytes follow; at most {MAX_PACKET_BYTES} are allowed")
        return None

    def _take_room(self, size: int) -> bool:
        if self._coming is None:
            self._coming = self._inlet.room.take(size, self._take_granted)
            if self._coming is not None:
                self._stop(Stop.NO_ROOM)
                return False
        self._coming = None  # the bytes are reserved now
        return True

    def _begin_large(self, size: int, came: memoryview) -> None:
        loop = self._inlet.loop
        memory = memoryview(self._inlet.pool.slab(size))[:size]
        memory[: len(came)] = came
        now_s = loop.time()
        self._coming = _Arriving(memory, len(came), now_s)
        if self._began_s is None:
            self._began_s = now_s
        # The request may have little time left, and other clients need the memory, so schedule a check instead of
        # waiting for the periodic check.
        elif self._began_s + LEAST_PACE_S < now_s + LEAST_PACE_AFTER_S:
            loop.call_later(LEAST_PACE_AFTER_S + 0.001, lambda: self.check_pace(loop.time()))

    def _take_granted(self) -> None:
        # Continue in the next iteration of the event loop, because in this call ``Room`` is still granting memory to
        # other waiters.
        self._inlet.loop.call_soon(self._go_on, Stop.NO_ROOM)

    def _refuse(self, why: str) -> None:
        """End the connection, because after an invalid frame the beginning of the next frame is unknown."""
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
    """Return the subject of the client's certificate, as ``CN=…,O=…``; None without a certificate."""
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
"""Memory of a Message in bytes besides its data: callbacks, header and bookkeeping."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A waiting request for ``size`` bytes of memory. ``granted`` is called once, after the bytes have been
    reserved.
    """

    size: int
    granted: Callable[[], None]


class Room:
    """The memory that a broker may hold, in bytes. Waiters get memory in the order of arrival, not by size. Used only
    on the broker's loop.

    A Message reserves all its bytes before its first byte is read. Otherwise, two Messages that each hold half of their
    memory and wait for the rest could deadlock.
    """

    def __init__(self, size: int, on_wait: Callable[[], None] = lambda: None) -> None:
        """``on_wait`` is called after each new waiter."""
        self.size = size
        self.taken = 0
        self._on_wait = on_wait
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()  # in order of arrival

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        return len(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> Waiter | None:
        """Reserve ``size`` bytes now, if possible, and return None. Otherwise, return a waiter, and call ``granted``
        once the bytes are reserved.
        """
        if not self._waiting and self.taken + size <= self.size:
            self.taken += size
            return None
        waiter = Waiter(size, granted)
        self._waiting[waiter] = None
        self._on_wait()
        return waiter

    def give_back(self, size: int) -> None:
        """Free ``size`` bytes."""
        self.taken -= size
        self._serve()

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter, and free its bytes if they were already reserved."""
        if waiter in self._waiting:
            del self._waiting[waiter]
        else:
            self.taken -= waiter.size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            if self.taken + waiter.size > self.size:
                return
            self.taken += waiter.size
            del self._waiting[waiter]
            waiter.granted()


FRAMES_AN_ADDRESS: Final = 256
"""Maximum number of frames from one client address in one turn (one iteration of the event loop)."""

FRAMES_A_CONNECTION: Final = 64
"""Maximum number of frames of one connection in a row. Then other connections of the same address get a turn."""


class Turns:
    """Lets client addresses, and the connections of each address, take turns. Used only on the broker's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def take(self, address: str) -> bool:
        """Count a frame from this client address. Return False if the address has reached its limit in this turn."""
        if not self._taken:
            self._loop.call_soon(self._begin)
        if self._taken[address] >= FRAMES_AN_ADDRESS:
            return False
        self._taken[address] += 1
        return True

    def wait(self, address: str, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` in a later turn, after earlier waiters of this address."""
        if not self._taken:
            self._loop.call_soon(self._begin)
            self._taken[""] += 1
        self._waiting.setdefault(address, deque()).append(go_on)

    def _begin(self) -> None:
        """Begin a turn: for each address, call its waiters until the address has reached its limit."""
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
