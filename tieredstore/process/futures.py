"""The one place where futures are waited for: what was dropped ends a wait as surely as what was done."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from tieredstore.errors import AlreadyClosed

_Result = TypeVar("_Result")

# Of a wait without a time-out the system goes on after a signal where some library (Polars is one) has put a handler of
# its own before Python's that asks for it, and Ctrl-C is then heard when the work is done. One with a time-out ends.
_FOR_EVER_S: Final = threading.TIMEOUT_MAX


class Overdue(Exception):
    """A future was not done in time; its work goes on."""


def outcome(future: Future[_Result], timeout_s: float | None = None) -> _Result:
    """The result, or the error of the work; Overdue after the time-out.

    AlreadyClosed if the work was dropped before it began, as it is when its threads are shut down.
    """
    if not is_done(future, timeout_s):
        raise Overdue
    try:
        return future.result(0)
    except CancelledError as error:
        raise AlreadyClosed("what was waited for was dropped: the threads that do this work were shut down") from error


def is_done(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait until it is done, well or not, or was dropped; False after the time-out.

    Unlike ``concurrent.futures.wait``, which goes on waiting for a dropped future until a thread comes by it.
    """
    with contextlib.suppress(CancelledError, TimeoutError):
        future.exception(_FOR_EVER_S if timeout_s is None else timeout_s)
    return future.done()
