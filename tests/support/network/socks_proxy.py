"""SOCKS5 proxy on the loopback interface that resolves names from its own table and records requests."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.support.network.loopback_server import ConnectionServer, relay
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


class SocksServer(ConnectionServer):
    """Context manager of a running proxy. ``names`` maps resolvable names to loopback ports."""

    def __init__(self, names: Mapping[str, int], *, login: tuple[str, str] | None = None) -> None:
        self.names = dict(names)
        self.login = login
        self.asked: list[Asked] = []
        self.refused_logins = 0
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Check one client's login, and connect the client."""
        with suppress(OSError, EOFError):
            username = self._greet(connection)
            if username is not False:
                self._connect(connection, username)

    def _greet(self, client: socket.socket) -> str | bool | None:
        """Return the user's name, None without a login, False if the login was refused."""
        _, count = _exactly(client, 2)
        offered = _exactly(client, count)
        wanted = _NO_LOGIN if self.login is None else _LOGIN
        if wanted not in offered:
            client.sendall(bytes((5, _REFUSED)))
            return False
        client.sendall(bytes((5, wanted)))
        return None if self.login is None else self._check(client, self.login)

    def _check(self, client: socket.socket, login: tuple[str, str]) -> str | bool:
        _, size = _exactly(client, 2)
        username = _exactly(client, size).decode()
        password = _exactly(client, _exactly(client, 1)[0]).decode()
        right = (username, password) == login
        self.refused_logins += not right
        client.sendall(bytes((1, 0 if right else 1)))
        return username if right else False

    def _connect(self, client: socket.socket, username: str | bool | None) -> None:
        _, _, _, kind = _exactly(client, 4)
        by_name = kind == _BY_NAME
        host = _exactly(client, _exactly(client, 1)[0]).decode() if by_name else socket.inet_ntoa(_exactly(client, 4))
        port = int.from_bytes(_exactly(client, 2), "big")
        self.asked.append(Asked(host, port, by_name, username if isinstance(username, str) else None))
        local = self.names.get(host) if by_name else port
        if local is None:
            client.sendall(bytes((5, 4, 0, 1, 0, 0, 0, 0, 0, 0)))
            return
        with socket.create_connection(("127.0.0.1", local)) as upstream:
            client.sendall(bytes((5, 0, 0, 1, 127, 0, 0, 1)) + port.to_bytes(2, "big"))
            relay(client, upstream)


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
