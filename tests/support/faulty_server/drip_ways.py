"""Endless answers: each wait for a piece is short, but the answer never ends."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from tests.support.faulty_server.connection_ways import EVERY_CLOUD, EVERY_STEP
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer, Pause, Piece, Reply

STEP_S: Final = 0.01
"""Pause between two pieces of an answer, far below the timeout of a single wait."""

_WITH_BODIES: Final = (Step.READ, Step.LIST, Step.UPLOADS, Step.BULK, Step.COMPLETE)
_ERRORS_WITH_BODIES: Final = tuple(step for step in EVERY_STEP if step is not Step.HEAD)
_LISTINGS: Final = (Step.LIST, Step.UPLOADS)
_TOKENS: Final = ("continuation-token", "pageToken", "marker", "upload-id-marker")
_LONG: Final = str(1 << 20)


def _drip(begin: bytes, drop: bytes) -> Iterator[Piece]:
    if begin:
        yield begin
    while True:
        yield Pause(STEP_S)
        yield drop


def _status_line(_: Exchange) -> Answer:
    return _drip(b"HTTP/1.1 200 O", b"K")


def _headers(exchange: Exchange) -> Answer:
    return _drip(exchange.honest().head()[:-2] + b"X-Dripping: ", b"x")


def _continues(_: Exchange) -> Answer:
    return _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n")


def _continue_headers(_: Exchange) -> Answer:
    return _drip(b"HTTP/1.1 100 Continue\r\n", b"X-Dripping: x\r\n")


def _body(exchange: Exchange) -> Answer:
    reply = exchange.honest()
    if exchange.step is Step.READ:
        # Omit the last byte, so that the headers are honest, but the body never ends.
        return _slowly(reply.head(), reply.body[:-1])
    return _drip(reply.changed(Content_Length=_LONG).head() + reply.body[:10], b" ")


def _slowly(head: bytes, body: bytes) -> Iterator[Piece]:
    yield head
    for at in count():
        yield Pause(STEP_S)
        yield body[at : at + 1]


def _chunked(exchange: Exchange) -> Answer:
    reply = exchange.honest().changed(Content_Length=None, Transfer_Encoding="chunked")
    return _drip(reply.head(), b"1\r\n \r\n")


def _chunk_size(exchange: Exchange) -> Answer:
    reply = exchange.honest().changed(Content_Length=None, Transfer_Encoding="chunked")
    return _drip(reply.head(), b"0")


def _unknown_length(exchange: Exchange) -> Answer:
    reply = exchange.honest().changed(Content_Length=None, Connection="close")
    return _drip(reply.head() + reply.body[:10], b" ")


def _refused(exchange: Exchange) -> Reply:
    return exchange.service.refusal(503, "ServerBusy").changed(Content_Length=_LONG)


def _refusal_body(exchange: Exchange) -> Answer:
    return _drip(_refused(exchange).head() + b"<", b" ")


def _refusal_headers(exchange: Exchange) -> Answer:
    return _drip(_refused(exchange).head()[:-2] + b"X-Dripping: ", b"x")


def _redirection(_: Exchange) -> Answer:
    reply = Reply(307, b"", {"Location": "/elsewhere", "Content-Length": _LONG})
    return _drip(reply.head(), b" ")


def _empty_page(exchange: Exchange, token: str) -> Reply:
    """Return an honest page's headers, and a body with nothing but the next page's token."""
    if exchange.service.cloud is Cloud.GCS:
        body = json.dumps({"kind": "storage#objects", "nextPageToken": token})
    elif exchange.service.cloud is Cloud.AZURE:
        body = f"<EnumerationResults><Blobs/><NextMarker>{token}</NextMarker></EnumerationResults>"
    elif exchange.step is Step.UPLOADS:
        more = f"<NextKeyMarker>o</NextKeyMarker><NextUploadIdMarker>{token}</NextUploadIdMarker>"
        body = f"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>{more}</ListMultipartUploadsResult>"
    else:
        more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        body = f"<ListBucketResult><IsTruncated>true</IsTruncated>{more}</ListBucketResult>"
    return exchange.honest().changed(body=body.encode(), Content_Length=str(len(body)))


def _empty_pages(exchange: Exchange) -> Answer:
    return _empty_page(exchange, uuid.uuid4().hex)


def _pages_in_a_circle(exchange: Exchange) -> Answer:
    query = exchange.request.query
    before = [query[name] for name in _TOKENS if name in query]
    return _empty_page(exchange, f"page-{(int(before[0].rpartition('-')[2]) + 1) % 3 if before else 0}")


def _way(name: str, steps: tuple[Step, ...], answer: Callable[[Exchange], Answer]) -> Way:
    return Way(name, EVERY_CLOUD, steps, Must.UNAVAILABLE, answer)


DRIP_WAYS: Final = (
    _way("a status line that drips", EVERY_STEP, _status_line),
    _way("headers that drip", EVERY_STEP, _headers),
    _way("one 100 Continue after the other", EVERY_STEP, _continues),
    _way("headers of a 100 Continue that drip", EVERY_STEP, _continue_headers),
    _way("a body that drips", _WITH_BODIES, _body),
    _way("chunks that drip", _WITH_BODIES[1:], _chunked),
    _way("a chunk's size that drips", _WITH_BODIES[1:], _chunk_size),
    _way("a body of no length that drips", _WITH_BODIES[1:], _unknown_length),
    _way("an error's body that drips", _ERRORS_WITH_BODIES, _refusal_body),
    _way("an error's headers that drip", EVERY_STEP, _refusal_headers),
    _way("a redirection's body that drips", _ERRORS_WITH_BODIES, _redirection),
)
"""Answers that never end."""

PAGE_WAYS: Final = (
    _way("pages without objects, one after the other", _LISTINGS, _empty_pages),
    Way("three pages in a circle", EVERY_CLOUD, _LISTINGS, Must.REFUSED, _pages_in_a_circle),
)
"""Listings that never end although each answer is immediate."""
