"""HTTP proxy on the loopback interface that applies network faults to requests before passing them to a server.

Clients use the proxy as if it were the server. Unless a fault is planned, requests pass unchanged, including the Host
header, which signatures cover.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import TypeAlias
from urllib.parse import urlsplit

from tests.support.network.loopback_server import LoopbackServer, RunningServer

PIECE = 1 << 16
_PER_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "proxy-connection"})


@dataclass(frozen=True)
class Answer:
    """Answer in place of the server, which does not receive the request."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class CutRequest:
    """Close the connection after this many bytes of the request's body, without passing the request to the server."""

    after: int = 0


@dataclass(frozen=True)
class CutResponse:
    """Pass this many bytes of the response's body, call ``then``, and close the connection."""

    after: int = 0
    then: Callable[[], None] | None = None


@dataclass(frozen=True)
class LoseAnswer:
    """Pass the request to the server, but close the connection instead of returning its answer."""


@dataclass(frozen=True)
class Repeat:
    """Send the request to the server twice in sequence, and return the second answer."""


@dataclass(frozen=True)
class Stall:
    """Pass the request on after this delay."""

    seconds: float


@dataclass(frozen=True)
class Drip:
    """Begin an answer that never ends: call ``tick`` before each byte. The server does not receive the request."""

    tick: Callable[[], None]


@dataclass(frozen=True)
class Trickle:
    """Return the response's body in pieces of this many bytes, with this delay before each."""

    piece: int
    seconds: float


Fault: TypeAlias = Answer | CutRequest | CutResponse | Drip | LoseAnswer | Repeat | Stall | Trickle


@dataclass
class Seen:
    """Received request. ``status`` is the one that the client got; None without a complete answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    client: object
    """The client's end of the connection."""
    body_size: int = 0
    status: int | None = None


@dataclass
class _Plan:
    matches: Callable[[str, str], bool]
    fault: Fault
    times: int | None


class FaultProxy(RunningServer):
    """Context manager that runs a proxy before ``upstream_url``. Clients use ``url`` instead, with the same path."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.seen: list[Seen] = []
        self.damage_bodies = False
        """True if the first byte of each request's body is changed."""
        self.hidden_headers: set[str] = set()
        """Headers removed from answers, in lower case."""
        self._plans: list[_Plan] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        super().__init__(_Server(self))
        self.url = f"http://127.0.0.1:{self.port}{parts.path}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        super().__exit__(kind, error, trace)

    @property
    def connections(self) -> int:
        """Number of connections that brought a request."""
        return len({seen.client for seen in self.seen})

    def plan(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        path: str = "",
        where: Callable[[str, str], bool] | None = None,
        times: int | None = 1,
    ) -> None:
        """Apply ``fault`` to the next ``times`` requests (None: all) of this method whose path and query contain
        ``path``.

        If ``where`` is given, this function of the method and the path with its query selects the requests instead.
        Earlier plans take precedence.
        """

        def matches(asked: str, target: str) -> bool:
            return method in {None, asked} and path in target

        with self._lock:
            self._plans.append(_Plan(where or matches, fault, times))

    def heal(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._plans.clear()

    def count(self, method: str, path: str = "") -> int:
        """Return the number of requests of this method whose path and query contain ``path``."""
        return sum(seen.method == method and path in seen.path for seen in list(self.seen))

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Return the fault planned for a request, and count it as used once."""
        with self._lock:
            for plan in self._plans:
                if plan.times != 0 and plan.matches(method, path):
                    if plan.times is not None:
                        plan.times -= 1
                    return plan.fault
        return None

    def pause(self, seconds: float) -> None:
        """Wait, but stop when the proxy ends."""
        self._stopping.wait(seconds)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()


class _Server(LoopbackServer):
    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(_Handler)


class _CutError(Exception):
    """Raised to cut the client's connection intentionally."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  typeshed: BaseServer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ``seen`` has all requests."""

    def _proxied(self) -> None:
        proxy = self.server.proxy
        # Record the request before answering, because a test that has the answer must find it here.
        self.asked = Seen(self.command, self.path, dict(self.headers), self.client_address)
        proxy.seen.append(self.asked)
        try:
            self._do(proxy.fault_for(self.command, self.path))
        except (_CutError, OSError, http.client.HTTPException):
            self.close_connection = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        # The base class looks up do_GET, do_PUT and so on.
        if name.startswith("do_"):
            return self._proxied
        raise AttributeError(name)

    def _do(self, fault: Fault | None) -> None:
        if isinstance(fault, CutRequest):
            self.rfile.read(min(fault.after, int(self.headers.get("Content-Length", "0"))))
            self._reset()
        body = b"".join(self._body())
        self.asked.body_size = len(body)
        if body and self.server.proxy.damage_bodies:
            body = bytes((body[0] ^ 1,)) + body[1:]
        if isinstance(fault, Answer):
            self._answer(fault)
            return
        if isinstance(fault, Drip):
            self._drip(fault)
        if isinstance(fault, Stall):
            self.server.proxy.pause(fault.seconds)
        if isinstance(fault, Repeat):
            with suppress(_CutError):
                self._pass_on(body, LoseAnswer())
        self._pass_on(body, fault)

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self._exactly(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            yield self._exactly(int(self.headers.get("Content-Length", "0")))

    def _exactly(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise _CutError
        return data

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _CutError

    def _drip(self, fault: Drip) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Endless: ")
        while not self.server.proxy.is_stopping:
            fault.tick()
            self.wfile.write(b"x")
            self.server.proxy.pause(0.01)
        raise _CutError

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.asked.status = answer.status

    def _pass_on(self, body: bytes, fault: Fault | None) -> None:
        upstream = http.client.HTTPConnection(*self.server.proxy.upstream, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _PER_HOP and name.lower() != "expect":
                    upstream.putheader(name, value)
            if body or self.command in {"PUT", "POST", "PATCH"}:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            self._bring_back(upstream.getresponse(), fault)
        finally:
            upstream.close()

    def _bring_back(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
        if isinstance(fault, LoseAnswer):
            response.read()
            raise _CutError
        self._head_of(response)
        sent = 0
        piece = fault.piece if isinstance(fault, Trickle) else PIECE
        limit = fault.after if isinstance(fault, CutResponse) else None
        while data := response.read(piece if limit is None else min(piece, max(limit - sent, 1))):
            if isinstance(fault, Trickle):
                self.server.proxy.pause(fault.seconds)
            if limit is not None and sent >= limit:
                break
            self.wfile.write(data)
            sent += len(data)
        if isinstance(fault, CutResponse):
            self._cut_here(fault)
        if response.length:
            raise _CutError  # the server broke off mid-response, so the proxy must too
        self.asked.status = response.status

    def _cut_here(self, fault: CutResponse) -> None:
        self.wfile.flush()
        if fault.then is not None:
            fault.then()
        raise _CutError

    def _head_of(self, response: http.client.HTTPResponse) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _PER_HOP | self.server.proxy.hidden_headers:
                self.send_header(name, value)
        # Without a length (chunked) the answer ends with the connection.
        length = response.getheader("Content-Length")
        if length is not None:
            self.send_header("Content-Length", length)
        elif response.status not in {204, 304}:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
