"""A broker that speaks MemQ's packets: it stores Messages of many producers in batches, then acknowledges them.

This module is separate from ``running``, which wraps the broker as a service, so that a process with its own event loop
can run a broker by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError, InvalidRangeError, ObjectNotFoundError, TieredStoreError
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.broker.authorization import Authorizer, Client
from tieredstore.pubsub.broker.connection import Connection, Inlet
from tieredstore.pubsub.broker.handshakes import Handshakes
from tieredstore.pubsub.broker.processor import TopicProcessor, TopicProcessors, check_message
from tieredstore.pubsub.counts import BROKERS
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError, PacketCorruptError
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.format.packets import (
    MOST_READ_BYTES,
    BrokerAddress,
    Code,
    MetadataAnswer,
    MetadataRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    Response,
    ResponsePayload,
    WriteRequest,
    read_response_head,
    request_head,
    response_bytes,
    view_request,
    write_acknowledgement,
)
from tieredstore.pubsub.governor.directory import AllTopics, Assignment, Directory, KnownTopic, StoreTopics, own_error
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.settings import BatchBrokerSettings

_logger: Final = logging.getLogger(__name__)

_READS_AT_ONCE: Final = 16
_LOOKUPS: Final = 4
_LAST_WORDS_S: Final = 2.0
_PACE_EVERY_S: Final = 5.0
_LOOK_S: Final = 0.05
_TOLD_S: Final = 10.0
_ASKS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Serving:
    """State of a broker that has started."""

    handshakes: Handshakes | None
    server: asyncio.Server
    port: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A client's request, and the bytes that a write reserves in the broker's buffer."""

    connection: Connection
    request: Request
    held: int

    def answer(self, code: Code, error: str = "", payload: ResponsePayload = None) -> None:
        request = self.request
        answer = Response(request.version, request.request_id, request.payload.kind, code, error, payload)
        self.connection.send(response_bytes(answer))

    def acknowledge(self, failure: TieredStoreError | None) -> None:
        """Answer a write."""
        if failure is None:
            self.connection.send(write_acknowledgement(self.request.version, self.request.request_id))
        else:
            self.answer(Code.REQUEST_FAILED, str(failure))


