"""The demo runs, and says what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_process import REPOSITORY, environment


@pytest.mark.parametrize("store", ["filesystem", "s3"])
def test_the_demo_brings_every_segment_back_identical(store: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--store", store, str(tmp_path / "out")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nall 11 segments identical\n")
    assert "11 copied" in done.stdout
    assert "11 skipped" in done.stdout
    assert "MB/s" in done.stdout
    assert done.stdout.count("$ tieredstore fetch") == 11
    assert ("SeaweedFS" in done.stdout) == (store == "s3")
    assert "secret" not in done.stdout
