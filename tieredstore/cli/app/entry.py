"""Where the command line begins: signals end it quietly while the rest of it is still being imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from tieredstore import __version__


def run() -> NoReturn:
    """The console script."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    # Pydantic asks every installed distribution for plugins, which would see our settings, secrets too.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from tieredstore.cli.app import running

    if sys.argv[1:] == ["--version"]:
        running.run_at_once(_show_version)
    from tieredstore.cli.app.main import main

    running.run(main)


def version_text() -> str:
    """Return the program's name and version."""
    return f"tieredstore {__version__}"


def _show_version() -> int:
    sys.stdout.write(version_text() + "\n")
    return 0


def _end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  a handler's signature
    os._exit(128 + signum)
