"""Deadline of a thread's current request, checked between the pieces of a body."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tieredstore.process.deadline import Deadline

PIECE_BYTES: Final = 256 * 1024
"""Size of the pieces in which bodies are sent and received. Timeout and deadline apply to each piece."""

_deadline: Final[ContextVar[Deadline | None]] = ContextVar("tieredstore_http_deadline", default=None)


@contextmanager
def within(deadline: Deadline) -> Generator[None]:
    """Limit this thread's requests in the block: after ``deadline`` they fail with StoreUnavailableError."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> Deadline | None:
    """Return the deadline of the thread's innermost ``within`` block, None outside of any."""
    return _deadline.get()


def check_deadline(what: str) -> None:
    """Raise StoreUnavailableError if the deadline of the ``within`` block has passed."""
    deadline = _deadline.get()
    if deadline is not None:
        deadline.check(what)


def note_sent(position: int) -> None:
    """Record that the body's first ``position`` bytes were sent, so that the upload does not count as stalled."""
    deadline = _deadline.get()
    if deadline is not None and deadline.part is not None:
        deadline.part.report(position)