class Broker:
    """A broker: answers requests from ``start`` until ``drain``. Runs on one event loop; worker threads access the
    store.

    ========  ===========================================  ==========================================================
    state     has                                          next
    ========  ===========================================  ==========================================================
    made      nothing                                      serving: ``start``
    serving   ``_serving``, connections                    serving, and tells clients which brokers have its topics:
                                                           ``hand_over``. Ending: ``drain``, ``abandon``
    ending    ``_is_ending``; no listening socket and no   ended: all Messages were stored and answered, or the
              further requests                             time is over
    ended     nothing                                      –
    ========  ===========================================  ==========================================================
    """

    def __init__(
        self,
        topics: Topics,
        *,
        assignment: Assignment | None = None,
        authorizer: Authorizer | None = None,
        directory: Directory | None = None,
    ) -> None:
        self.own: BatchBrokerSettings = topics.settings.section(BatchBrokerSettings)
        self.directory: Directory = Directory(StoreTopics(topics)) if directory is None else directory
        self._assignment = assignment or AllTopics(lambda: self.address, serves_reads=self.own.serve_reads)
        self._authorizer = authorizer
        self._lookups = ThreadPool(_LOOKUPS, "tieredstore-broker-lookup")
        self._processors = TopicProcessors(
            self.directory, self._assignment, self.own, topics.batches.uploads, self._lookups
        )
        self.room, self.counts = self._processors.intake.room, self._processors.intake.counts
        self._read_threads = ThreadPool(_READS_AT_ONCE, "tieredstore-broker-read")
        self._read_turns = asyncio.Semaphore(_READS_AT_ONCE)
        self._serving: _Serving | None = None
        self._is_ending = False
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_s = 0.0  # time at which a client was last redirected or asked for metadata
        self._forget_counts = BROKERS.add(lambda: asdict(self.counts) | self._levels())

    @property
    def address(self) -> BrokerAddress:
        """The address that clients use."""
        host, port = self.own.advertised or (own_address(self.own.listen[0]), self._port)
        return BrokerAddress(self.own.rack, host, port)

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._connections)

    @property
    def _port(self) -> int:
        return self.own.listen[1] if self._serving is None else self._serving.port

    @property
    def handshakes(self) -> Handshakes | None:
        """The TLS clients before and during their handshakes; None without TLS, or before the start."""
        return None if self._serving is None else self._serving.handshakes

    async def start(self) -> None:
        """Begin to listen. Raise ConfigError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        connect = partial(Connection, Inlet(self, loop))
        host, port = self.own.listen
        try:
            tls = server_tls(self.own)
            handshakes = None if tls is None else Handshakes(tls, self.room, self.counts, connect)
            accept = connect if handshakes is None else handshakes.accept
            server = await loop.create_server(accept, host, port, backlog=1024)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; see pubsub.broker.listen") from error
        self._serving = _Serving(handshakes, server, server.sockets[0].getsockname()[1])
        self._look_at_pace(loop)
        address = self.address
        _logger.info("broker: listens on %s:%d, advertised as %s:%d", host, self._port, address.ip, address.port)

    def serves_any(self) -> bool:
        """Return True if any topic is assigned to this broker."""
        return any(self._assignment.serves(known.name) for known in self.directory.all())

    async def hand_over(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Serve until ``is_over()`` is true and all clients know which brokers now have their topics.

        This broker answers a write to another broker's topic with 302, and its metadata names the other broker.
        Redirects are needed because MemQ's clients do not look for another broker when a connection ends.

        Once ``is_over()`` is true, wait until every writing client was redirected and had a second to ask for metadata.
        This wait takes at most ten seconds, and the whole call at most ``seconds``.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        await _wait_until(is_over, end_s)
        if not self.serves_any():  # a broker that keeps its topics has no other broker to redirect clients to
            await _wait_until(self._has_told_all, min(end_s, loop.time() + _TOLD_S))

    def _has_told_all(self) -> bool:
        is_quiet = asyncio.get_running_loop().time() >= self._asked_s + _ASKS_S
        return is_quiet and not any(connection.expects_to_write for connection in self._connections)

    async def drain(self, seconds: float) -> None:
        """Stop listening, store and answer Messages for at most ``seconds``, then close all connections."""
        await self._stop_listening()
        for connection in self._connections:
            connection.stop_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await self._processors.drain()
        for connection in list(self._connections):
            connection.close()
        await _wait_until(lambda: not self._connections, asyncio.get_running_loop().time() + _LAST_WORDS_S)
        await self.abandon()

    async def abandon(self) -> None:
        """Close all connections at once. Messages that are not stored yet are lost, and get no answer."""
        await self._stop_listening()
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        self._processors.close()
        for pool in (self._lookups, self._read_threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._forget_counts()

    async def _stop_listening(self) -> None:
        self._is_ending = True
        if self._serving is not None:
            for listening in self._serving.server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            # A connection gets its transport one iteration after it was accepted. If the server is closed in between,
            # asyncio (3.11) never closes the connection.
            await asyncio.sleep(0)
            self._serving.server.close()
        if self.handshakes is not None:
            self.handshakes.close()

    # --- connections, which call these methods on the event loop ---

    def admit(self, connection: Connection) -> bool:
        """Register a new client. Return False to refuse the client."""
        if self._is_ending or len(self._connections) >= self.own.connections:
            self.counts.refused_connections += 1
            return False
        self.counts.connections_opened += 1
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """Forget a client that has disconnected."""
        self._connections.discard(connection)
        if self.handshakes is not None:
            self.handshakes.release(connection)

    def request(self, connection: Connection, frame: memoryview, held: int) -> None:
        """Handle one request. In every outcome, release the request's ``held`` bytes in the broker's buffer. ``frame``
        is valid only during the call."""
        try:
            request = view_request(frame)
        except PacketCorruptError as error:
            self.counts.invalid_requests += 1
            version, request_id, kind = request_head(frame)
            self.room.give_back(held)
            connection.send(response_bytes(Response(version, request_id, kind, Code.BAD_REQUEST, str(error))))
            return
        call = _Call(connection, request, held)
        match request.payload:
            case WriteRequest() as write:
                self.counts.write_requests += 1
                self._write(call, write)
            case MetadataRequest(topics=names):
                self.counts.metadata_requests += 1
                self._asked_s = asyncio.get_running_loop().time()
                if all(map(self.directory.has_looked, names)):
                    self._tell_metadata(call, names)
                else:
                    self._begin(connection, self._look_and_tell(call, names))
            case ReadRequest() as read:
                self.counts.read_requests += 1
                self._read(call, read)

    # --- WRITE ---

    def _write(self, call: _Call, write: WriteRequest) -> None:
        if not self._may(call, write.topic):
            self.room.give_back(call.held)
            return
        if not self._processors.is_ready(write.topic):
            # Copy the data of a write that has to wait, because the frame's memory is reused after this call.
            write = replace(write, data=bytes(write.data))
        self._processors.ask(write.topic, partial(self._store, call, write), partial(self._begin, call.connection))

    def _store(
        self, call: _Call, write: WriteRequest, processor: TopicProcessor | None, failure: TieredStoreError | None
    ) -> None:
        if processor is None:
            self.room.give_back(call.held)
            code, why = self._why_not_here(write.topic, failure)
            if code is Code.REDIRECT:
                call.connection.expects_to_write = False
                self._asked_s = asyncio.get_running_loop().time()
            call.answer(code, why)
            return
        try:
            header = check_message(write, processor.most_bytes)
        except MessageCorruptError as error:
            self.counts.invalid_requests += 1
            self.room.give_back(call.held)
            call.answer(Code.BAD_REQUEST, str(error))
            return
        self.counts.message_bytes += len(write.data)
        call.connection.expects_to_write = True
        if not header.record_count:
            # Acknowledge an empty Message without storing it, as MemQ does, because MemQ's reader would skip the rest
            # of a batch after an empty Message.
            self.counts.empty_messages += 1
            processor.note_empty(header)
            self.room.give_back(call.held)
            call.acknowledge(None)
            return
        if write.no_acks:
            call.acknowledge(None)
            processor.take(write.data, header, call.held, lambda _: None)
        else:
            processor.take(write.data, header, call.held, call.acknowledge)

    def _why_not_here(self, topic: str, failure: TieredStoreError | None) -> tuple[Code, str]:
        if failure is not None:
            return Code.REQUEST_FAILED, str(failure)
        if self.directory.get(topic) is not None:
            self.counts.redirected_requests += 1
            return Code.REDIRECT, f"topic {topic} is served by other brokers: ask for its metadata again"
        return Code.NOT_FOUND, f"there is no topic {topic}"

    # --- METADATA: every client may ask, as in MemQ ---

    async def _look_and_tell(self, call: _Call, names: tuple[str, ...]) -> None:
        loop = asyncio.get_running_loop()
        for name in names:
            if not self.directory.has_looked(name):
                try:
                    if await loop.run_in_executor(self._lookups, self.directory.look, name) is None:
                        break  # refuse the request as soon as one of its topics does not exist
                except TieredStoreError as error:
                    call.answer(Code.REQUEST_FAILED, str(error))
                    return
        self._tell_metadata(call, names)

    def _tell_metadata(self, call: _Call, names: tuple[str, ...]) -> None:
        topics: list[KnownTopic] = [] if names else self.directory.all()
        for name in names:
            known = self.directory.get(name)
            if known is None:
                call.answer(Code.NOT_FOUND, f"there is no topic {name}")
                return
            topics.append(known)
        call.answer(Code.OK, payload=MetadataAnswer(tuple(known.metadata(self._assignment) for known in topics)))

    # --- READ ---

    def _read(self, call: _Call, read: ReadRequest) -> None:
        known = self.directory.get(read.topic)
        if not self.own.serve_reads:
            call.answer(Code.BAD_REQUEST, "this broker does not serve reads")
        elif not self._may(call, read.topic):
            return
        elif known is None or known.stored is None:
            call.answer(Code.NOT_FOUND, f"there is no topic {read.topic}")
        else:
            call = replace(call, request=replace(call.request, version=READ_VERSION))
            self._begin(call.connection, self._answer_read(call, read, *known.stored))

    async def _answer_read(self, call: _Call, read: ReadRequest, topics: Topics, topic: Topic) -> None:
        """Answer one request. If the store fails after the answer has begun, abort the connection.

        A connection sends one answer at a time, so that parts of different answers do not mix."""
        loop = asyncio.get_running_loop()

        def get(start: int, stop: int) -> Awaitable[bytes]:
            return loop.run_in_executor(self._read_threads, _get, topics.store, key, start, stop)

        async with self._read_turns:
            try:
                key, begin, end = plan_read(read, topics, topic)
                ranges = ((start, min(start + _RANGE_BYTES, end)) for start in range(begin, end, _RANGE_BYTES))
                first = next(ranges, None)
                data = b"" if first is None else await get(*first)
            except (NotificationCorruptError, InvalidRangeError) as error:
                call.answer(Code.BAD_REQUEST, str(error))
                return
            except ObjectNotFoundError:
                call.answer(Code.NO_DATA, payload=ReadAnswer(b""))  # as MemQ does
                return
            except TieredStoreError as error:
                call.answer(Code.REQUEST_FAILED, str(error))
                return
            try:
                async with asyncio.timeout(_ANSWER_S), call.connection.stream() as send:
                    await send(read_response_head(READ_VERSION, call.request.request_id, end - begin))
                    await send(data)
                    for span in ranges:
                        if not await send(await get(*span)):
                            return
            except (TieredStoreError, TimeoutError):
                call.connection.abort()

    # --- all requests ---

    def _may(self, call: _Call, topic: str) -> bool:
        """Return True if there is no authorizer, or if it allows the request; else refuse the request."""
        if self._authorizer is None:
            return True
        connection, operation = call.connection, call.request.payload.kind
        name = connection.principal or connection.address
        try:
            if self._authorizer.allows(Client(connection.address, connection.principal), operation, topic):
                return True
        except Exception:
            # The authorizer is the operator's code, so log its error, but do not send it to clients.
            _logger.exception("the authorizer failed for a %s request of %s", operation.name, name)
            call.answer(Code.INTERNAL_ERROR, "the authorizer failed")
        else:
            call.answer(Code.UNAUTHORIZED, f"{name} has no access to topic {topic}")
        self.counts.unauthorized_requests += 1
        return False

    def _begin(self, connection: Connection, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.waits_for(task)

    def _look_at_pace(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for connection in list(self._connections):
            connection.check_pace(now_s)
        if not self._is_ending:
            loop.call_later(_PACE_EVERY_S, self._look_at_pace, loop)

    def _levels(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "held_bytes": self.room.taken,
            "held_bytes_limit": self.room.size,
            "waiting_connections": self.room.waiting,
            "topics": len(self._processors),
        }


async def _wait_until(holds: Callable[[], bool], end_s: float) -> None:
    while True:
        if holds() or asyncio.get_running_loop().time() >= end_s:
            return
        await asyncio.sleep(_LOOK_S)


def own_address(host: str) -> str:
    """Return ``host``. If it is a wildcard, return the address at which other machines reach this machine."""
    if host not in {"0.0.0.0", "::", ""}:  # noqa: S104  compared, not listened on
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # connecting a UDP socket sends nothing; it only selects a route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def server_tls(own: BatchBrokerSettings) -> ssl.SSLContext | None:
    """Return the TLS context for clients, or None without TLS. Raise ConfigError if a certificate or key file is
    unusable."""
    if own.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(own.certificate, own.key)
        if own.client_ca is not None:
            context.load_verify_locations(own.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the files of pubsub.broker.tls.*: {error}") from error
    return context


READ_VERSION: Final = 5
"""The version of every READ answer, whatever the request's version."""

