"""The body of a ``put``, seen as plain bytes, whatever it was given as."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tieredstore.backends.values import Body, Buffer


def byte_view(buffer: Buffer | memoryview[Any]) -> memoryview:
    """``buffer`` as a flat view of bytes, without a copy where its memory is contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B")


@contextmanager
def open_body(body: Body) -> Generator[Iterator[memoryview]]:
    """The buffers of ``body``, one by one; each is released as soon as the next is asked for.

    A body that is a generator is closed at the end of the block, also if nothing was taken from it, so that what it
    holds (threads, files) is given back at once.
    """
    with closing_body(body), closing(_views(body)) as views:
        yield views


@contextmanager
def closing_body(body: Body) -> Generator[None]:
    """At the end of the block a body that is a generator is closed: for who hands on another one that takes from it."""
    try:
        yield
    finally:
        if isinstance(body, Generator):
            body.close()


def _views(body: Body) -> Generator[memoryview]:
    parts: Iterable[Buffer | memoryview[Any]] = (body,) if isinstance(body, bytes | bytearray | memoryview) else body
    for buffer in parts:
        with byte_view(buffer) as view:
            yield view


class Digest:
    """Size and SHA-256 of a body, while somebody takes it."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """In hexadecimal, of what was taken so far."""
        return self._sha256.hexdigest()

    def take(self, buffer: Buffer) -> None:
        """Add the bytes of ``buffer``."""
        with byte_view(buffer) as view:
            self.size += len(view)
            self._sha256.update(view)

    def of(self, body: Body) -> Body:
        """The same body: noted now if it is one buffer, else as its buffers go by."""
        if isinstance(body, bytes | bytearray | memoryview):
            self.take(memoryview(body))
            return body
        return self._note(body)

    def _note(self, body: Iterable[Buffer]) -> Generator[memoryview]:
        with open_body(body) as parts:
            for part in parts:
                self.take(part)
                yield part
