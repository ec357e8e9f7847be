"""Conversion of a ``put``'s body, which may have several types, to an iterator of buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tieredstore.backends.values import Body, Buffer


def byte_view(buffer: Buffer | memoryview[Any]) -> memoryview:
    """Return ``buffer`` as a flat view of bytes, without a copy if its memory is contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B")


@contextmanager
def open_body(body: Body) -> Generator[Iterator[memoryview]]:
    """Open ``body`` as an iterator over buffers. Each buffer is released when the next one is requested.

    If ``body`` is a generator, close it at the end of the block, even if nothing was taken from it. Its threads and
    files are then released at once.
    """
    with closing_body(body), closing(_views(body)) as views:
        yield views


@contextmanager
def closing_body(body: Body) -> Generator[None]:
    """If ``body`` is a generator, close it at the end of the block. Callers that wrap ``body`` in another generator
    need this, because closing the outer generator does not close ``body``.
    """
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
    """Size and SHA-256 of a body, computed while a store consumes it."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Digest of the bytes so far, in hexadecimal."""
        return self._sha256.hexdigest()

    def take(self, buffer: Buffer) -> None:
        """Add the bytes of ``buffer``."""
        with byte_view(buffer) as view:
            self.size += len(view)
            self._sha256.update(view)

    def of(self, body: Body) -> Body:
        """Return a body with the same bytes. Digest a single buffer now, and an iterable while the store reads its
        buffers."""
        if isinstance(body, bytes | bytearray | memoryview):
            self.take(memoryview(body))
            return body
        return self._note(body)

    def _note(self, body: Iterable[Buffer]) -> Generator[memoryview]:
        with open_body(body) as parts:
            for part in parts:
                self.take(part)
                yield part
