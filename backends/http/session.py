"""HTTP sessions under the SDKs of Google and Azure: pools, timeouts and deadlines are set here, failures translated
once.

Both SDKs send their requests by ``requests``; a session's settings apply to every request.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import requests
from requests.adapters import HTTPAdapter

from tieredstore.backends.base import Buffer
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.http.deadlines import PIECE_BYTES, check_deadline, current_deadline, note_sent
from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.backends.http.sockets import BOUNDED_POOLS, close_pools
from tieredstore.errors import StoreError, StoreUnavailableError, excerpt
from tieredstore.redaction import redacted

_METADATA_HOSTS: Final = ("169.254.169.254", "metadata.google.internal")
"""The hosts that tell a machine's own identity: through a proxy, they would tell the proxy's."""

AnySession = TypeVar("AnySession", bound=requests.Session)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of a session.

    ``connections`` are kept open for reuse; more may be open at once. The timeouts are of one step: making a
    connection, sending a piece (also bounded by the connect timeout), waiting for the next bytes.
    """

    connections: int = 32
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    def timeouts_s(self) -> tuple[float, float]:
        """Return connect and read timeout of the next request: not beyond the deadline."""
        deadline = current_deadline()
        if deadline is None:
            return self.connect_timeout_s, self.read_timeout_s
        deadline.check("the request")
        left_s = max(deadline.remaining_s(), 0.001)
        return min(self.connect_timeout_s, left_s), min(self.read_timeout_s, left_s)


class Buffers:
    """Several buffers sent as one body, without joining them. It can be sent again."""

    def __init__(self, *buffers: Buffer) -> None:
        self.views: list[memoryview[int]] = [byte_view(buffer) for buffer in buffers]

    def __len__(self) -> int:
        return sum(map(len, self.views))


class BoundedAdapter(HTTPAdapter):
    """Sends requests within our limits, whatever timeouts the caller passes, and never twice."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        super().__init__(pool_connections=4, pool_maxsize=limits.connections, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        """Make the pools, with our piece size."""
        super().init_poolmanager(connections, maxsize, block, blocksize=PIECE_BYTES, **options)
        untyped: Any = self.poolmanager
        untyped.pool_classes_by_scheme = BOUNDED_POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Make the pools behind a proxy, with our piece size."""
        manager = super().proxy_manager_for(proxy, blocksize=PIECE_BYTES, **options)
        manager.pool_classes_by_scheme = _socks_pools() if proxy.lower().startswith("socks") else BOUNDED_POOLS
        return manager

    def close(self) -> None:
        """Close all idle connections."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            close_pools(manager)

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send with our timeouts; a long body goes piece by piece."""
        # As a positional argument the timeout comes second; both SDKs and requests itself pass it by name.
        options["timeout"] = self._limits.timeouts_s()
        request.body = _in_pieces(request.body)
        return super().send(request, *args, **options)


def _socks_pools() -> dict[str, Any]:
    # Needs PySocks, which only users of a proxy have.
    from tieredstore.backends.http.socks_sockets import SOCKS_POOLS  # noqa: PLC0415

    return SOCKS_POOLS


class StoreAdapter(BoundedAdapter):
    """Raises connection failures as ``StoreUnavailableError``.

    Not for requests by which SDKs find credentials: there a failed request means to try another source.
    """

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send; raise StoreUnavailableError if no answer comes, StoreError if the server's certificate is not
        trusted.
        """
        try:
            return super().send(request, *args, **options)
        except requests.RequestException as error:
            failure = connection_failure(error)
        # Not chained to the library's error: a traceback would show its URL with a signature.
        raise failure from None


def connection_failure(error: Exception) -> StoreError:
    """Return our error for a request without an answer, or a truncated answer."""
    root = _root(error)
    text = excerpt(redacted(root), 300) or type(root).__name__
    if isinstance(root, ssl.SSLCertVerificationError):
        return StoreError(f"the store's certificate is not trusted: {text}")
    return StoreUnavailableError(f"the connection to the store failed: {text}")


def _root(error: BaseException) -> BaseException:
    """Return the innermost cause: the libraries wrap it several times, each adding the URL."""
    seen = {id(error)}
    while True:
        inner = [getattr(error, "reason", None), *error.args, error.__cause__]
        following = next((cause for cause in inner if isinstance(cause, BaseException) and id(cause) not in seen), None)
        if following is None:
            return error
        error = following
        seen.add(id(error))


def _in_pieces(body: Any) -> Any:
    """Return a long ``body`` as one that is read piece by piece; any other unchanged."""
    if isinstance(body, bytes | bytearray | memoryview):
        body = Buffers(cast("Buffer", body))
    if not isinstance(body, Buffers):
        return body
    return _PiecewiseBody(body.views) if len(body) > PIECE_BYTES else b"".join(body.views)


class _PiecewiseBody:
    """Buffers as a file, read in pieces.

    A body passed whole is one ``sendall``, limited as a whole by the connect timeout: slow lines would fail.
    """

    def __init__(self, views: Iterable[memoryview]) -> None:
        self._pieces = (view[at : at + PIECE_BYTES] for view in views for at in range(0, len(view), PIECE_BYTES))
        self._sent = 0

    def read(self, _: int = -1) -> memoryview | bytes:
        """Return the next piece, not copied: of our size, whatever size is requested; empty at the end."""
        # A request for more means that the previous pieces were sent.
        note_sent(self._sent)
        check_deadline("sending the body")
        piece = next(self._pieces, b"")
        self._sent += len(piece)
        return piece


def configure(session: AnySession, adapter: HTTPAdapter, proxy: SocksProxy | None) -> AnySession:
    """Mount this adapter for everything, behind ``proxy`` or, without one, the environment's."""
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # A redirection would send bodies and credentials anywhere: treat it as an ordinary answer.
    untyped: Any = session
    untyped.get_redirect_target = _nowhere
    # Otherwise a password for the host in ~/.netrc would replace the chosen credentials.
    session.auth = _keep_request
    session.hooks["response"].append(_read_if_refused)
    if proxy is not None:
        # The environment's proxy would override the configured one.
        session.trust_env = False
        session.verify = certificates()
        session.proxies = proxies_of(proxy)
    return session


def proxies_of(proxy: SocksProxy) -> dict[str, str]:
    """Return ``requests``' table of proxies: all hosts behind ``proxy``, except those that tell the machine's
    identity.
    """
    return {"http": proxy.url, "https": proxy.url, **{f"http://{host}": "" for host in _METADATA_HOSTS}}


def certificates() -> str | bool:
    """Return the environment's bundle of trusted certificates, or True for the library's own."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True


def _read_if_refused(response: requests.Response, **_: object) -> None:
    """Read the body of a refusal or redirection: the SDKs do not, and leave its connection open."""
    if response.status_code == requests.codes.unauthorized or response.is_redirect:
        response.content  # noqa: B018  a property that reads


def _nowhere(_: requests.Response) -> None:
    return None


def _keep_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
