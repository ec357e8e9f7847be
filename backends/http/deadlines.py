"""The deadline of the request that a thread is making: looked at between the pieces of a body."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tieredstore.process.deadline import Deadline

PIECE_BYTES: Final = 256 * 1024
"""Bodies go out and come in by pieces of this size: a time-out and the deadline hold for each of them."""

_deadline: Final[ContextVar[Deadline | None]] = ContextVar("tieredstore_http_deadline", default=None)


@contextmanager
def within(deadline: Deadline) -> Generator[None]:
    """Requests of this thread, in the block, end by ``deadline``: in StoreUnavailableError if need be."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> Deadline | None:
    """The deadline of the innermost block (see ``within``) that this thread is in."""
    return _deadline.get()


def check_deadline(what: str) -> None:
    """StoreUnavailableError if the deadline of the block has passed."""
    deadline = _deadline.get()
    if deadline is not None:
        deadline.check(what)


def note_sent(position: int) -> None:
    """So many bytes of the request's body have gone out: an upload stands still no more."""
    deadline = _deadline.get()
    if deadline is not None and deadline.part is not None:
        deadline.part.reached(position)
