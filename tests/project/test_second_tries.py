"""What passes at the second try alone is told of, and too many of these fail the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.second_tries import MOST

FLAKY = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    tried = pathlib.Path(__file__).with_name(str(number))
    first = not tried.exists()
    tried.touch()
    assert not first
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("count", "code", "last"), [(MOST, 0, "passed"), (MOST + 1, 1, "FAIL")], ids=["few", "too many"]
)
def test_what_fails_first_is_named(tmp_path: Path, count: int, code: int, last: str, workers: int) -> None:
    ended = run(tmp_path, FLAKY.format(count=count), workers)
    assert ended.returncode == code, ended.stdout
    for number in range(count):
        assert f"\ntest_them.py::test_flaky[{number}]\n" in ended.stdout
    assert f"{count} failed first; at most {MOST} may: {last}" in ended.stdout


def test_what_always_fails_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_wrong():\n    assert False\n", 0)
    assert ended.returncode == 1
    assert "FAILED test_them.py::test_wrong" in ended.stdout


def run(folder: Path, tests: str, workers: int) -> subprocess.CompletedProcess[str]:
    """What pytest says of a file of tests, in a process of its own."""
    (folder / "test_them.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "--numprocesses", str(workers), "-p", "tests.support.second_tries", "."]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
