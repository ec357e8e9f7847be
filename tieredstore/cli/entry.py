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
    elif "_TIEREDSTORE_COMPLETE" in os.environ:
        command = _complete
    else:
        from tieredstore.cli.main import main as command  # noqa: PLC0415  the signals above are taken for this time
    from tieredstore.cli import running  # noqa: PLC0415

    running.run(command)


def _show_version() -> int:
    from tieredstore.cli.version import version_text  # noqa: PLC0415

    sys.stdout.write(version_text() + "\n")
    return 0


def _complete() -> int:
    from tieredstore.cli.quick_completion import quick_answer  # noqa: PLC0415

    code = quick_answer(os.environ)
    if code is None:
        from tieredstore.cli.main import complete  # noqa: PLC0415

        code = complete()
    return code


def _end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  a handler's signature
    os._exit(128 + signum)
