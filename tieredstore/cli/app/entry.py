"""Where the command line begins: signals end it quietly while the rest of it is still being imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    """The console script."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    if sys.argv[1:] in (["--version"], ["version"]):
        command = _show_version  # without the half second that the commands take to be imported
    else:
        from tieredstore.cli.app.main import main as command
    from tieredstore.cli.app import running

    running.run(command)


def version_text() -> str:
    """Return the program's name and version."""
    from tieredstore.installation import version

    return f"tieredstore {version()}"


def _show_version() -> int:
    sys.stdout.write(version_text() + "\n")
    return 0


def _end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  a handler's signature
    os._exit(128 + signum)
