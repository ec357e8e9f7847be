"""Answers READ: a batch, its index, or a range of it, piece by piece out of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import InvalidRange, ObjectNotFound, TieredStoreError
from tieredstore.pubsub.broker.connection import Connection
from tieredstore.pubsub.errors import NotificationCorrupt
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.format.packet_writing import (
    MOST_READ_BYTES,
    error_response,
    read_response_head,
    response_bytes,
)
from tieredstore.pubsub.format.packets import Code, PacketType, ReadAnswer, ReadRequest, Request, Response
from tieredstore.pubsub.queue.topics import Topic, Topics

READ_VERSION: Final = 5
"""What a READ is answered in, whatever was asked in."""

_PIECE_BYTES: Final = 4 << 20
_ANSWER_S: Final = 600.0
"""How long an answer may take to go out: a client that does not read it keeps others from theirs."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The bytes ``start:stop`` of an object that lies where the topic's objects lie."""

    key: str
    start: int
    stop: int

    def pieces(self) -> Iterator[tuple[int, int]]:
        """The ranges to fetch one after the other."""
        for start in range(self.start, self.stop, _PIECE_BYTES):
            yield start, min(start + _PIECE_BYTES, self.stop)


def plan_read(read: ReadRequest, topic: Topic, topics: Topics) -> ReadPlan:
    """What a request asks for. NotificationCorrupt if it points outside of the topic, InvalidRange if not inside of the
    object; nothing is fetched here."""
    notification = parse_notification(read.notification.encode(), "a READ")
    key = topics.check_place(notification, topic, "a READ")
    if read.header_only:
        return ReadPlan(key, 0, notification.header_size)
    start, stop = (0, notification.total_size) if read.offset == -1 else (read.offset, read.offset + read.size)
    if start < 0 or not start <= stop <= notification.total_size:
        raise InvalidRange(f"bytes {read.offset} to {stop} of a batch that has {notification.total_size}")
    if stop - start > MOST_READ_BYTES:
        raise InvalidRange(f"{stop - start} bytes at once, of which an answer holds {MOST_READ_BYTES}: ask for ranges")
    return ReadPlan(key, start, stop)


class ReadAnswers:
    """Answers of one broker; an answer at a time goes out on a connection, so that their pieces do not mix."""

    def __init__(self, threads: Executor, *, at_once: int) -> None:
        self._threads = threads
        self._turns = asyncio.Semaphore(at_once)

    async def answer(
        self, connection: Connection, request: Request, read: ReadRequest, topic: Topic, topics: Topics
    ) -> None:
        """Answer one request. A store that fails in the middle ends the connection: what was begun cannot be unsaid."""
        loop = asyncio.get_running_loop()
        request_id = request.request_id

        def refuse(code: Code, why: str) -> None:
            connection.send(error_response(request_id, READ_VERSION, PacketType.READ, code, why))

        async with self._turns:
            try:
                plan = plan_read(read, topic, topics)
                pieces = plan.pieces()
                first = next(pieces, None)
                data = (
                    b"" if first is None else await loop.run_in_executor(self._threads, _get, topics, plan.key, *first)
                )
            except (NotificationCorrupt, InvalidRange) as error:
                refuse(Code.BAD_REQUEST, str(error))
                return
            except ObjectNotFound:
                # As MemQ's: no data, with an empty payload.
                empty = Response(READ_VERSION, request_id, PacketType.READ, Code.NO_DATA, payload=ReadAnswer(b""))
                connection.send(response_bytes(empty))
                return
            except TieredStoreError as error:
                refuse(Code.REQUEST_FAILED, str(error))
                return
            try:
                async with asyncio.timeout(_ANSWER_S), connection.streaming() as send:
                    await send(read_response_head(READ_VERSION, request_id, plan.stop - plan.start))
                    await send(data)
                    for piece in pieces:
                        if not await send(await loop.run_in_executor(self._threads, _get, topics, plan.key, *piece)):
                            return
            except (TieredStoreError, TimeoutError):
                connection.abort()


def _get(topics: Topics, key: str, start: int, stop: int) -> bytes:
    return bytes(topics.store.get(key, start, stop))
