"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` of a process by HTTP, with few threads and short requests.

This module is separate from ``service``, because a service without an endpoint imports no HTTP modules.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import queue
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

from tieredstore.errors import ConfigError
from tieredstore.metrics import REGISTRY
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork, is_inherited, leave_to_parent
from tieredstore.process.health import Health

_logger: Final = logging.getLogger(__name__)

_THREADS: Final = 3
_WAITING: Final = 16
"""The maximum number of connections that wait for a thread. Further connections are closed at once."""

_REQUEST_S: Final = 5.0
"""The longest time in seconds to receive a request or to send an answer. A slow client occupies one of few threads.
"""

_MAX_HEAD: Final = 16 << 10
_POLL_S: Final = 0.1
_CLOSE_S: Final = 2.0

Page = Callable[[], object]
"""A function that makes the content of an additional page. It returns a value for ``json.dumps``, and runs on a thread
of the endpoint."""


class Endpoint:
    """Answers GET and HEAD requests from construction until ``close``, but not in a forked child.

    ``/metrics`` exports the process's metrics to Prometheus. ``/healthz`` answers with status 200, or 503 if the
    process should be restarted. ``/readyz`` answers with 200, or 503 while the process should get no work.
    ``/healthz`` and ``/readyz`` return a JSON object with the reasons.

    ``pages`` has the functions of further pages, by path: each function returns the value that its page shows as JSON.
    """

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        request_s: float = _REQUEST_S,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        """Open the port. If ``port`` is 0, choose a free port and store it in the attribute ``port``. Raise ConfigError
        if the address cannot be used."""
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"there is no port {port}: choose one from 1 to 65535, or 0 for any free port")
        try:
            self._server = _Server(host, port, health, request_s, pages or {})
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"cannot listen on {host}:{port} for /metrics and /readyz: {reason}; choose another address or port"
            ) from error
        self.host = host
        self.port: int = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="tieredstore-endpoint", daemon=True
        )
        leave_to_parent(self)
        begin_again_after_fork(self)
        self._thread.start()

    def begin_again(self) -> None:
        """Close the port in a forked child, because otherwise the parent could not open the port again."""
        self._server.socket.close()

    def close(self) -> None:
        """Close the port and cut off running answers. Idempotent."""
        if not is_inherited(self) and self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.end()


class _Server(socketserver.TCPServer):
    """Accepts connections on one thread, and answers them on a few other threads."""

    allow_reuse_address = True
    request_queue_size = 32

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        request_s: float,
        pages: Mapping[str, Page],
    ) -> None:
        self.health = health
        self.pages = pages
        self.request_s = request_s
        self._waiting: queue.Queue[tuple[socket.socket, object] | None] = queue.Queue(_WAITING)
        self._open: set[socket.socket] = set()
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        self.address_family = family
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        self._threads = [
            threading.Thread(target=self._answer_all, name=f"tieredstore-endpoint-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def get_request(self) -> tuple[socket.socket, object]:
        """Return the next connection. If the process has no free file descriptor, pause: the connection stays in the
        backlog."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_POLL_S)
            raise

    def process_request(self, request: Any, client_address: object) -> None:
        """Hand the connection to a thread, or close it if too many connections wait. This runs on the thread that
        accepts connections."""
        self._open.add(request)
        try:
            self._waiting.put_nowait((request, client_address))
        except queue.Full:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: object) -> None:  # noqa: ARG002  the base class's signature
        """Log at debug level, because usually a client has disconnected."""
        _logger.debug("a request to %s failed: %r", self.server_address, sys.exception())

    def end(self) -> None:
        """Cut off running answers, and wait briefly for the threads. Call this when no more connections are
        accepted."""
        self.server_close()
        deadline = Deadline.after(_CLOSE_S)
        with contextlib.suppress(queue.Empty):
            while waiting := self._waiting.get_nowait():
                self.shutdown_request(waiting[0])
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline.remaining_s()))

    def _answer_all(self) -> None:
        while (connection := self._waiting.get()) is not None:
            request, client_address = connection
            try:
                self.finish_request(request, client_address)
            except Exception:  # noqa: BLE001  one client's error must not end the thread
                self.handle_error(request, client_address)
            finally:
                self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request completely, and then sends the whole answer at once. Reading and answering each have a
    deadline."""

    server_version = "tieredstore"
    sys_version = ""

    def setup(self) -> None:
        """Read the head of the request."""
        assert isinstance(self.server, _Server)
        self._server = self.server
        self.connection = self.request
        self.rfile = io.BytesIO(_head_of(self.connection, self._server.request_s))
        self._response = io.BytesIO()
        self.wfile = self._response

    def finish(self) -> None:
        """Send the answer."""
        self.connection.settimeout(self._server.request_s)  # this limit applies to the whole answer
        self.connection.sendall(self._response.getvalue())

    def do_GET(self) -> None:
        """Answer with a page."""
        try:
            self._answer_page()
        except Exception:
            _logger.exception("cannot answer %s", self.path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain="See the log of the process.")

    def do_HEAD(self) -> None:
        """Answer without the page's body."""
        self.do_GET()

    def _answer_page(self) -> None:
        server = self._server
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(REGISTRY), content_type)
            case "/healthz":
                self._tell("alive", server.health.silent())
            case "/readyz":
                self._tell("ready", server.health.reasons())
            case path if path in server.pages:
                self._answer_json(HTTPStatus.OK, server.pages[path]())
            case _:
                paths = ", ".join(("/metrics", "/healthz", *server.pages))
                self.send_error(HTTPStatus.NOT_FOUND, explain=f"Available: {paths} and /readyz.")

    def _tell(self, state: str, reasons: Mapping[str, str]) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        self._answer_json(status, {state: not reasons, "reasons": reasons})

    def _answer_json(self, status: HTTPStatus, value: object) -> None:
        self._answer(status, (json.dumps(value, indent=2) + "\n").encode(), "application/json")

    def _answer(self, status: HTTPStatus, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at debug level, since they arrive every few seconds."""
        _logger.debug(format, *args)


def _head_of(connection: socket.socket, request_s: float) -> bytes:
    """Return a request's lines up to the empty line. Return no bytes if the lines arrive too late or are too long."""
    deadline = Deadline.after(request_s)
    head = bytearray()
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        remaining_s = deadline.remaining_s()
        if remaining_s <= 0 or len(head) > _MAX_HEAD:
            return b""
        connection.settimeout(remaining_s)
        try:
            received = connection.recv(_MAX_HEAD)
        except OSError:
            return b""
        if not received:
            return b""
        head += received
    return bytes(head)
