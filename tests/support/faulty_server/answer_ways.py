"""Wrong HTTP answers that apply to any cloud: false statuses, lengths and ranges, and pages of a web server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.faulty_server.connection_ways import EVERY_CLOUD, EVERY_STEP
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer, Cut, Reply

HTML: Final = b"<html><head><title>Welcome</title></head><body><p>Please log in<br></body></html>"
"""A page that XML parsers reject."""
CLOSED_HTML: Final = b"<html/>"
"""A page that XML parsers accept."""

_NOT_DELETIONS: Final = tuple(step for step in EVERY_STEP if step is not Step.DELETE)
"""All steps except single deletions, whose honest answer is empty."""
_WRITES: Final = (Step.WRITE, Step.COMPLETE)

Change = Callable[[Reply], Reply]


def instead(status: int, body: bytes = b"", **headers: str) -> Callable[[Exchange], Answer]:
    """Answer without executing the request. Names of ``headers`` have ``_`` for ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: Reply(status, body, named)


def page(status: int, body: bytes = HTML) -> Callable[[Exchange], Answer]:
    """Answer with a web server's page, without executing the request."""
    return instead(status, body, Content_Type="text/html")


def but(change: Change) -> Callable[[Exchange], Answer]:
    """Execute the request and change the honest answer."""
    return lambda exchange: change(exchange.honest())


def header(name: str, value: str | None) -> Callable[[Exchange], Answer]:
    """Execute the request; give the honest answer with this header, or without it if the value is None."""
    return but(lambda reply: reply.having({name: value}))


def _lengths(value: str) -> Callable[[Exchange], Answer]:
    """Send the honest answer with this Content-Length, then close the connection."""

    def answer(exchange: Exchange) -> Answer:
        with_body = exchange.request.method != "HEAD"
        return [*exchange.honest().changed(Content_Length=value).pieces(with_body=with_body), Cut()]

    return answer


def _padded(reply: Reply) -> Reply:
    return reply.changed(body=reply.body + b" " * (17 << 20))


def _range(value: str) -> Callable[[Exchange], Answer]:
    return but(lambda reply: reply.changed(status=206, Content_Range=value))


def _shorter(exchange: Exchange) -> Answer:
    reply = exchange.honest()
    return reply.changed(status=206, body=reply.body[:-1], Content_Range=f"bytes 0-{len(reply.body) - 2}/999")


def _more_after(exchange: Exchange) -> Answer:
    # Send both answers in one piece. If the second came after the client's check of the connection, it would look like
    # the answer to the next request.
    whole = b"".join(piece for piece in exchange.honest().pieces() if isinstance(piece, bytes))
    return [whole + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nETag: x\r\n\r\nwrong!"]


def _gzip(exchange: Exchange) -> Answer:
    return exchange.honest().changed(Content_Encoding="gzip")


def _status(status: int, must: Must, body: bytes = HTML) -> Way:
    said = f"status {status}, " + ("a web page" if body else "no body")
    return Way(said, EVERY_CLOUD, EVERY_STEP, must, page(status, body))


def _silent(exchange: Exchange, body: bytes = b"") -> Answer:
    exchange.honest()
    return Reply(200, body, {"Content-Type": "text/html"})


def _unsized(exchange: Exchange) -> Answer:
    return [*exchange.honest().changed(Content_Length=None).pieces(), Cut()]


STATUS_WAYS: Final = (
    Way("status 200, no body, nothing done", EVERY_CLOUD, _NOT_DELETIONS, Must.REFUSED, instead(200)),
    Way("status 200, a web page, nothing done", EVERY_CLOUD, EVERY_STEP, Must.REFUSED, page(200)),
    Way("status 200, an empty web page", EVERY_CLOUD, EVERY_STEP, Must.REFUSED, page(200, CLOSED_HTML)),
    Way("status 200, JSON of another kind", EVERY_CLOUD, EVERY_STEP, Must.REFUSED, page(200, b'{"status":"ok"}')),
    Way("status 204, nothing done", EVERY_CLOUD, _NOT_DELETIONS, Must.REFUSED, instead(204)),
    Way(
        "status 200 and no body to a write that was done",
        EVERY_CLOUD,
        _WRITES,
        Must.RIGHT,
        _silent,
    ),
    Way(
        "a web page to a write that was done",
        EVERY_CLOUD,
        _WRITES,
        Must.RIGHT,
        lambda exchange: _silent(exchange, HTML),
    ),
    _status(304, Must.REFUSED, b""),
    _status(400, Must.REFUSED),
    _status(401, Must.DENIED),
    _status(403, Must.DENIED),
    _status(403, Must.DENIED, b""),
    _status(408, Must.UNAVAILABLE),
    _status(409, Must.REFUSED),
    _status(418, Must.REFUSED),
    _status(429, Must.THROTTLED),
    _status(500, Must.UNAVAILABLE),
    _status(500, Must.UNAVAILABLE, b""),
    _status(502, Must.UNAVAILABLE),
    _status(503, Must.THROTTLED),
    Way("status 503, JSON of a list", EVERY_CLOUD, EVERY_STEP, Must.THROTTLED, page(503, b'["no"]')),
    _status(504, Must.UNAVAILABLE),
    _status(507, Must.REFUSED),
)
"""Wrong statuses, and pages that no store would send."""


BODY_WAYS: Final = (
    Way("Content-Length: 5, 5", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _lengths("5, 5")),
    Way("Content-Length: -5", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _lengths("-5")),
    Way("Content-Length: five", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _lengths("five")),
    Way("Content-Length of 30 digits", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _lengths("9" * 30)),
    Way("no Content-Length", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _unsized),
    Way("a size of 5, 5", (Cloud.S3, Cloud.AZURE), (Step.HEAD,), Must.REFUSED, _lengths("5, 5")),
    Way("a size of -5", (Cloud.S3, Cloud.AZURE), (Step.HEAD,), Must.REFUSED, _lengths("-5")),
    Way("a size of five", (Cloud.S3, Cloud.AZURE), (Step.HEAD,), Must.REFUSED, _lengths("five")),
    Way("a size of 30 digits", (Cloud.S3, Cloud.AZURE), (Step.HEAD,), Must.REFUSED, _lengths("9" * 30)),
    Way("no size", (Cloud.S3, Cloud.AZURE), (Step.HEAD,), Must.REFUSED, header("Content-Length", None)),
    Way("another range", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _range("bytes 7-11/12")),
    Way("a range that is none", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _range("bytes 0-9999999/1")),
    Way("a range in words", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _range("all of it")),
    Way("one byte less than was asked for", EVERY_CLOUD, (Step.READ,), Must.REFUSED, _shorter),
    Way("17 MiB of white space after the document", EVERY_CLOUD, (Step.LIST, Step.UPLOADS), Must.REFUSED, but(_padded)),
    Way("another answer after the whole one", EVERY_CLOUD, (Step.READ,), Must.RIGHT, _more_after),
    Way("gzip that is none", (Cloud.GCS, Cloud.AZURE), (Step.LIST,), Must.UNAVAILABLE, _gzip),
    Way(
        "an object without an etag", (Cloud.S3, Cloud.AZURE), (Step.READ, Step.HEAD), Must.REFUSED, header("ETag", None)
    ),
)
"""Wrong lengths, ranges and required headers."""


ANSWER_WAYS: Final = (*STATUS_WAYS, *BODY_WAYS)
"""All wrong answers in this module."""
