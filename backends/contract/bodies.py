"""The body of a ``put``, seen as plain bytes, whatever it was given as."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tieredstore.backends.base import Body, Buffer


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
    try:
        with closing(_views(body)) as views:
            yield views
    finally:
        if isinstance(body, Generator):
            body.close()


def _views(body: Body) -> Generator[memoryview]:
    parts: Iterable[Buffer | memoryview[Any]] = (body,) if isinstance(body, bytes | bytearray | memoryview) else body
    for buffer in parts:
        with byte_view(buffer) as view:
            yield view
