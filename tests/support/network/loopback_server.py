"""Base of the tests' proxies: a threaded server on the loopback interface that can be stopped."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class LoopbackServer(socketserver.ThreadingTCPServer):
    """Server that tracks open connections, because a kept-alive one would keep its thread, and so the server, alive."""

    allow_reuse_address = True
    daemon_threads = False
    block_on_close = True

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def process_request(self, request: object, client_address: object) -> None:
        if isinstance(request, socket.socket):
            self._open.add(request)
            super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        if isinstance(request, socket.socket):
            self._open.discard(request)
            super().shutdown_request(request)

    def cut_all(self) -> None:
        """Close kept-alive connections so that their threads end."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class RunningServer:
    """Context manager that runs a server."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        # Poll at a short interval, because shutdown waits for a poll.
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.cut_all()
        self._server.server_close()
