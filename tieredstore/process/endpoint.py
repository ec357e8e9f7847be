"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` of a process by HTTP, with few connections and short requests.

This module is separate from ``service``, because a service without an endpoint imports no HTTP modules.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
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

_CONNECTIONS: Final = 19
"""The maximum number of connections, each with a thread. Further connections are closed at once."""

_REQUEST_S: Final = 5.0
"""The longest time in seconds to receive a request or to send an answer. A slow client occupies one of few connections.
"""

_MAX_HEAD: Final = 16 << 10
_POLL_S: Final = 0.1

Page = Callable[[], object]
"""A function that makes the content of an additional page. It returns a value for ``json.dumps``, and runs on a thread
of the endpoint."""


class Endpoint(socketserver.ThreadingTCPServer):
    """Answers GET and HEAD requests from construction until ``close``, but not in a forked child.

    ``/metrics`` exports the process's metrics to Prometheus. ``/healthz`` answers with status 200, or 503 if the
    process should be restarted. ``/readyz`` answers with 200, or 503 while the process should get no work.
    ``/healthz`` and ``/readyz`` return a JSON object with the reasons.

    ``pages`` has the functions of further pages, by path: each function returns the value that its page shows as JSON.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 32

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
        self.host, self.health, self.pages, self.request_s = host, health, pages or {}, request_s
        self._open: set[socket.socket] = set()
        try:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family, _, _, _, address = addresses[0]
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"cannot listen on {host}:{port} for /metrics and /readyz: {reason}; choose another address or port"
            ) from error
        self.port: int = self.socket.getsockname()[1]
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="tieredstore-endpoint", daemon=True
        )
        leave_to_parent(self)
        begin_again_after_fork(self)
        self._thread.start()

    def begin_again(self) -> None:
        """Close the port in a forked child, because otherwise the parent could not open the port again."""
        self.socket.close()

    def close(self) -> None:
        """Close the port and cut off running answers. Idempotent."""
        if not is_inherited(self) and self._thread.is_alive():
            self.shutdown()
            self._thread.join()
            self.server_close()
            for connection in list(self._open):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, object]:
        """Return the next connection. If the process has no free file descriptor, pause: the connection stays in the
        backlog."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_POLL_S)
            raise

    def process_request(self, request: Any, client_address: object) -> None:
        """Answer on a new thread, or close the connection if too many are open. This runs on the thread that accepts
        connections."""
        if len(self._open) >= _CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: object) -> None:  # noqa: ARG002  the base class's signature
        """Log at debug level, because usually a client has disconnected."""
        _logger.debug("a request to %s failed: %r", self.server_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    """Reads one request completely, and then sends the whole answer at once. Reading and answering each have a
    deadline."""

    server_version = "tieredstore"
    sys_version = ""

    def setup(self) -> None:
        """Read the head of the request."""
        assert isinstance(self.server, Endpoint)
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
