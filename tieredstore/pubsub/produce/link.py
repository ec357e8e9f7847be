"""One connection to a broker: packets out, answers in by their ids, in whatever order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from tieredstore.errors import BrokerUnavailable
from tieredstore.pubsub.errors import PacketCorrupt
from tieredstore.pubsub.format.packet_writing import request_bytes
from tieredstore.pubsub.format.packets import MAX_PACKET_BYTES, PacketType, Request, Response, parse_response

_UNREAD_BYTES: Final = 1 << 20
_SIZE_BYTES: Final = 4

Place = tuple[str, int]
"""Host and port of a broker."""


class BrokerLink:
    """Made by ``open``. Once it is lost, all that wait are told, and it stays lost: BrokerUnavailable."""

    def __init__(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.place = place
        self.is_lost = False
        self._reader = reader
        self._writer = writer
        self._waiting: dict[tuple[PacketType, int], asyncio.Future[Response]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, place: Place, tls: ssl.SSLContext | None, timeout_s: float) -> BrokerLink:
        """Connect; BrokerUnavailable if nobody answers there in time."""
        host, port = place
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=_UNREAD_BYTES)
        except (OSError, TimeoutError) as error:
            why = str(error) or "it did not answer in time"
            raise BrokerUnavailable(f"no broker answers at {host}:{port}: {why}") from error
        return cls(place, reader, writer)

    async def ask(self, request: Request, kind: PacketType, timeout_s: float) -> Response:
        """Send a request and return its answer. One that does not answer in time is lost, for all that wait."""
        if self.is_lost:
            raise self._lost("the connection was lost")
        name = (kind, request.request_id)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(request_bytes(request))
                await self._writer.drain()
                return await answer
        except TimeoutError as error:
            self.lose(f"it did not answer within {timeout_s:g} s")
            raise self._lost(f"it did not answer within {timeout_s:g} s") from error
        except OSError as error:
            self.lose(str(error))
            raise self._lost(str(error)) from error
        finally:
            self._waiting.pop(name, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # looked at: nobody need be warned of it

    def lose(self, why: str) -> None:
        """End it, and tell all that wait."""
        if not self.is_lost:
            self.is_lost = True
            # At once: a broker that does not answer would not answer the end of TLS either.
            self._writer.transport.abort()
            self._reading.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._lost(why))

    async def _read(self) -> None:
        why = "the broker has ended the connection"
        try:
            while True:
                response = await self._next()
                answer = self._waiting.get((response.kind, response.request_id))
                # An answer that nobody waits for: MemQ's broker gives a Message that is too large two of them.
                if answer is not None and not answer.done():
                    answer.set_result(response)
        except PacketCorrupt as error:
            why = f"it sent what is no answer: {error}"
        except OSError as error:
            why = str(error) or why
        except asyncio.IncompleteReadError:
            pass
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.lose(why)

    async def _next(self) -> Response:
        head = await self._reader.readexactly(_SIZE_BYTES)
        size = int.from_bytes(head, "big", signed=True)
        if not 0 < size <= MAX_PACKET_BYTES:
            raise PacketCorrupt(f"an answer says {size} bytes")
        return parse_response(head + await self._reader.readexactly(size))

    def _lost(self, why: str) -> BrokerUnavailable:
        host, port = self.place
        return BrokerUnavailable(f"broker {host}:{port}: {why}")
