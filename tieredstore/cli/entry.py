"""Where the command line begins: signals end it quietly while the rest of it is still being imported."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    """The console script."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    from tieredstore.cli import main  # noqa: PLC0415  this takes the half second that the signals are taken for

    main.run()


def _end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  a handler's signature
    os._exit(128 + signum)
