"""Import this first in a process that a test starts: the coverage of the process counts for the run.

Only for a few processes whose code cannot run inside a test, such as services and the start and end of a command: the
imports take three more seconds of processor time.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from pathlib import Path
from typing import NoReturn

from tests.support.paths import COVERAGE_VARIABLE, REPOSITORY

with contextlib.chdir(REPOSITORY):  # the probes take the current directory as the root of the sources
    from tests.support.probes import probes

_end = os._exit


def _leave_what_was_reached() -> None:
    with contextlib.chdir(REPOSITORY):
        reached = json.dumps(probes.get_coverage())
    whole = Path(os.environ[COVERAGE_VARIABLE], f"{os.getpid()}.json")
    part = whole.with_suffix(".part")  # a process killed while it writes leaves no half file among the whole ones
    part.write_text(reached)
    part.replace(whole)


def _leave_and_end(status: int) -> NoReturn:
    _leave_what_was_reached()
    _end(status)


atexit.register(_leave_what_was_reached)
os._exit = _leave_and_end
