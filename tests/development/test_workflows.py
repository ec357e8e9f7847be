"""The workflows of GitHub: valid, with pinned actions, and calling the commands that this repository tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from scripts.toolchain import GO, provide
from tests.support.paths import REPOSITORY

WORKFLOWS: Final = sorted((REPOSITORY / ".github" / "workflows").iterdir())
ACTIONLINT: Final = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_actionlint_finds_no_fault() -> None:
    command = [str(provide(GO)), "run", ACTIONLINT, "-no-color", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=800)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)", workflow.read_text())
    assert used
    pinned = re.compile(r"\./.*|[\w/-]+@([0-9a-f]{40}|v\d+\.\d+\.\d+)")
    assert [action for action in used if not pinned.fullmatch(action)] == []


def test_what_ci_runs_is_one_command() -> None:
    commands = {path.stem: re.findall(r"- run: (.+)", path.read_text()) for path in WORKFLOWS}
    assert commands["test"] == [".ci/run"]
    assert commands["build"] == ["make sdist sbom"]
    assert [path.stem for path in WORKFLOWS if "id-token: write" in path.read_text()] == ["publish"]
