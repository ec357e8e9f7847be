"""A broker: takes Messages of many producers by MemQ's packets, stores them in batches, answers once they stand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from tieredstore.config import Settings
from tieredstore.errors import ConfigError, MessageCorrupt, PacketCorrupt, TieredStoreError
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.broker.authorization import Authorizer, Client, EverybodyMay
from tieredstore.pubsub.broker.checks import check_message
from tieredstore.pubsub.broker.connection import Connection
from tieredstore.pubsub.broker.counts import SNAPSHOTS, BrokerCounts
from tieredstore.pubsub.broker.directory import AllTopics, Assignment, Directory, KnownTopic, StoreTopics, metadata_of
from tieredstore.pubsub.broker.listening import own_address, server_tls
from tieredstore.pubsub.broker.processor import BatchLimits, TopicProcessor
from tieredstore.pubsub.broker.reads import ReadAnswers
from tieredstore.pubsub.broker.room import Room
from tieredstore.pubsub.format.packets import (
    BrokerAddress,
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    ReadRequest,
    Request,
    Response,
    WriteAnswer,
    WriteRequest,
    error_response,
    parse_request,
    request_head,
    response_bytes,
)
from tieredstore.pubsub.topics import Topics
from tieredstore.pubsub.writer import BatchWriter

_logger: Final = logging.getLogger(__name__)

_READS_AT_ONCE: Final = 16
_LOOKUPS: Final = 4
_LAST_WORDS_S: Final = 2.0
_UPLOADS_A_SETTING: Final = 4
_OK: Final = WriteAnswer()  # no slots, and no version: clients stay with taking brokers in turn

_Asked = TypeVar("_Asked")
_Answered = TypeVar("_Answered")
_Waiting = Callable[[TopicProcessor | None, TieredStoreError | None], None]


class Broker:
    """Answers from ``start`` until ``drain``. All of it on one loop but for the store, which has threads."""

    def __init__(
        self,
        topics: Topics,
        *,
        assignment: Assignment | None = None,
        authorizer: Authorizer | None = None,
        directory: Directory | None = None,
    ) -> None:
        settings: Settings = topics.settings
        self.own = settings.broker
        self.counts = BrokerCounts()
        self.directory = Directory(StoreTopics(topics)) if directory is None else directory
        self.room = Room(self.own.buffer_bytes)
        self._settings = settings
        self._assignment = assignment or AllTopics(lambda: self.address, serves_reads=self.own.serve_reads)
        self._authorizer = authorizer or EverybodyMay()
        self._connections: set[Connection] = set()
        self._all_gone = asyncio.Event()
        self._is_ending = False
        self._processors: dict[str, TopicProcessor] = {}
        self._preparing: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._uploads = ThreadPool(_UPLOADS_A_SETTING * settings.pubsub.uploads, "tieredstore-broker-upload")
        self._lookups = ThreadPool(_LOOKUPS, "tieredstore-broker-lookup")
        self._reads: ReadAnswers | None = None
        self._read_threads = ThreadPool(_READS_AT_ONCE, "tieredstore-broker-read")
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port = self.own.listen[1]
        self._forget_counts = SNAPSHOTS.add(lambda: self.counts.snapshot(self._levels()))

    @property
    def address(self) -> BrokerAddress:
        """What clients are told."""
        host, port = self.own.advertised or (own_address(self.own.listen[0]), self._port)
        return BrokerAddress(self.own.rack, host, port)

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    async def start(self) -> None:
        """Begin to listen; ConfigError if nothing can listen there."""
        self._loop = asyncio.get_running_loop()
        self._reads = ReadAnswers(self._read_threads, at_once=_READS_AT_ONCE)
        host, port = self.own.listen
        try:
            self._server = await self._loop.create_server(
                self._connect, host, port, ssl=server_tls(self._settings), backlog=1024
            )
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"no broker can listen on {host}:{port}: {reason}; see pubsub.broker.listen") from error
        self._port = self._server.sockets[0].getsockname()[1]
        _logger.info("broker: listens on %s:%d, clients are told %s:%d", host, self._port, *self._told())

    def _told(self) -> tuple[str, int]:
        return self.address.ip, self.address.port

    async def drain(self, seconds: float) -> None:
        """Take no more, store and answer what is held, and end all connections; after ``seconds`` at the latest."""
        self._is_ending = True
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.stop_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await asyncio.gather(*(processor.drained() for processor in self._processors.values()))
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), _LAST_WORDS_S)
        self.abandon()

    def abandon(self) -> None:
        """End at once: nothing more is answered, what is held is lost."""
        self._is_ending = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        for processor in self._processors.values():
            processor.close()
        for pool in (self._uploads, self._lookups, self._read_threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._forget_counts()

    # --- of connections ---

    def opened(self, connection: Connection) -> bool:
        """A client came."""
        if self._is_ending or len(self._connections) >= self.own.connections:
            self.counts.refused_connections += 1
            return False
        self.counts.connections_opened += 1
        self._connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        """It went."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    def request(self, connection: Connection, frame: memoryview, held: int) -> None:
        """One request; ``held`` bytes of room are given back by whatever becomes of it."""
        try:
            request = parse_request(frame)
        except PacketCorrupt as error:
            self.counts.invalid_requests += 1
            version, request_id, kind = request_head(frame)
            self.room.give_back(held)
            connection.send(error_response(request_id, version, kind, Code.BAD_REQUEST, str(error)))
            return
        match request.payload:
            case WriteRequest() as write:
                self.counts.write_requests += 1
                self._write(connection, request, write, held)
            case MetadataRequest(topics=names):
                self.counts.metadata_requests += 1
                self._tell(connection, request, names)
            case ReadRequest() as read:
                self.counts.read_requests += 1
                self._read(connection, request, read)

    # --- WRITE ---

    def _write(self, connection: Connection, request: Request, write: WriteRequest, held: int) -> None:
        if not self._authorizer.allows(_client(connection), PacketType.WRITE, write.topic):
            self.room.give_back(held)
            self._refuse_access(connection, request, write.topic)
            return
        self._with_processor(write.topic, partial(self._store, connection, request, write, held))

    def _store(
        self,
        connection: Connection,
        request: Request,
        write: WriteRequest,
        held: int,
        processor: TopicProcessor | None,
        failure: TieredStoreError | None,
    ) -> None:
        if processor is None:
            self.room.give_back(held)
            code, why = self._why_not_here(write.topic, failure)
            self._refuse(connection, request, code, why)
            return
        try:
            header = check_message(write, processor.limits.message_size)
        except MessageCorrupt as error:
            self.counts.invalid_requests += 1
            self.room.give_back(held)
            self._refuse(connection, request, Code.BAD_REQUEST, str(error))
            return
        self.counts.message_bytes += len(write.data)
        if not header.record_count:
            # As MemQ's: acknowledged and not stored. Its reader leaves out what follows such a Message in a batch.
            self.counts.empty_messages += 1
            self.room.give_back(held)
            self._acknowledge(connection, request, None)
            return
        if write.no_acks:
            self._acknowledge(connection, request, None)
            processor.take(write.data, header, held, _nobody_waits)
        else:
            processor.take(write.data, header, held, partial(self._acknowledge, connection, request))

    def _acknowledge(self, connection: Connection, request: Request, failure: TieredStoreError | None) -> None:
        if failure is not None:
            self._refuse(connection, request, Code.REQUEST_FAILED, str(failure))
            return
        connection.send(
            response_bytes(Response(request.version, request.request_id, PacketType.WRITE, Code.OK, payload=_OK))
        )

    def _why_not_here(self, topic: str, failure: TieredStoreError | None) -> tuple[Code, str]:
        if failure is not None:
            return Code.REQUEST_FAILED, str(failure)
        if self.directory.known(topic) is not None:
            self.counts.redirected_requests += 1
            return Code.REDIRECT, f"topic {topic} is at other brokers: ask for its metadata again"
        return Code.NOT_FOUND, f"there is no topic {topic}"

    def _with_processor(self, name: str, then: _Waiting) -> None:
        """Go on with the topic's processor, None if this broker has none; at once where it is known."""
        if self.directory.known(name) is not None and not self._assignment.serves(name):
            then(None, None)
        elif (processor := self._processors.get(name)) is not None:
            then(processor, None)
        elif name in self._preparing:
            self._preparing[name].append(then)
        elif self.directory.is_unknown(name):
            then(None, None)
        else:
            self._preparing[name] = [then]
            self._begin(self._prepare(name))

    async def _prepare(self, name: str) -> None:
        assert self._loop is not None
        processor, failure = None, None
        try:
            known = self.directory.known(name) or await self._in_thread(self.directory.look, name)
            if known is not None and self._assignment.serves(name):
                processor = await self._in_thread(self._processor, known)
                self._processors[name] = processor
        except TieredStoreError as error:
            failure = error
        for then in self._preparing.pop(name):
            then(processor, failure)

    def _processor(self, known: KnownTopic) -> TopicProcessor:
        """On a thread: the queue of a topic may have to be asked for."""
        assert self._loop is not None
        topic, topics = known.topic, known.topics
        if topic is None or topics is None:
            raise ConfigError(f"this broker cannot store topic {known.name}: see its log")
        pubsub = topics.settings.pubsub
        limits = BatchLimits(
            pubsub.batch_bytes, pubsub.batch_ms / 1000, pubsub.batch_messages, pubsub.delivery_timeout_ms / 1000
        )
        writer = BatchWriter(topics, topic, topics.queue(topic))
        return TopicProcessor(
            topic.name,
            writer,
            limits,
            loop=self._loop,
            uploads=self._uploads,
            give_back=self.room.give_back,
            counts=self.counts,
            partitions=topic.partitions if self.own.batch_by == "producer" else None,
        )

    # --- METADATA and READ ---

    def _tell(self, connection: Connection, request: Request, names: tuple[str, ...]) -> None:
        if all(self.directory.known(name) is not None or self.directory.is_unknown(name) for name in names):
            self._tell_known(connection, request, names)
        else:
            self._begin(self._look_and_tell(connection, request, names))

    async def _look_and_tell(self, connection: Connection, request: Request, names: tuple[str, ...]) -> None:
        for name in names:
            if self.directory.known(name) is None and not self.directory.is_unknown(name):
                try:
                    if await self._in_thread(self.directory.look, name) is None:
                        break  # nobody has the store asked for more than one name that is none
                except TieredStoreError as error:
                    self._refuse(connection, request, Code.REQUEST_FAILED, str(error))
                    return
        self._tell_known(connection, request, names)

    def _tell_known(self, connection: Connection, request: Request, names: tuple[str, ...]) -> None:
        topics: list[KnownTopic] = [] if names else self.directory.all()
        for name in names:
            known = self.directory.known(name)
            if known is None:
                self._refuse(connection, request, Code.NOT_FOUND, f"there is no topic {name}")
                return
            topics.append(known)
        answer = MetadataAnswer(tuple(metadata_of(known, self._assignment) for known in topics))
        connection.send(
            response_bytes(Response(request.version, request.request_id, PacketType.METADATA, Code.OK, payload=answer))
        )

    def _read(self, connection: Connection, request: Request, read: ReadRequest) -> None:
        known = self.directory.known(read.topic)
        if not self.own.serve_reads:
            self._refuse(connection, request, Code.BAD_REQUEST, "this broker does not serve reads")
        elif not self._authorizer.allows(_client(connection), PacketType.READ, read.topic):
            self._refuse_access(connection, request, read.topic)
        elif known is None or known.topic is None or known.topics is None:
            self._refuse(connection, request, Code.NOT_FOUND, f"there is no topic {read.topic}")
        else:
            assert self._reads is not None
            self._begin(self._reads.answer(connection, request, read, known.topic, known.topics))

    # --- of all ---

    def _refuse_access(self, connection: Connection, request: Request, topic: str) -> None:
        self.counts.unauthorized_requests += 1
        self._refuse(connection, request, Code.UNAUTHORIZED, f"topic {topic} is not open to {_name(connection)}")

    def _refuse(self, connection: Connection, request: Request, code: Code, why: str) -> None:
        kind = _KINDS[type(request.payload)]
        connection.send(error_response(request.request_id, request.version, kind, code, why))

    def _connect(self) -> Connection:
        assert self._loop is not None
        return Connection(self, self.room, self._loop)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_thread(self, work: Callable[[_Asked], _Answered], asked: _Asked) -> _Answered:
        assert self._loop is not None
        return await self._loop.run_in_executor(self._lookups, work, asked)

    def _levels(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "held_bytes": self.room.taken,
            "held_bytes_limit": self.room.size,
            "waiting_connections": self.room.waiting,
            "topics": len(self._processors),
        }


_KINDS: Final = {
    WriteRequest: PacketType.WRITE,
    MetadataRequest: PacketType.METADATA,
    ReadRequest: PacketType.READ,
}


def _nobody_waits(failure: TieredStoreError | None) -> None:
    """A client that wanted no acknowledgement of what is stored."""


def _client(connection: Connection) -> Client:
    return Client(connection.address, connection.principal)


def _name(connection: Connection) -> str:
    return connection.principal or connection.address
