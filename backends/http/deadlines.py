"""The deadline of a thread's current request, checked between the pieces of a body."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tieredstore.process.deadline import Deadline

PIECE_BYTES: Final = 256 * 1024
"""Bodies are sent and received in pieces of this size: timeout and deadline apply to each of them."""

_deadline: Final[ContextVar[Deadline | None]] = ContextVar("tieredstore_http_deadline", default=None)


@contextmanager
def within(deadline: Deadline) -> Generator[None]:
    """End requests of this thread, in the block, by ``deadline``, with StoreUnavailableError if needed."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> Deadline | None:
    """Return the deadline of the thread's innermost block (see ``within``)."""
    return _deadline.get()


def check_deadline(what: str) -> None:
    """Raise StoreUnavailableError if the deadline of the block has passed."""
    deadline = _deadline.get()
    if deadline is not None:
        deadline.check(what)


def note_sent(position: int) -> None:
    """Note the bytes sent of the request's body: the upload is not stalled."""
    deadline = _deadline.get()
    if deadline is not None and deadline.part is not None:
        deadline.part.reached(position)
