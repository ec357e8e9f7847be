"""Faults below the clouds' protocols: connections that end, and answers that are not HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way
from tests.support.faulty_server.wire import Answer, Cut, Piece

EVERY_CLOUD: Final = tuple(Cloud)
EVERY_STEP: Final = tuple(step for step in Step if step not in {Step.ABORT, Step.PARTS, Step.BUCKET})
"""Steps whose answer matters to a call. An abort is not among them, because its result is only logged."""
WITH_BODIES: Final = (Step.READ, Step.LIST, Step.UPLOADS)


def _closed(_: Exchange) -> Answer:
    return [Cut()]


def _reset(_: Exchange) -> Answer:
    return [Cut(reset=True)]


def _not_http(_: Exchange) -> Answer:
    return [b"220 mail.example.com ESMTP\r\n\r\n", Cut()]


def _half_status(_: Exchange) -> Answer:
    return [b"HTTP/1.1 2", Cut()]


def _unknown_version(_: Exchange) -> Answer:
    return [b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n", Cut()]


def _negative_status(_: Exchange) -> Answer:
    return [b"HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n", Cut()]


def _endless_line(_: Exchange) -> Answer:
    return [b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (1 << 17) + b"\r\n\r\n", Cut()]


def _many_headers(_: Exchange) -> Answer:
    return [b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 1000 + b"\r\n", Cut()]


def _half_body(exchange: Exchange) -> Iterator[Piece]:
    reply = exchange.honest()
    yield reply.head() + reply.body[: len(reply.body) // 2]
    yield Cut()


def _half_chunk(exchange: Exchange) -> Iterator[Piece]:
    reply = exchange.honest().changed(Content_Length=None, Transfer_Encoding="chunked")
    yield reply.head() + b"ffff\r\n" + reply.body[:1]
    yield Cut()


CONNECTION_WAYS: Final = (
    Way("connection closed before the answer", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _closed),
    Way("connection reset before the answer", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _reset),
    Way("another protocol than HTTP", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _not_http),
    Way("half a status line", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _half_status),
    Way("a negative status", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _negative_status),
    Way("an unknown version of HTTP", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _unknown_version),
    Way("a header of 128 KiB", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _endless_line),
    Way("a thousand headers", EVERY_CLOUD, EVERY_STEP, Must.UNAVAILABLE, _many_headers),
    Way("half of the body", EVERY_CLOUD, WITH_BODIES, Must.UNAVAILABLE, _half_body),
    Way("half of a chunk", EVERY_CLOUD, (Step.LIST, Step.UPLOADS), Must.UNAVAILABLE, _half_chunk),
)
"""Connection faults."""
