"""HTTP server on the loopback interface that speaks a cloud's protocol, and gives wrong answers as a test chooses."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from tests.support.faulty_server.service import Service, Step
from tests.support.faulty_server.way import Exchange, Way
from tests.support.faulty_server.wire import Answer, Cut, Pause, Piece, Reply, Request, read_request
from tests.support.network.loopback_server import ConnectionServer

_TO_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """Received request, its step, and the way it was answered (None: honestly)."""

    step: Step
    request: Request
    way: Way | None


class FaultyServer(ConnectionServer):
    """Context manager of a running server with one bucket and a thread per client.

    The server is honest until ``lie`` is called. ``asked`` lists all requests in order of arrival.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.asked: list[Asked] = []
        self._ways: list[Way] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._calm = threading.Event()
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._calm.set()
        super().__exit__(kind, error, trace)

    def lie(self, *ways: Way) -> None:
        """Answer each further request by the first of ``ways`` that covers its step."""
        with self._lock:
            self._calm.clear()
            self._ways = list(ways)

    def be_honest(self) -> None:
        """Answer correctly from now on; end the slow answers that are still being sent."""
        with self._lock:
            self._ways = []
            self._calm.set()

    def forget(self) -> None:
        """Answer correctly from now on, and remove all objects."""
        self.be_honest()
        self.service.objects.clear()
        self.asked.clear()

    def cut_all(self) -> None:
        """End every connection."""
        self._server.cut_all()

    @property
    def open_connections(self) -> int:
        """Number of open client connections."""
        return self._server.open_connections

    def steps(self) -> list[Step]:
        """Return the steps of all requests so far."""
        return [asked.step for asked in list(self.asked)]

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of one client."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError, ValueError), connection.makefile("rb") as stream:
            while (request := read_request(stream, connection.sendall)) is not None:
                if not self._answer(connection, request):
                    break

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer a request; return True if the connection continues."""
        step = self.service.step(request)
        with self._lock:
            way = next((way for way in self._ways if step in way.steps), None)
        self.asked.append(Asked(step, request, way))
        exchange = Exchange(request, step, self.service)
        answer: Answer = exchange.honest() if way is None else way.answer(exchange)
        if isinstance(answer, Reply):
            answer = answer.pieces(with_body=request.method != "HEAD")
        return self._send(connection, answer)

    def _send(self, connection: socket.socket, pieces: Iterable[Piece]) -> bool:
        is_lie = not isinstance(pieces, list)
        for piece in pieces:
            if isinstance(piece, bytes):
                connection.sendall(piece)
            elif isinstance(piece, Pause):
                self._calm.wait(piece.seconds)
            else:
                _end(connection, piece)
                return False
            if self._stopping.is_set() or (is_lie and self._calm.is_set()):
                return False
        return True


def _end(connection: socket.socket, cut: Cut) -> None:
    if cut.reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _TO_RESET)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR) if not cut.reset else connection.close()
