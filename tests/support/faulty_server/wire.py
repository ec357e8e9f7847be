"""Requests as they come from a socket, and answers as they go back: byte for byte, at the pace that was asked for."""

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
    """One request; names of headers in lower case, the path without its percent signs and without the query."""

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
        """The query's parameters, also those without a value."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is sent for this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends here; with ``reset`` it is torn down, so that the client reads an error and no end."""

    reset: bool = False


Piece: TypeAlias = bytes | Pause | Cut
"""What goes to the client: bytes as they stand, a wait, or the end of the connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``headers`` win over those that it would have by itself (``Content-Length``); None leaves one out."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])

    def changed(self, *, status: int | None = None, body: bytes | None = None, **headers: str | None) -> Self:
        """The same with another status or body, or with headers, ``_`` for ``-``; None takes one away."""
        with_headers = self.having({name.replace("_", "-"): value for name, value in headers.items()})
        return replace(
            with_headers,
            status=self.status if status is None else status,
            body=self.body if body is None else body,
        )

    def having(self, headers: Mapping[str, str | None]) -> Self:
        """The same with these headers; None takes one away."""
        lower = {name.lower() for name in headers}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in lower}
        return replace(self, headers={**kept, **headers})

    def head(self) -> bytes:
        """The status line and the headers, with the empty line that ends them."""
        lines = [f"HTTP/1.1 {self.status} {responses.get(self.status, 'Unknown')}"]
        headers = {"Date": formatdate(usegmt=True), "Content-Length": str(len(self.body)), **self.headers}
        if self.status == HTTPStatus.NO_CONTENT:
            headers.setdefault("Content-Length", None)
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return "\r\n".join([*lines, "", ""]).encode()

    def pieces(self, *, with_body: bool = True) -> list[Piece]:
        """All of it at once; without the body where it answers a HEAD."""
        return [self.head() + (self.body if with_body else b"")]


Answer: TypeAlias = Reply | Iterable[Piece]
"""A whole answer, or what is sent instead, piece by piece; a generator is taken from as it is sent."""


def read_request(stream: BufferedReader, proceed: Callable[[bytes], object]) -> Request | None:
    """The next request of a connection; None at its end. ``proceed`` sends what tells a client to go on that asks."""
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
