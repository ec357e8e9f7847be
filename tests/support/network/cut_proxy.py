"""TCP proxy that can cut its two sides off from each other. Data sent during a cut is delivered later."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from types import TracebackType

from tests.support.network.loopback_server import LoopbackServer, RunningServer

_PIECE = 1 << 16


class CutProxy(RunningServer):
    """Context manager that runs a proxy in front of ``host:port``; clients connect to ``address``."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))
        self.flows = threading.Event()
        self.flows.set()
        server = _Server(self)
        super().__init__(server)
        self.address = f"127.0.0.1:{server.port}"

    def cut(self) -> None:
        """Stop all traffic in both directions without closing connections, as if all packets were lost."""
        self.flows.clear()

    def heal(self) -> None:
        """Resume; deliver pending data first."""
        self.flows.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        super().__exit__(kind, error, trace)


class _Server(LoopbackServer):
    def __init__(self, proxy: CutProxy) -> None:
        self.proxy = proxy
        super().__init__(_Handler)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.flows = self.server.proxy.flows
        with suppress(OSError), socket.create_connection(self.server.proxy.upstream, 30) as upstream:
            upstream.settimeout(None)
            there = threading.Thread(target=self._pump, args=(self.request, upstream))
            there.start()
            self._pump(upstream, self.request)
            there.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                self.flows.wait()
                sink.sendall(data)
        self.flows.wait()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
