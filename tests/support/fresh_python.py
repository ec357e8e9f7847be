"""Code in a separate interpreter, which may fork; pytest's own processes must not, because they have threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from tests.support.paths import REPOSITORY


def run_fresh(code: str, *arguments: object) -> str:
    """Return the output of the code; fail the test if it raises, warns or takes over ten minutes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
