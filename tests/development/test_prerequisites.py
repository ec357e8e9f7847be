"""Each missing prerequisite of a machine is named in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY


def check(python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", REPOSITORY / "scripts" / "check-prerequisites", python],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **variables},
    )


def test_a_python_and_a_compiler_are_enough() -> None:
    done = check(sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_python_and_a_missing_compiler_are_both_named() -> None:
    done = check("python9", CC="no-such-compiler")
    assert done.returncode == 1
    python, compiler = done.stderr.splitlines()
    assert "python9 is not on the PATH; install Python 3.11 or later" in python
    assert "no C compiler (no-such-compiler)" in compiler


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    assert "Python 3.9.2 is too old; Python 3.11 or later" in check(str(old)).stderr
