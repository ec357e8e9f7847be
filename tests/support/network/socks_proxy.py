"""SOCKS5 proxy on the loopback interface that resolves names from its own table and records requests."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.support.network.loopback_server import LoopbackServer, RunningServer
from tieredstore.config.storage import ProxySettings

_BY_NAME: Final = 3
_NO_LOGIN: Final = 0
_LOGIN: Final = 2
_REFUSED: Final = 0xFF


@dataclass(frozen=True)
class Asked:
    """Requested connection: its destination, as the client named it, by name or address."""

    host: str
    port: int
    by_name: bool
    username: str | None


def proxy_at(host: str, port: int, username: str | None = None, password: str | None = None) -> ProxySettings:
    """Return the settings of a proxy."""
    texts = {"host": host, "port": str(port), "username": username, "password": password}
    return ProxySettings.model_validate({f"storage.proxy.{name}": text for name, text in texts.items() if text})


class SocksServer(RunningServer):
    """Context manager of a running proxy. ``names`` maps resolvable names to loopback ports."""

    def __init__(self, names: Mapping[str, int], *, login: tuple[str, str] | None = None) -> None:
        self.names = dict(names)
        self.login = login
        self.asked: list[Asked] = []
        self.refused_logins = 0
        super().__init__(_Server(self))


class _Server(LoopbackServer):
    def __init__(self, proxy: SocksServer) -> None:
        self.proxy = proxy
        super().__init__(_Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  typeshed: BaseServer
    rbufsize = 0

    def handle(self) -> None:
        with suppress(OSError, EOFError):
            username = self._greet()
            if username is not False:
                self._connect(username)

    def _greet(self) -> str | bool | None:
        """Return the user's name, None without a login, False if the login was refused."""
        _, count = self._exactly(2)
        offered = self._exactly(count)
        login = self.server.proxy.login
        wanted = _NO_LOGIN if login is None else _LOGIN
        if wanted not in offered:
            self.wfile.write(bytes((5, _REFUSED)))
            return False
        self.wfile.write(bytes((5, wanted)))
        return None if login is None else self._check(login)

    def _check(self, login: tuple[str, str]) -> str | bool:
        _, size = self._exactly(2)
        username = self._exactly(size).decode()
        password = self._exactly(self._exactly(1)[0]).decode()
        right = (username, password) == login
        self.server.proxy.refused_logins += not right
        self.wfile.write(bytes((1, 0 if right else 1)))
        return username if right else False

    def _connect(self, username: str | bool | None) -> None:
        _, _, _, kind = self._exactly(4)
        by_name = kind == _BY_NAME
        host = self._exactly(self._exactly(1)[0]).decode() if by_name else socket.inet_ntoa(self._exactly(4))
        port = int.from_bytes(self._exactly(2), "big")
        proxy = self.server.proxy
        proxy.asked.append(Asked(host, port, by_name, username if isinstance(username, str) else None))
        local = proxy.names.get(host) if by_name else port
        if local is None:
            self.wfile.write(bytes((5, 4, 0, 1, 0, 0, 0, 0, 0, 0)))
            return
        with socket.create_connection(("127.0.0.1", local)) as upstream:
            self.wfile.write(bytes((5, 0, 0, 1, 127, 0, 0, 1)) + port.to_bytes(2, "big"))
            self._relay(upstream)

    def _relay(self, upstream: socket.socket) -> None:
        there = threading.Thread(target=_pump, args=(self.connection, upstream))
        there.start()
        _pump(upstream, self.connection)
        there.join()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.rfile.read(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
