"""The start of the program. This module lets signals end the process without a traceback, even during the later
imports."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

from tieredstore import __version__

VERSION: Final = (["--version"], ["--version", "--json"], ["--json", "--version"])
"""Command lines that ask only for the version and need no parser."""

_COMPLETION_S: Final = 4
"""The maximum time, in seconds, that a shell waits for completions."""

JSON_VERSION: Final = 1
"""The version of the commands' JSON: field names and their meanings, as docs/reference/json.md describes them."""


def run() -> NoReturn:
    """Run the console script."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    if "_TIEREDSTORE_COMPLETE" in os.environ:
        signal.alarm(_COMPLETION_S)
    # Forbid pydantic's plugins. Pydantic loads the plugins of all installed distributions, and such plugins would see
    # our settings and secrets.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from tieredstore.cli.app import running

    if sys.argv[1:] in VERSION:
        running.run_at_once(lambda: show_version(sys.argv[1:]))
    from tieredstore.cli.app.main import main

    running.run(main)


def version_text() -> str:
    """Return the program's name and version."""
    return f"tieredstore {__version__}"


def show_version(arguments: Sequence[str]) -> int:
    """Write the version, with ``--json`` also JSON_VERSION. Return the exit code."""
    as_json = f'{{"version": "{__version__}", "json_version": {JSON_VERSION}}}'
    sys.stdout.write(f"{as_json if '--json' in arguments else version_text()}\n")
    return 0


def _end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  a handler's signature
    os._exit(128 + signum)
