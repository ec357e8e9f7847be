"""Connections on which every wait ends by the deadline of the call.

The timeouts of the HTTP libraries limit a single wait. A server could send single bytes, or one "100 Continue" after
the other, and so block a call forever. This can happen in a header, a listing, the body of an error, or a proxy's
answer.

So the socket itself checks the deadline (:func:`within`) before each wait, without a thread. Only the look-up of
a host name may last longer, because the resolver has its own timeouts.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.poolmanager import PoolManager
from urllib3.util.connection import allowed_gai_family

from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.errors import StoreError, StoreUnavailableError, excerpt, redact
from tieredstore.process.deadline import Deadline

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    _Connection = HTTPSConnection
    _Pool = HTTPSConnectionPool
else:
    # For the type checker the mix-ins below derive from urllib3's classes. At run time, ``pools`` derives classes from
    # a mix-in and a class of urllib3.
    _Connection = _Pool = object

PIECE_BYTES: Final = 256 * 1024
"""Size of the pieces in which bodies are sent and received. Timeout and deadline apply to each piece."""

MOST_ANSWER_BYTES: Final = 16 << 20
"""Size of the largest answer that is parsed. Even a listing page of a thousand keys of 1,024 bytes, all escaped, has
only some ten megabytes.
"""

Address: TypeAlias = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]
"""An entry of ``getaddrinfo``."""

AnySocket = TypeVar("AnySocket", bound=socket.socket)
Maybe = TypeVar("Maybe")
P = ParamSpec("P")
Result = TypeVar("Result")

_deadline: Final[ContextVar[Deadline | None]] = ContextVar("tieredstore_http_deadline", default=None)


@contextmanager
def within(deadline: Deadline) -> Generator[None]:
    """Limit this thread's requests in the block: after ``deadline`` they fail with StoreUnavailableError."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> Deadline | None:
    """Return the deadline of the thread's innermost ``within`` block, None outside of any."""
    return _deadline.get()


def check_deadline(what: str) -> None:
    """Raise StoreUnavailableError if the deadline of the ``within`` block has passed."""
    deadline = _deadline.get()
    if deadline is not None:
        deadline.check(what)


def note_sent(position: int) -> None:
    """Record that the body's first ``position`` bytes were sent, so that the upload does not count as stalled."""
    deadline = _deadline.get()
    if deadline is not None and deadline.part is not None:
        deadline.part.report(position)


class _BoundedSocket:
    """Base class that marks the sockets whose waits end by the deadline."""

    __slots__ = ()


def _limit_time(operation: Callable[Concatenate[AnySocket, P], Result]) -> Callable[Concatenate[AnySocket, P], Result]:
    """Run ``operation`` with the socket's timeout or the remaining time, whichever is shorter."""

    def run(sock: AnySocket, /, *args: P.args, **options: P.kwargs) -> Result:
        timeout_s = sock.gettimeout()
        left_s = bounded_timeout_s(timeout_s)
        if left_s == timeout_s:
            return operation(sock, *args, **options)
        sock.settimeout(left_s)
        try:
            return operation(sock, *args, **options)
        finally:
            # Restore the timeout, because the connection's next request has another deadline.
            sock.settimeout(timeout_s)

    return run


@cache
def _bounded_class(kind: type[socket.socket]) -> type[socket.socket]:
    waits = {name: _limit_time(getattr(kind, name)) for name in ("recv", "recv_into", "send", "sendall")}
    return type(f"Bounded{kind.__name__}", (_BoundedSocket, kind), {"__slots__": (), **waits})


def bound_socket(sock: Maybe) -> Maybe:
    """Make ``sock``, with or without TLS, observe the deadline of the thread that uses it. Return ``sock``."""
    # Change the class of the socket, because a socket cannot be wrapped after its TLS handshake. A connection of TLS
    # within TLS needs no change, because it is no socket object, but wraps a bounded socket.
    if isinstance(sock, socket.socket) and not isinstance(sock, _BoundedSocket):
        _change_class(sock)
    return sock


def _change_class(sock: socket.socket) -> None:
    kind: type = type(sock)
    sock.__class__ = _bounded_class(kind)


def bounded_timeout_s(timeout_s: float | None) -> float | None:
    """Return the time left, at most ``timeout_s``; raise TimeoutError if the deadline has passed."""
    deadline = current_deadline()
    if deadline is None:
        return timeout_s
    left_s = deadline.remaining_s()
    if left_s <= 0:
        raise TimeoutError("the call's deadline has passed")
    return left_s if timeout_s is None else min(timeout_s, left_s)


def first_connected(
    host: str, port: int, family: int, connect: Callable[[Address, float | None], AnySocket], timeout_s: float | None
) -> AnySocket:
    """Try ``connect`` on each address of the host (from ``getaddrinfo``); return the result for the first address that
    works.

    ``connect`` gets the address and the timeout. If no address works, raise the OSError of the last one. Each address
    of an unreachable host costs a timeout, so check the deadline before each attempt.
    """
    failures: list[OSError] = []
    for address in socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM):
        left_s = bounded_timeout_s(timeout_s)
        try:
            return connect(address, left_s)
        except OSError as error:
            failures = [error]
    try:
        raise failures[0] if failures else OSError("the host has no address")
    finally:
        # Break a reference cycle: the error refers to this frame, and the frame to the error. The cycle would keep
        # connections open until garbage collection.
        failures.clear()


