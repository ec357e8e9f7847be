"""Answers METADATA: which topics there are, who has them, how they are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tieredstore.errors import TieredStoreError
from tieredstore.pubsub.broker.connection import Connection
from tieredstore.pubsub.format.packet_writing import error_response, response_bytes
from tieredstore.pubsub.format.packets import Code, MetadataAnswer, PacketType, Request, Response
from tieredstore.pubsub.governor.directory import Assignment, Directory, KnownTopic, metadata_of


class MetadataAnswers:
    """Answers of one broker, on its loop. They are everybody's, as at MemQ's brokers."""

    def __init__(
        self, directory: Directory, assignment: Assignment, look: Callable[[str], Awaitable[KnownTopic | None]]
    ) -> None:
        """``look`` asks the directory's sources on a thread."""
        self._directory = directory
        self._assignment = assignment
        self._look = look

    def answer(
        self, connection: Connection, request: Request, names: tuple[str, ...]
    ) -> Coroutine[Any, Any, None] | None:
        """Answer at once; or, where topics have to be looked up, what does so then."""
        if all(self._directory.known(name) is not None or self._directory.is_unknown(name) for name in names):
            self._tell(connection, request, names)
            return None
        return self._look_and_tell(connection, request, names)

    async def _look_and_tell(self, connection: Connection, request: Request, names: tuple[str, ...]) -> None:
        for name in names:
            if self._directory.known(name) is None and not self._directory.is_unknown(name):
                try:
                    if await self._look(name) is None:
                        break  # nobody has the store asked for more than one name that is none
                except TieredStoreError as error:
                    _refuse(connection, request, Code.REQUEST_FAILED, str(error))
                    return
        self._tell(connection, request, names)

    def _tell(self, connection: Connection, request: Request, names: tuple[str, ...]) -> None:
        topics: list[KnownTopic] = [] if names else self._directory.all()
        for name in names:
            known = self._directory.known(name)
            if known is None:
                _refuse(connection, request, Code.NOT_FOUND, f"there is no topic {name}")
                return
            topics.append(known)
        answer = MetadataAnswer(tuple(metadata_of(known, self._assignment) for known in topics))
        connection.send(
            response_bytes(Response(request.version, request.request_id, PacketType.METADATA, Code.OK, payload=answer))
        )


def _refuse(connection: Connection, request: Request, code: Code, why: str) -> None:
    connection.send(error_response(request.request_id, request.version, PacketType.METADATA, code, why))
