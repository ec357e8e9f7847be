"""Delivery of Messages to brokers of this project or of MemQ.

The producer imports this module only if it writes to brokers, because the module needs asyncio and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Final

from tieredstore.config.values import host_and_port
from tieredstore.errors import BrokerUnavailableError, ConfigError, TieredStoreError, TopicNotFoundError
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import leave_to_parent
from tieredstore.pubsub.errors import DeliveryFailedError, PacketCorruptError
from tieredstore.pubsub.format.messages import message_checksum
from tieredstore.pubsub.format.packets import (
    MAX_PACKET_BYTES,
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    Request,
    Response,
    WriteRequest,
    parse_response,
    request_bytes,
)
from tieredstore.pubsub.produce.batch_writer import SealedMessage
from tieredstore.pubsub.produce.outbox import OpenMessage, Outbox, Sending
from tieredstore.pubsub.settings import BatchClientSettings

MOST_MESSAGE_BYTES: Final = MAX_PACKET_BYTES - (64 << 10)
"""The largest size of a Message. The rest of a packet is for headers, and for data that compression makes larger."""

_FIRST_DELAY_S: Final = 0.05
_MOST_DELAY_S: Final = 2.0
_CLOSE_S: Final = 5.0
_REFUSED: Final = frozenset({Code.BAD_REQUEST, Code.UNAUTHORIZED})


class BrokerDelivery:
    """Delivery to a topic's brokers, which it learns from the brokers that ``client`` names. It seals Messages on a
    thread, and sends several Messages at once on its own event loop."""

    def __init__(self, sending: Sending, topic: str, client: BatchClientSettings) -> None:
        self._how = sending
        self._topic = topic
        self._client = client
        self._producer_id = str(uuid.uuid4())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        self._brokers: TopicBrokers | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def start(self, outbox: Outbox) -> None:
        """Start the threads unless they run."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            leave_to_parent(self._loop)
            self._threads = [
                threading.Thread(target=self._run_loop, args=(self._loop,), name="tieredstore-pubsub-client"),
                threading.Thread(target=self._seal_all, args=(outbox, self._loop), name="tieredstore-pubsub-messages"),
            ]
            for thread in self._threads:
                thread.daemon = True
                thread.start()

    def stop(self) -> None:
        """End the loop and its connections."""
        loop, threads = self._loop, self._threads
        if loop is not None and not loop.is_closed():
            threads[1].join(_CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            threads[0].join(_CLOSE_S)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            if self._brokers is not None:
                self._brokers.close()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, asyncio.sleep(0), return_exceptions=True))
            loop.run_until_complete(asyncio.sleep(0))  # asyncio closes a connection in the iteration after its abort
            loop.close()

    # --- on the sealing thread ---

    def _seal_all(self, outbox: Outbox, loop: asyncio.AbstractEventLoop) -> None:
        while (message := outbox.next((), self._client.linger_ms / 1000)) is not None:
            if isinstance(message, OpenMessage):
                sealed = message.seal(self._how.compression)
                deadline = Deadline.after(self._how.settings.delivery_timeout_ms / 1000)
                loop.call_soon_threadsafe(self._begin_sending, loop, self._deliver(outbox, message, sealed, deadline))

    # --- on the loop ---

    def _begin_sending(self, loop: asyncio.AbstractEventLoop, delivery: Coroutine[object, object, None]) -> None:
        task = loop.create_task(delivery)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, outbox: Outbox, message: OpenMessage, sealed: SealedMessage, deadline: Deadline) -> None:
        try:
            await self._send(sealed, deadline)
        except asyncio.CancelledError:
            outbox.fail([message], DeliveryFailedError("the producer was closed before delivery"))
        except Exception as error:  # noqa: BLE001  any error fails the Message
            outbox.fail([message], error)
        else:
            outbox.settle([message], None)

    async def _send(self, sealed: SealedMessage, deadline: Deadline) -> None:
        """Send the same Message until a broker acknowledges it."""
        assert sealed.request is not None
        data = bytes(sealed.stored)
        write = WriteRequest(self._topic, message_checksum(data), data, self._how.acks != "all", self._producer_id)
        request = Request(VERSION, sealed.request.request_id, write)
        is_unclear, delay_s = False, _FIRST_DELAY_S
        while True:
            why, was_sent, is_final = await self._try(request, deadline)
            if why is None:
                return
            is_unclear |= was_sent
            if is_final or deadline.remaining_s() <= delay_s:
                raise DeliveryFailedError(f"no broker accepted a Message: {why}", maybe_stored=is_unclear)
            await asyncio.sleep(delay_s * (0.5 + random.random() / 2))  # noqa: S311  jitter
            delay_s = min(2 * delay_s, _MOST_DELAY_S)

    async def _try(self, request: Request, deadline: Deadline) -> tuple[str | None, bool, bool]:
        """Send the Message once. Return three values. The first is the reason of a failure, or None if the broker
        accepted the Message. The second is True if the Message may be stored. The third is True if the result is final.
        """
        if self._brokers is None:
            self._brokers = TopicBrokers(self._topic, self._client)
        try:
            link = await self._brokers.link()
        except BrokerUnavailableError as error:
            return str(error), False, False
        except TieredStoreError as error:
            return str(error), False, True
        timeout_s = min(self._client.request_timeout_ms / 1000, max(0.1, deadline.remaining_s()))
        try:
            response = await link.ask(request, timeout_s)
        except BrokerUnavailableError as error:
            self._brokers.drop(link, str(error))
            return str(error), True, False
        if response.code is Code.OK:
            self._brokers.settle(link.place)
            return None, True, True
        why = f"broker {link.place[0]}:{link.place[1]} answers {response.code.value}: {response.error:.200}"
        if response.code in _REFUSED:
            return why, False, True
        self._brokers.mark_stale()
        # After an error of the broker's store, the Message may be stored. After these three codes, it is not stored.
        return why, response.code not in {Code.REDIRECT, Code.NOT_FOUND, Code.SERVICE_UNAVAILABLE}, False


