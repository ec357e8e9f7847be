"""Temporary signal handlers of a process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType

from tieredstore.process.forks import begin_again_after_fork


class SignalHandlers:
    """Sets signal handlers and the wake-up descriptor for a time, then restores the previous values. A forked child
    restores them too.

    Use this class only in the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._wakeup_before = -1

    def install(
        self,
        signals: Iterable[signal.Signals],
        take: Callable[[int, FrameType | None], object],
        wakeup_fd: int,
        *,
        even_ignored: frozenset[signal.Signals] = frozenset(),
    ) -> None:
        """Let each of these signals call ``take`` and write to ``wakeup_fd``.

        An ignored signal stays ignored if it is not in ``even_ignored``. Shells ignore SIGINT for background processes,
        and nohup ignores SIGHUP.
        """
        self._wakeup_before = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        begin_again_after_fork(self)
        for signum in signals:
            before = signal.getsignal(signum)
            if before is not signal.SIG_IGN or signum in even_ignored:
                self._before[signum] = before
                signal.signal(signum, take)

    def restore(self) -> None:
        """Restore the previous handlers and descriptor."""
        self._restore(self._wakeup_before)

    def begin_again(self) -> None:
        """Reset in a forked child, whose signals must not wake the parent's threads."""
        self._restore(-1)

    def _restore(self, wakeup_fd: int) -> None:
        signal.set_wakeup_fd(wakeup_fd)
        while self._before:
            signum, before = self._before.popitem()
            # None means that C code had set the previous handler, which Python cannot restore. Restore the default
            # instead.
            signal.signal(signum, signal.SIG_DFL if before is None else before)
