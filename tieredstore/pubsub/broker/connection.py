"""One client's connection: bytes into frames, without a copy of what is large, and never more than there is room for.

Small frames gather in a buffer of the connection. A large one gets a buffer of its own size once the broker has room
for all of it; until then the socket is not read, and the client waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Protocol, cast

from tieredstore.errors import PacketCorrupt
from tieredstore.pubsub.broker.room import Room, Waiter
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
_FRAME_S: Final = 60.0
"""How long a large frame may take to come: whoever is slower holds room that others wait for."""

_UNSENT_BYTES: Final = 1 << 20
_NO_ROOM: Final = "no room"
_NOT_READ: Final = "answers are not read"
_ENDING: Final = "ending"


class RequestHandler(Protocol):
    """What a broker does with the frames of its connections; on the loop."""

    def opened(self, connection: Connection) -> bool:
        """A client came; False if it is to go."""
        ...

    def closed(self, connection: Connection) -> None:
        """It went."""
        ...

    def request(self, connection: Connection, frame: memoryview, held: int) -> None:
        """A whole request. ``held`` bytes of room are the handler's from now on; ``frame`` only until it returns."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Reads frames; answers go out by ``send``, in any order. All of it on the loop."""

    def __init__(self, handler: RequestHandler, room: Room, loop: asyncio.AbstractEventLoop) -> None:
        self.address = ""
        self.principal: str | None = None
        self.is_open = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._streaming = asyncio.Lock()
        self._behind_stream: list[bytes] = []
        self._handler = handler
        self._room = room
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._stops: set[str] = set()
        # Of small frames, and of the beginning of a large one: bytes from _start to _end.
        self._small = memoryview(bytearray(_SMALL_BYTES))
        self._start = self._end = 0
        self._large: memoryview | None = None
        self._filled = 0
        self._waiter: Waiter | None = None
        self._overdue: asyncio.TimerHandle | None = None

    # --- asyncio calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        peer: tuple[Any, ...] | None = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.principal = _principal(transport.get_extra_info("ssl_object"))
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:  # a client whose machine is gone must not be remembered for ever
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.is_open = True
        if not self._handler.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the protocol's signature
        """It went."""
        self.is_open = False
        self.writable.set()
        if self._waiter is not None:
            self._room.forget(self._waiter)
            self._waiter = None
        if self._large is not None:
            self._end_large()
        self._handler.closed(self)

    def eof_received(self) -> bool:
        """It sends no more: what it has sent is done, and its connection is closed."""
        return False

    def pause_writing(self) -> None:
        """It reads its answers too slowly: no more of its requests."""
        self.writable.clear()
        self._stop(_NOT_READ)

    def resume_writing(self) -> None:
        """It has read them."""
        self.writable.set()
        self._go_on(_NOT_READ)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the protocol's signature
        """Where the next bytes go."""
        return self._small[self._end :] if self._large is None else self._large[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        if self._large is None:
            self._end += nbytes
        else:
            self._filled += nbytes
            if self._filled < len(self._large):
                return
            frame, self._large = self._large, None
            self._end_timer()
            self._handler.request(self, frame, len(frame))
        self._take_frames()

    # --- for the handler ---

    def send(self, packet: bytes) -> None:
        """Send an answer, if the client is still there; behind one that goes out in pieces."""
        if self._streaming.locked():
            self._behind_stream.append(packet)
        elif self.is_open and self._transport is not None and not self._transport.is_closing():
            self._transport.write(packet)

    @contextlib.asynccontextmanager
    async def streaming(self) -> AsyncGenerator[Callable[[bytes], Awaitable[bool]]]:
        """Send one answer in pieces, by the function that is given: False once the client is gone. What others answer
        meanwhile waits."""
        async with self._streaming:
            yield self._send_piece
        if not self._streaming.locked():
            behind, self._behind_stream = self._behind_stream, []
            for packet in behind:
                self.send(packet)

    async def _send_piece(self, piece: bytes) -> bool:
        await self.writable.wait()
        if self.is_open and self._transport is not None:
            self._transport.write(piece)
        return self.is_open

    def stop_reading(self) -> None:
        """Take no more requests."""
        self._stop(_ENDING)

    def close(self) -> None:
        """Send what was answered, and end."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- frames ---

    def _take_frames(self) -> None:
        while self.is_open and not self._stops and self._large is None and self._take_frame():
            pass
        self._compact()

    def _take_frame(self) -> bool:
        """Hand the next frame on, or begin a large one; False if that has to wait, or nothing more will come."""
        available = self._end - self._start
        size = self._frame_size() if available >= _SIZE_BYTES else None
        if size is None or available < REQUEST_HEAD_SIZE:
            return False
        try:
            version, request_id, kind = request_head(self._small[self._start :])
        except PacketCorrupt as error:
            self._refuse(str(error))
            return False
        is_write = kind is PacketType.WRITE
        if not is_write and size > _SMALL_BYTES:
            why = f"a request of {size} bytes that is no write"
            self.send(error_response(request_id, version, kind, Code.BAD_REQUEST, why))
            self._refuse(why)
            return False
        if available < size <= _SMALL_BYTES:
            return False
        if is_write and not self._take_room(size):
            return False
        if available < size:
            self._begin_large(size, available)
            return False
        frame = self._small[self._start : self._start + size]
        self._start += size
        self._handler.request(self, frame, size if is_write else 0)
        return True

    def _frame_size(self) -> int | None:
        """Of the frame that begins, its own four bytes included; None, and the connection ends, if it cannot be."""
        size = int.from_bytes(self._small[self._start : self._start + _SIZE_BYTES], "big", signed=True)
        if REQUEST_HEAD_SIZE - _SIZE_BYTES <= size <= MAX_PACKET_BYTES:
            return size + _SIZE_BYTES
        self._refuse(f"a request says {size} bytes, and {MAX_PACKET_BYTES} may be")
        return None

    def _take_room(self, size: int) -> bool:
        if self._waiter is None:
            self._waiter = self._room.take(size, self._granted)
            if self._waiter is not None:
                self._stop(_NO_ROOM)
                return False
        self._waiter = None  # granted while it waited
        return True

    def _begin_large(self, size: int, available: int) -> None:
        large = memoryview(bytearray(size))
        large[:available] = self._small[self._start : self._end]
        self._start = self._end = 0
        self._large, self._filled = large, available
        self._overdue = self._loop.call_later(_FRAME_S, self._too_slow)

    def _granted(self) -> None:
        # Not here: others that wait for room are served in the same moment.
        self._loop.call_soon(self._go_on, _NO_ROOM)

    def _compact(self) -> None:
        if self._start:
            rest = bytes(self._small[self._start : self._end])
            self._small[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _too_slow(self) -> None:
        self._refuse(f"a Message did not come whole within {_FRAME_S:g} s")

    def _end_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _end_large(self) -> None:
        assert self._large is not None
        self._room.give_back(len(self._large))
        self._large = None
        self._end_timer()

    def _refuse(self, why: str) -> None:
        """What follows cannot be told apart: the connection ends."""
        _logger.info("connection of %s ends: %s", self.address, why)
        self._stop(_ENDING)
        self.close()

    def _stop(self, reason: str) -> None:
        if not self._stops and self._transport is not None:
            self._transport.pause_reading()
        self._stops.add(reason)

    def _go_on(self, reason: str) -> None:
        self._stops.discard(reason)
        if not self._stops and self._transport is not None and self.is_open:
            self._transport.resume_reading()
            if self._large is None:
                self._take_frames()


def _principal(tls: ssl.SSLObject | None) -> str | None:
    """The subject of the client's certificate, as ``CN=…,O=…``; None without one."""
    certificate = None if tls is None else tls.getpeercert()
    if not certificate:
        return None
    pairs = [pair for names in cast("tuple[Any, ...]", certificate.get("subject", ())) for pair in names]
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
    return ",".join(f"{short.get(name, name)}={value}" for name, value in reversed(pairs))
