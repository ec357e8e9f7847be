"""HTTP sessions for the SDKs of Google and Azure, with our pools, timeouts, deadlines and errors.

Both SDKs send their requests by ``requests``, so a session's settings apply to every request.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import requests
from requests.adapters import HTTPAdapter

from tieredstore.backends.base import Buffer
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.http.sockets import (
    BOUNDED_POOLS,
    PIECE_BYTES,
    check_deadline,
    close_pools,
    connection_failure,
    current_deadline,
    note_sent,
)

if TYPE_CHECKING:
    from tieredstore.config.storage import ProxySettings

_METADATA_HOSTS: Final = ("169.254.169.254", "metadata.google.internal")
"""Hosts of metadata servers, which report the identity of the machine that asks. They are never asked through the
proxy, because they would then report the identity of the proxy's machine.
"""

AnySession = TypeVar("AnySession", bound=requests.Session)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of a session.

    The pool keeps up to ``connections`` open for reuse; more may be open at once. Each timeout limits one step. The
    connect timeout covers making a connection and sending a piece; the read timeout covers waiting for the next bytes.
    """

    connections: int = 32
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    def timeouts_s(self) -> tuple[float, float]:
        """Return connect and read timeout of the next request, shortened to the deadline."""
        deadline = current_deadline()
        if deadline is None:
            return self.connect_timeout_s, self.read_timeout_s
        deadline.check("the request")
        left_s = max(deadline.remaining_s(), 0.001)
        return min(self.connect_timeout_s, left_s), min(self.read_timeout_s, left_s)


class Buffers:
    """Several buffers sent as one body, without joining them. The body can be sent again."""

    def __init__(self, *buffers: Buffer) -> None:
        self.views: list[memoryview[int]] = [byte_view(buffer) for buffer in buffers]

    def __len__(self) -> int:
        return sum(map(len, self.views))


class BoundedAdapter(HTTPAdapter):
    """Adapter that sends each request once, within our limits, and ignores the caller's timeouts."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        super().__init__(pool_connections=4, pool_maxsize=limits.connections, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        """Make the pools with our piece size."""
        super().init_poolmanager(connections, maxsize, block, blocksize=PIECE_BYTES, **options)
        self.poolmanager.pool_classes_by_scheme = BOUNDED_POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Make the pools of a proxy with our piece size."""
        manager = super().proxy_manager_for(proxy, blocksize=PIECE_BYTES, **options)
        manager.pool_classes_by_scheme = BOUNDED_POOLS
        if proxy.lower().startswith("socks"):
            # This import needs PySocks, which only users of a proxy have.
            from tieredstore.backends.http.socks_sockets import SOCKS_POOLS  # noqa: PLC0415

            manager.pool_classes_by_scheme = SOCKS_POOLS
        return manager

    def close(self) -> None:
        """Close all idle connections."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            close_pools(manager)

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send with our timeouts; send a long body piece by piece."""
        # Replace the caller's timeout, which both SDKs, and requests itself, pass by keyword.
        options["timeout"] = self._limits.timeouts_s()
        request.body = _in_pieces(request.body)
        return super().send(request, *args, **options)


class StoreAdapter(BoundedAdapter):
    """Adapter that raises connection failures as ``StoreUnavailableError``.

    Do not use this adapter while an SDK looks for credentials, because the SDK tries its next source only after an
    error of ``requests`` itself.
    """

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send; raise StoreUnavailableError if no answer arrives, StoreError for an untrusted certificate."""
        try:
            return super().send(request, *args, **options)
        except requests.RequestException as error:
            failure = connection_failure(error)
        # Do not chain the library's error, because a traceback would show the request's URL, which may contain a
        # signature.
        raise failure from None


def _in_pieces(body: Any) -> Any:
    """Wrap a long ``body`` of buffers so that it is read piece by piece. Return a short body of buffers as bytes, and a
    body of another type unchanged.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        body = Buffers(cast("Buffer", body))
    if not isinstance(body, Buffers):
        return body
    return _PiecewiseBody(body.views) if len(body) > PIECE_BYTES else b"".join(body.views)


class _PiecewiseBody:
    """A body as a file that is read in pieces.

    Without a ``read`` method, the library would send the body by one ``sendall``. That call must end within the connect
    timeout, so a large body would fail on a slow line.
    """

    def __init__(self, views: Iterable[memoryview]) -> None:
        self._pieces = (view[at : at + PIECE_BYTES] for view in views for at in range(0, len(view), PIECE_BYTES))
        self._sent = 0

    def read(self, _: int = -1) -> memoryview | bytes:
        """Return the next piece without a copy, or empty bytes at the end. Ignore the requested size."""
        # The library asks for the next piece only after it has sent the previous pieces. So count the previous pieces
        # as sent.
        note_sent(self._sent)
        check_deadline("sending the body")
        piece = next(self._pieces, b"")
        self._sent += len(piece)
        return piece


def configure(session: AnySession, adapter: HTTPAdapter, proxy: ProxySettings | None) -> AnySession:
    """Mount ``adapter`` for all URLs. Use ``proxy`` or, if it is None, the environment's proxy."""
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # Treat a redirection as an ordinary answer, because following it would send bodies and credentials to another host.
    untyped: Any = session
    untyped.get_redirect_target = _nowhere
    # Set our own authentication, because otherwise ``requests`` would replace the chosen credentials by a password
    # for the host from ~/.netrc.
    session.auth = lambda request: request
    session.hooks["response"].append(_read_if_refused)
    if proxy is not None:
        # Ignore the environment's variables, because a proxy in them would override the configured proxy.
        session.trust_env = False
        session.verify = certificates()
        session.proxies = proxies_of(proxy)
    return session


def proxies_of(proxy: ProxySettings) -> dict[str, str]:
    """Return the proxy table of ``requests``: all hosts use ``proxy``, except the metadata servers."""
    return {"http": proxy.url, "https": proxy.url, **{f"http://{host}": "" for host in _METADATA_HOSTS}}


def certificates() -> str | bool:
    """Return the path of the environment's bundle of trusted certificates, or True for the library's own bundle."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True


def _read_if_refused(response: requests.Response, **_: object) -> None:
    """Read the body of an error or redirection, because the SDKs do not read it, and a connection with an unread body
    cannot be reused.
    """
    if response.status_code == requests.codes.unauthorized or response.is_redirect:
        response.content  # noqa: B018  this property reads the body


def _nowhere(_: requests.Response) -> None:
    return None