_RANGE_BYTES: Final = 4 << 20
_ANSWER_S: Final = 600.0
"""The longest time in seconds to send an answer. While a slow client takes its answer, READ requests of other clients
wait."""


def _get(store: ObjectStore, key: str, start: int, stop: int) -> bytes:
    try:
        return store.get(key, start, stop)
    except TieredStoreError:
        raise
    except Exception as error:
        # Turn every error into an answer, or the end of the connection, because the client waits for one of these.
        _logger.exception("cannot read %s", key)
        raise own_error(error) from error


def plan_read(read: ReadRequest, topics: Topics, topic: Topic) -> tuple[str, int, int]:
    """Return the key and the byte range (end exclusive) that a request asks for, without fetching them. The key is
    within the topic's prefix.

    Raise NotificationCorruptError if the request points outside of the topic, and InvalidRangeError if it points
    outside of the object.
    """
    notification = parse_notification(read.notification.encode(), "a READ")
    key = topics.check_place(notification, topic, "a READ")
    if read.header_only:
        return key, 0, notification.header_size
    start, stop = (0, notification.total_size) if read.offset == -1 else (read.offset, read.offset + read.size)
    if start < 0 or not start <= stop <= notification.total_size:
        raise InvalidRangeError(
            f"bytes {read.offset} to {stop} are not within the batch of {notification.total_size} bytes"
        )
    if stop - start > MOST_READ_BYTES:
        raise InvalidRangeError(
            f"{stop - start} bytes requested, but an answer holds at most {MOST_READ_BYTES}: ask for ranges"
        )
    return key, start, stop
