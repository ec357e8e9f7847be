"""Base of the tests' servers and proxies: a threaded server on the loopback interface that can be stopped."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import join


class LoopbackServer(socketserver.ThreadingTCPServer):
    """Server that tracks open connections, because a kept-alive one would keep its thread, and so the server, alive."""

    allow_reuse_address = True
    request_queue_size = 128  # a client that finds the queue full tries again after a second

    def __init__(self, handler: Callable[[Any, Any, Any], socketserver.BaseRequestHandler], port: int = 0) -> None:
        self._open: set[socket.socket] = set()
        self._threads_of_clients: list[threading.Thread] = []
        super().__init__(("127.0.0.1", port), handler)

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def process_request(self, request: object, client_address: object) -> None:
        if isinstance(request, socket.socket):
            self._open.add(request)
            name = f"the thread of a client of the test server at port {self.port}"
            # A daemon, because a thread that does not end must fail one test, and not keep the whole run from ending.
            thread = threading.Thread(
                target=self.process_request_thread, args=(request, client_address), name=name, daemon=True
            )
            self._threads_of_clients = [*(each for each in self._threads_of_clients if each.is_alive()), thread]
            thread.start()

    def shutdown_request(self, request: object) -> None:
        if isinstance(request, socket.socket):
            self._open.discard(request)
            super().shutdown_request(request)

    def server_close(self) -> None:
        """Close the server, and wait for the threads of its clients. Fail the test if one does not end."""
        super().server_close()
        join(*self._threads_of_clients)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def open_connections(self) -> int:
        """Number of open client connections."""
        return len(self._open)

    def cut_all(self) -> None:
        """End every connection, and so the threads of kept-alive ones."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class RunningServer:
    """Context manager that runs a server."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self.port = server.port
        # Poll at a short interval, because shutdown waits for a poll.
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutdown = threading.Thread(target=self._server.shutdown, name="shutdown of a test server", daemon=True)
        shutdown.start()
        join(shutdown, self._thread)
        self._server.cut_all()
        self._server.server_close()


class ConnectionServer(RunningServer, ABC):
    """Context manager of a server that calls ``serve`` with each connection, on a thread for each."""

    def __init__(self, port: int = 0) -> None:
        served = self.serve

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                served(self.request)

        super().__init__(LoopbackServer(Handler, port))

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """Serve one client. The caller closes the connection."""


def relay(client: socket.socket, server: socket.socket, *, pause: Callable[[], object] = lambda: None) -> None:
    """Pass bytes in both directions until both ends have ended. Call ``pause`` before anything is passed on."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError, ValueError):  # ssl raises ValueError if the other direction has just ended
            while data := source.recv(1 << 16):
                pause()
                sink.sendall(data)
        pause()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    there = threading.Thread(target=pump, args=(client, server), daemon=True)
    there.start()
    pump(server, client)
    join(there)
