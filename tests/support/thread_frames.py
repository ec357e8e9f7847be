"""Frames of all threads, without a garbage collection in between.

CPython 3.11 makes frame objects while it holds the lock of its thread list. A garbage collection at this moment
calls back into Python (Hypothesis has such a callback), which may release the interpreter's lock. A thread that starts
then takes the interpreter's lock and waits forever for the list's lock, which is a deadlock. Slipcover, which measures
coverage, requests frames now and then.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

_NAME: Final = "_current_frames"
_current_frames: Final[Callable[[], dict[int, FrameType]]] = sys.__dict__[_NAME]


def thread_frames() -> dict[int, FrameType]:
    """Return the result of ``sys._current_frames``."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _current_frames()
    finally:
        if was_enabled:
            gc.enable()


def give_no_others() -> None:
    """Make ``thread_frames`` the ``sys._current_frames`` of the whole process."""
    sys.__dict__[_NAME] = thread_frames
