"""A test run that loses a worker names the test that ended it, and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.paths import REPOSITORY

_FILES: Final = {
    "conftest.py": """
        from pathlib import Path
        from tests.support import marks
        marks.REPOSITORY = Path(__file__).parent
        pytest_plugins = ["tests.support.marks"]
        """,
    # Two units for each worker. One worker dies in the last test of its first unit.
    "test_1.py": """
        import os, signal
        def test_before(): pass
        def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
        """,
    "test_2.py": "def test(): pass",
    "test_3.py": "def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass",
    "test_4.py": "def test(): pass",
}


@pytest.mark.slow
def test_a_run_that_loses_a_worker_names_the_test_and_ends(tmp_path: Path) -> None:
    """xdist would replace the worker. It hands the replacement one unit, here of one test, which waits for a second."""
    for name, text in _FILES.items():
        tmp_path.joinpath(name).write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert re.search(r"worker 'gw[01]' crashed while running 'test_1\.py::test_dies'", done.stdout), done.stdout
    assert re.search(r"xdist: worker gw[01] crashed and worker restarting disabled", done.stdout), done.stdout