class BoundedConnection(_Connection):
    """Mix-in for urllib3's connections and their subclasses: each wait ends by the deadline of the call."""

    def _new_conn(self) -> socket.socket:
        def connect(address: Address, timeout_s: float | None) -> socket.socket:
            sock = bound_socket(socket.socket(*address[:3]))
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(timeout_s)
                if self.source_address:
                    sock.bind(self.source_address)
                sock.connect(address[4])
            except BaseException:
                sock.close()
                raise
            return sock

        try:
            sock = first_connected(self._dns_host, self.port or 0, allowed_gai_family(), connect, self.timeout)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"Connection to {self.host} timed out") from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _connect_tls_proxy(self, hostname: str, sock: socket.socket) -> ssl.SSLSocket:
        # urllib3's annotation does not resolve, because urllib3 imports ssl only if Python has that module.
        parent: Any = super()
        tls: ssl.SSLSocket = parent._connect_tls_proxy(hostname, sock)
        return bound_socket(tls)

    def connect(self) -> None:
        """Connect, including proxy and TLS."""
        super().connect()
        bound_socket(self.sock)


class BoundedAnswers(_Pool):
    """Mix-in for urllib3's pools that cuts off an answer longer than any valid one, and follows no redirect.

    For an answer with status 303, urllib3 rewrites the request's headers. It fails on botocore's headers, which may be
    bytes, and leaves the connection open.

    Parsing a listing of a hundred megabytes would take minutes, and gigabytes of memory. So ``stream``, which the SDKs
    call to read the answers that they parse, is limited. Objects' bytes are read without ``stream``.
    """

    def urlopen(self, *args: Any, **options: Any) -> Any:
        """Send the request; cut off an answer that gets too long."""
        response: Any = super().urlopen(*args, **{**options, "redirect": False})
        response.stream = partial(_read_bounded, response, response.stream)
        return response


def _read_bounded(
    response: BaseHTTPResponse, stream: Callable[P, Iterator[bytes]], *args: P.args, **options: P.kwargs
) -> Iterator[bytes]:
    length = 0
    for piece in stream(*args, **options):
        length += len(piece)
        if length > MOST_ANSWER_BYTES:
            response.close()
            raise MalformedAnswerError(
                f"the store's answer is longer than {MOST_ANSWER_BYTES >> 20} MiB, and a page of a listing is "
                "never so long"
            )
        yield piece


def connection_failure(error: Exception) -> StoreError:
    """Return our error for a failed connection, or for a missing or truncated answer."""
    root = _root(error)
    text = excerpt(redact(root), 300) or type(root).__name__
    if isinstance(root, ssl.SSLCertVerificationError):
        return StoreError(f"the store's certificate is not trusted: {text}")
    return StoreUnavailableError(f"the connection to the store failed: {text}")


def _root(error: BaseException) -> BaseException:
    """Return the innermost cause, because the libraries wrap an error several times, and add the URL each time."""
    seen = {id(error)}
    while True:
        inner = [getattr(error, "reason", None), *error.args, error.__cause__]
        following = next((cause for cause in inner if isinstance(cause, BaseException) and id(cause) not in seen), None)
        if following is None:
            return error
        error = following
        seen.add(id(error))


def pools(
    http: type[HTTPConnection] = HTTPConnection,
    https: type[HTTPConnection] = HTTPSConnection,
    before: tuple[type, ...] = (BoundedConnection,),
) -> dict[str, type[HTTPConnectionPool]]:
    """Return pool classes by scheme, for pool managers. ``before`` lists the mix-ins that come first in the bases of
    the pools' connections."""
    # Make the classes by calling `type`, because the libraries' type stubs contradict each other about the base
    # classes.
    return {
        scheme: type(
            f"Bounded{pool.__name__}",
            (BoundedAnswers, pool),
            {"ConnectionCls": type(f"Bounded{kind.__name__}", (*before, kind), {})},
        )
        for scheme, pool, kind in (("http", HTTPConnectionPool, http), ("https", HTTPSConnectionPool, https))
    }


def close_pools(manager: PoolManager) -> None:
    """Close the idle connections of a pool manager, because the manager's own ``clear`` only forgets the pools.

    Without this call, a connection would stay open as long as an error object refers to the connection's answer.
    """
    for key in manager.pools.keys():  # noqa: SIM118  it cannot be iterated over, but copies its keys
        pool = manager.pools.get(key)
        if pool is not None:
            pool.close()
    manager.clear()


BOUNDED_POOLS: Final = pools()
"""Pool classes by scheme, for direct connections and for connections through HTTP proxies."""
