"""The frames of all threads, without a garbage collection in their midst.

CPython 3.11 makes frame objects while it holds the lock of its list of threads. A collection that begins there calls
back into Python (Hypothesis has such a callback), which may let the interpreter's lock go; whoever starts a thread then
holds that one and waits for the list's for ever, and so does the whole process. Slipcover asks for frames now and then.
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
    """What ``sys._current_frames`` gives."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _current_frames()
    finally:
        if was_enabled:
            gc.enable()


def give_no_others() -> None:
    """Have everybody in this process get the frames of threads in that way."""
    sys.__dict__[_NAME] = thread_frames
