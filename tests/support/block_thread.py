"""A thread that works for as long as a ``with`` block lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

END_S: Final = 300.0
"""Seconds that the work may take to end after ``stopped`` is set; generous, for a busy machine."""


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