VERSION: Final = 5

_CONNECT_S: Final = 5.0
_STALE_S: Final = 60.0
_FIRST_REST_S: Final = 0.2
_MOST_REST_S: Final = 5.0
_NOT_FOUND_S: Final = 15.0
"""Seconds of retries before the answer NOT_FOUND is final, because the topic may be new, and MemQ's brokers refresh
their topics every ten seconds."""


@dataclass(slots=True)
class _Pause:
    """The time for which the producer avoids a failed broker, and its place in the order of metadata requests."""

    until_s: float = 0.0
    seconds: float = 0.0
    last_s: float = 0.0
    """When the broker last failed, or was last asked for metadata."""


class TopicBrokers:
    """Connections to the brokers of a topic, used in turn. For one event loop."""

    def __init__(
        self,
        topic: str,
        settings: BatchClientSettings,
        *,
        open_link: Callable[[Place], Awaitable[BrokerLink]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._open_link = open_link or partial(BrokerLink.open, tls=client_tls(settings), timeout_s=_CONNECT_S)
        self._monotonic = monotonic
        self._seeds = [host_and_port(text) for text in settings.bootstrap]
        self._links: dict[Place, BrokerLink] = {}
        self._pauses: dict[Place, _Pause] = {}
        self._brokers: dict[Place, str] = {}  # the topic's brokers and their zones
        self._asked_s = -_STALE_S
        self._failure: tuple[float, TieredStoreError] | None = None
        self._unknown_since_s: float | None = None
        self._ids = itertools.count()
        self._turn = itertools.count(random.randrange(1 << 16))  # noqa: S311  a random first broker
        self._order = random.random()  # noqa: S311  spreads clients over the brokers
        self._asking = asyncio.Lock()
        self._connecting: dict[Place, asyncio.Lock] = {}

    async def link(self) -> BrokerLink:
        """Return a connection to the next broker to write to.

        Raise BrokerUnavailableError if no broker answers now, TopicNotFoundError if the topic does not exist."""
        await self._ask_if_stale()
        places = self._choose()
        if not places:
            raise BrokerUnavailableError(f"no broker of topic {self._topic} is available")
        place = places[next(self._turn) % len(places)]
        async with self._connecting.setdefault(place, asyncio.Lock()):
            link = self._links.get(place)
            if link is None or link.is_lost:
                try:
                    link = self._links[place] = await self._open_link(place)
                except BrokerUnavailableError:
                    self._avoid(place)
                    raise
            return link

    def drop(self, link: BrokerLink, why: str) -> None:
        """Drop a failed connection, avoid its broker for a while, and refresh metadata."""
        link.lose(why)
        self._avoid(link.place)

    def mark_stale(self) -> None:
        """Refresh metadata at the next use."""
        self._asked_s = -_STALE_S

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.lose("the producer was closed")

    def settle(self, place: Place) -> None:
        """End the pause of a broker, because the broker works again."""
        self._pauses.pop(place, None)

    def _avoid(self, place: Place) -> None:
        """Avoid a failed broker for a while, and refresh metadata."""
        self.mark_stale()
        rest = self._pauses.setdefault(place, _Pause())
        now_s = rest.last_s = self._monotonic()
        if rest.until_s <= now_s:  # many Messages may report the same lost broker, so lengthen its pause only once
            rest.seconds = min(_MOST_REST_S, max(_FIRST_REST_S, 2 * rest.seconds))
            rest.until_s = now_s + rest.seconds * (0.5 + random.random() / 2)  # noqa: S311  jitter

    def _last_s(self, place: Place) -> float:
        return self._pauses[place].last_s if place in self._pauses else -1.0

    def _choose(self) -> list[Place]:
        """Return the brokers to write to, at most ``pubsub.write.endpoints``. Prefer available brokers in the
        client's zone.
        """
        now_s = self._monotonic()
        well = [place for place in self._brokers if place not in self._pauses or self._pauses[place].until_s <= now_s]
        near = [place for place in well if self._settings.rack and self._brokers[place] == self._settings.rack]
        places = sorted(near or well)
        random.Random(self._order).shuffle(places)  # noqa: S311  a stable order, different for each client
        return places[: self._settings.endpoints]

    # --- metadata ---

    async def _ask_if_stale(self) -> None:
        if self._monotonic() - self._asked_s < _STALE_S:
            return
        async with self._asking:
            if self._monotonic() - self._asked_s < _STALE_S:
                return
            if self._failure is not None and self._monotonic() - self._failure[0] < _FIRST_REST_S:
                raise self._failure[1]  # the metadata request of another Message has just failed
            seeds = random.sample(self._seeds, len(self._seeds))
            error: TieredStoreError | None = None
            asked: list[Place] = []
            # Ask in turn, because the metadata of a broker that is cut off from the others stays out of date: it may
            # name the broker itself, or one that was killed. Ask brokers that failed recently last.
            for place in sorted(dict.fromkeys([*self._brokers, *seeds]), key=self._last_s):
                asked.insert(0, place)
                try:
                    self._brokers = await self._ask(place)
                except BrokerUnavailableError as failure:
                    error = failure
                else:
                    # A broker without an answer goes behind this one. A dead broker would otherwise cost each request
                    # the timeout of a connection.
                    for each in asked:
                        self._pauses.setdefault(each, _Pause()).last_s = self._monotonic()
                    # If the topic has no broker yet, request its metadata again soon, because a governor will assign
                    # one.
                    self._asked_s = self._monotonic() - (0.0 if self._brokers else _STALE_S - _MOST_REST_S / 10)
                    return
            if error is not None:
                self._failure = (self._monotonic(), error)
                raise error

    async def _ask(self, place: Place) -> dict[Place, str]:
        link = self._links.get(place)
        own = link is None or link.is_lost
        if link is None or link.is_lost:
            link = await self._open_link(place)
        try:
            request = Request(VERSION, next(self._ids), MetadataRequest((self._topic,)))
            response = await link.ask(request, _CONNECT_S)
        finally:
            if own:
                link.lose("it was opened for metadata only")
        return self._writers_in(response, place)

    def _writers_in(self, response: Response, place: Place) -> dict[Place, str]:
        where = f"broker {place[0]}:{place[1]}"
        if response.code is Code.NOT_FOUND:
            now_s = self._monotonic()
            self._unknown_since_s = now_s if self._unknown_since_s is None else self._unknown_since_s
            if now_s - self._unknown_since_s >= _NOT_FOUND_S:
                raise TopicNotFoundError(f"{where}: there is no topic {self._topic}")
            raise BrokerUnavailableError(f"{where}: there is no topic {self._topic} yet")
        if response.code is not Code.OK or not isinstance(response.payload, MetadataAnswer):
            raise BrokerUnavailableError(f"{where} gave no metadata of topic {self._topic}: {response.error:.200}")
        self._unknown_since_s = None
        writers = [topic.write_brokers for topic in response.payload.topics if topic.topic == self._topic]
        return {(broker.ip, broker.port): broker.locality for brokers in writers for broker in brokers}


def client_tls(settings: BatchClientSettings) -> ssl.SSLContext | None:
    """Return the TLS context for brokers, or None without TLS. Raise ConfigError if a certificate or key file is
    unusable."""
    if settings.tls == "none":
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the files of pubsub.tls.*: {error}") from error
    return context


_UNREAD_BYTES: Final = 1 << 20
_SIZE_BYTES: Final = 4

Place = tuple[str, int]
"""Host and port of a broker."""


class BrokerLink:
    """A connection to a broker, made by ``open``. Once it is lost, every request raises BrokerUnavailableError."""

    def __init__(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.place = place
        self.is_lost: bool = False
        self._reader = reader
        self._writer = writer
        self._waiting: dict[tuple[PacketType, int], asyncio.Future[Response]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, place: Place, tls: ssl.SSLContext | None, timeout_s: float) -> BrokerLink:
        """Connect to a broker. Raise BrokerUnavailableError if the broker does not answer in time."""
        host, port = place
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=_UNREAD_BYTES)
        except (OSError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            raise BrokerUnavailableError(f"cannot connect to broker {host}:{port}: {why}") from error
        return cls(place, reader, writer)

    async def ask(self, request: Request, timeout_s: float) -> Response:
        """Send a request and return its answer. A timeout ends the connection, so all requests on it fail."""
        if self.is_lost:
            raise self._loss_error("the connection was lost")
        name = (request.payload.kind, request.request_id)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(request_bytes(request))
                await self._writer.drain()
                return await answer
        except OSError as error:
            why = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            self.lose(why)
            raise self._loss_error(why) from error
        finally:
            self._waiting.pop(name, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # reading the error marks it as retrieved, so asyncio does not warn

    def lose(self, why: str) -> None:
        """Abort the connection, and fail all waiters."""
        if not self.is_lost:
            self.is_lost = True
            # Abort instead of closing, because an unresponsive broker would not answer the TLS shutdown either.
            self._writer.transport.abort()
            self._reading.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._loss_error(why))

    async def _read(self) -> None:
        why = "the broker closed the connection"
        try:
            while True:
                response = await self._next()
                answer = self._waiting.get((response.kind, response.request_id))
                # Ignore an answer that no request waits for, because MemQ's broker sends two answers to a Message that
                # is too large.
                if answer is not None and not answer.done():
                    answer.set_result(response)
        except PacketCorruptError as error:
            why = f"invalid answer: {error}"
        except OSError as error:
            why = str(error) or why
        except asyncio.IncompleteReadError:
            pass
        finally:
            with contextlib.suppress(RuntimeError):  # raised if the event loop is closed
                self.lose(why)

    async def _next(self) -> Response:
        head = await self._reader.readexactly(_SIZE_BYTES)
        size = int.from_bytes(head, "big", signed=True)
        if not 0 < size <= MAX_PACKET_BYTES:
            raise PacketCorruptError(f"an answer says that {size} bytes follow; 1 to {MAX_PACKET_BYTES} are allowed")
        return parse_response(head + await self._reader.readexactly(size))

    def _loss_error(self, why: str) -> BrokerUnavailableError:
        host, port = self.place
        return BrokerUnavailableError(f"broker {host}:{port}: {why}")
