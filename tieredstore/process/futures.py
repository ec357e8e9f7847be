"""Waits for futures. Unlike in ``concurrent.futures``, a wait also ends when the work is dropped (cancelled before it
began).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Final, TypeVar

from tieredstore.errors import AlreadyClosedError

_Result = TypeVar("_Result")

# Wait in steps of this length, so that Ctrl-C takes effect. A signal that comes just before the system call does not
# end a wait without a timeout. No signal ends such a wait if a library such as Polars has put its own signal handler
# before Python's.
_LOOK_S: Final = 0.5


class OverdueError(Exception):
    """Raised if a future is not done in time. The future's work continues."""


def outcome(future: Future[_Result], timeout_s: float | None = None) -> _Result:
    """Return the future's result or raise its error; raise OverdueError after the timeout.

    Raise AlreadyClosedError if the work was dropped before it began, for example because its pool was shut down.
    """
    if not is_done(future, timeout_s):
        raise OverdueError
    try:
        return future.result(0)
    except CancelledError as error:
        raise AlreadyClosedError("the awaited work was dropped, because its threads were shut down") from error


def is_done(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait until the future is done or cancelled; return False after the timeout.

    ``concurrent.futures.wait`` would wait for a cancelled future until a thread of the pool takes that future from the
    queue.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not future.done() and (left_s := end_s - time.monotonic()) > 0:
        with contextlib.suppress(CancelledError, TimeoutError):
            future.exception(min(_LOOK_S, left_s))
    return future.done()


def any_done(futures: Collection[Future[Any]], timeout_s: float) -> bool:
    """Wait until one of the futures is done; return False after the timeout.

    A dropped (cancelled) future ends the wait only when a thread of the pool takes it from the queue.
    """
    return bool(wait(futures, timeout_s, return_when=FIRST_COMPLETED).done)
