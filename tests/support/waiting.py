"""Waits for a condition, and for a thread that works for as long as a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Self

END_S = 300.0
"""Seconds that a thread or process may take to end after it was told to; generous, for a busy machine."""


def join(*threads: threading.Thread) -> None:
    """Wait until the threads have ended. Fail the test if one has not ended within ``END_S``."""
    end = time.monotonic() + END_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    running = [thread.name for thread in threads if thread.is_alive()]
    assert not running, f"{', '.join(running)} did not end within {END_S:g} s"


def wait_until(
    condition: Callable[[], object],
    timeout_s: float = 600.0,
    *,
    what: object = "it",
    every_s: float = 0.01,
    meanwhile: Callable[[], object] = lambda: None,
    passing: tuple[type[Exception], ...] = (),
) -> float:
    """Wait until the condition holds, and return the seconds it took. Fail the test on timeout.

    Use this only for other processes and for threads without an event to wait for. Try every ``every_s``, and call
    ``meanwhile`` after each try. Errors of the kinds ``passing`` mean that the condition does not hold yet. If ``what``
    is a function, it is called for the message of the failure.
    """
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(*passing):
            if condition():
                return time.monotonic() - began_s
        assert time.monotonic() - began_s < timeout_s, f"{what() if callable(what) else what} not within {timeout_s} s"
        meanwhile()
        time.sleep(every_s)


def is_within(thread: threading.Thread, function: Callable[..., object]) -> bool:
    """Return True if the thread runs this function of Python now, or something that it called.

    It shows that a thread has come to a wait inside the product, where a test has no event.
    """
    assert isinstance(function, FunctionType)
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]  it is documented
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class BlockThread(ABC):
    """Context manager that runs ``work`` on a thread, sets ``stopped`` at the end of the block, and raises the
    thread's error.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)
        self._failure: BaseException | None = None

    @abstractmethod
    def work(self) -> None:
        """Run until ``stopped`` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self._thread.join(END_S)
        if error is None:
            assert not self._thread.is_alive(), f"{self._thread.name} did not end"
            if self._failure is not None:
                raise self._failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  the block's end raises it
            self._failure = error
