"""Bounded connections (see ``sockets``) through a SOCKS proxy. Needs PySocks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import socks
from urllib3.contrib.socks import SOCKSConnection, SOCKSHTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from tieredstore.backends.http.sockets import Address, BoundedConnection, bound_socket, first_connected, pools

if TYPE_CHECKING:
    _Connection = SOCKSHTTPSConnection
else:
    _Connection = object


class BoundedSocksConnection(_Connection):
    """Mix-in for urllib3's connections through a SOCKS proxy. List it before ``BoundedConnection`` in the bases."""

    def _new_conn(self) -> socks.socksocket:
        host, port = self._socks_options["proxy_host"] or "", int(self._socks_options["proxy_port"] or 0)
        try:
            sock = first_connected(host, port, 0, self._through_proxy, self.timeout)
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"Connection to {self.host} timed out") from error
        except OSError as error:
            # Report a refusal by the proxy as a failed connection.
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _through_proxy(self, address: Address, timeout_s: float | None) -> socks.socksocket:
        options = self._socks_options
        sock = bound_socket(socks.socksocket(*address[:3]))
        try:
            for option in self.socket_options or ():
                sock.setsockopt(*option)
            sock.settimeout(timeout_s)
            sock.set_proxy(
                options["socks_version"],
                options["proxy_host"],
                int(options["proxy_port"] or 0),
                options["rdns"],
                options["username"],
                options["password"],
            )
            sock.connect((self.host.strip("[]"), self.port))
        except BaseException as error:
            sock.close()
            cause = getattr(error, "socket_err", None)
            raise cause or error from error
        return sock


SOCKS_POOLS: Final = pools(SOCKSConnection, SOCKSHTTPSConnection, (BoundedSocksConnection, BoundedConnection))
"""Pools of connections through a SOCKS proxy."""
