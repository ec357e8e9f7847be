"""The one place where futures are waited for: what was dropped ends a wait as surely as what was done."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Final, TypeVar

from tieredstore.errors import AlreadyClosedError

_Result = TypeVar("_Result")

# Ctrl-C is heard when a wait ends. A signal that comes just before the system begins one does not end it; nor does any
# end one without a time-out where some library (Polars is one) has put a handler of its own before Python's.
_LOOK_S: Final = 0.5


class OverdueError(Exception):
    """A future was not done in time; its work goes on."""


def outcome(future: Future[_Result], timeout_s: float | None = None) -> _Result:
    """The result, or the error of the work; OverdueError after the time-out.

    AlreadyClosedError if the work was dropped before it began, as it is when its threads are shut down.
    """
    if not is_done(future, timeout_s):
        raise OverdueError
    try:
        return future.result(0)
    except CancelledError as error:
        raise AlreadyClosedError(
            "what was waited for was dropped: the threads that do this work were shut down"
        ) from error


def is_done(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait until it is done, well or not, or was dropped; False after the time-out.

    Unlike ``concurrent.futures.wait``, which goes on waiting for a dropped future until a thread comes by it.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not future.done() and (left_s := end_s - time.monotonic()) > 0:
        with contextlib.suppress(CancelledError, TimeoutError):
            future.exception(min(_LOOK_S, left_s))
    return future.done()


def any_done(futures: Collection[Future[Any]], timeout_s: float) -> bool:
    """Wait until one of them is done, or was dropped and its thread came by; False after the time-out."""
    return bool(wait(futures, timeout_s, return_when=FIRST_COMPLETED).done)
