"""Requests read from a socket and answers written to it, byte for byte, at the requested pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from http.client import responses
from io import BufferedReader
from typing import Self, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names in lower case, ``target`` as sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the query, including those without a value."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause in sending."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """End of the connection; with ``reset`` the client gets an error instead of an end of file."""

    reset: bool = False


Piece: TypeAlias = bytes | Pause | Cut
"""Step in sending to the client: raw bytes, a wait, or the end of the connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP answer. ``headers`` override automatic ones, such as ``Content-Length``; None removes a header."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])

    def changed(self, *, status: int | None = None, body: bytes | None = None, **headers: str | None) -> Self:
        """Return a copy with another status, body or headers (``_`` for ``-``); the value None removes a header."""
        with_headers = self.having({name.replace("_", "-"): value for name, value in headers.items()})
        return replace(
            with_headers,
            status=self.status if status is None else status,
            body=self.body if body is None else body,
        )

    def having(self, headers: Mapping[str, str | None]) -> Self:
        """Return a copy with these headers set; the value None removes a header."""
        lower = {name.lower() for name in headers}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in lower}
        return replace(self, headers={**kept, **headers})

    def head(self) -> bytes:
        """Return the status line and the headers, with the empty line that ends them."""
        lines = [f"HTTP/1.1 {self.status} {responses.get(self.status, 'Unknown')}"]
        headers = {"Date": formatdate(usegmt=True), "Content-Length": str(len(self.body)), **self.headers}
        if self.status == HTTPStatus.NO_CONTENT:
            headers.setdefault("Content-Length", None)
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return "\r\n".join([*lines, "", ""]).encode()

    def pieces(self, *, with_body: bool = True) -> list[Piece]:
        """Return the whole answer as one piece, without the body if it answers a HEAD."""
        return [self.head() + (self.body if with_body else b"")]


Answer: TypeAlias = Reply | Iterable[Piece]
"""A whole answer, or pieces to send instead; a generator runs while its pieces are sent."""


def read_request(stream: BufferedReader, proceed: Callable[[bytes], object]) -> Request | None:
    """Return a connection's next request; None at its end. ``proceed`` sends "100 Continue" to a client that expects
    it.
    """
    line = stream.readline(1 << 16).decode("latin-1").split()
    if len(line) < 2:
        return None
    headers: dict[str, str] = {}
    while (text := stream.readline(1 << 16).decode("latin-1").strip()) != "":
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        proceed(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(line[0], line[1], headers, _body(stream, headers))


def _body(stream: BufferedReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return stream.read(int(headers.get("content-length", "0")))
    chunks: list[bytes] = []
    while size := int(stream.readline().partition(b";")[0], 16):
        chunks.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(chunks)
