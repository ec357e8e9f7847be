"""Coverage of processes that tests start. Such a process must import this module first; then its coverage counts.

The imports take more processor time. So use this module only for code that cannot run inside a test, such as a
service, or the start and end of a command.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from pathlib import Path
from typing import NoReturn

from tests.support.paths import COVERAGE_VARIABLE, REPOSITORY

with contextlib.chdir(REPOSITORY):  # the probes take the current directory as the root of the sources
    from tests.support.probes import reached

_end = os._exit


def _leave_what_was_reached() -> None:
    whole = Path(os.environ[COVERAGE_VARIABLE], f"{os.getpid()}.reached")
    part = whole.with_suffix(".part")  # a process that is killed while it writes leaves no half .reached
    part.write_bytes(reached())
    part.replace(whole)


def _leave_and_end(status: int) -> NoReturn:
    _leave_what_was_reached()
    _end(status)


atexit.register(_leave_what_was_reached)
os._exit = _leave_and_end
