"""Signal handlers that a process has for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from tieredstore.process.forks import begin_again_after_fork


class SignalHandlers:
    """Handlers, and the descriptor that the system wakes; what was there before comes back, in a forked child too.

    Of the main thread alone.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def install(
        self,
        signals: Iterable[signal.Signals],
        take: Callable[[int, FrameType | None], object],
        wakeup_fd: int,
        *,
        even_ignored: frozenset[signal.Signals] = frozenset(),
    ) -> None:
        """Have ``take`` called for these signals, and ``wakeup_fd`` written to.

        One that is ignored stays so, unless it is among ``even_ignored``: a shell has SIGINT ignored by what it starts
        in the background, and nohup SIGHUP.
        """
        self._wakeup_before = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        begin_again_after_fork(self)
        for signum in signals:
            before = signal.getsignal(signum)
            if before is not signal.SIG_IGN or signum in even_ignored:
                self._before[signum] = before
                signal.signal(signum, take)

    def restore(self) -> None:
        """As it was."""
        self._restore(self._wakeup_before)

    def begin_again(self) -> None:
        """In a forked child: its signals are not the parent's, and must not wake the parent's threads."""
        self._restore(-1)

    def _restore(self, wakeup_fd: int) -> None:
        signal.set_wakeup_fd(wakeup_fd)
        while self._before:
            signum, before = self._before.popitem()
            # None is a handler that was not set by Python, and cannot be set by it.
            signal.signal(signum, signal.SIG_DFL if before is None else before)
