"""What must start anew in a forked child: locks that another thread held stay locked there for ever."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """State that a fork copies in whatever condition another thread left it."""

    def begin_again(self) -> None:
        """In the child, before anything else runs there: fresh locks, and nothing that shares a file descriptor."""


_FORKED: weakref.WeakSet[Forked] = weakref.WeakSet()


def begin_again_after_fork(state: Forked) -> None:
    """Have ``state.begin_again()`` called in every forked child, for as long as ``state`` lives."""
    _FORKED.add(state)


def _begin_again() -> None:
    for state in list(_FORKED):
        state.begin_again()


os.register_at_fork(after_in_child=_begin_again)
