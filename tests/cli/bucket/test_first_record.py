"""From a wheel to the first record of a user's bucket: three commands in an empty home, each step timed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from tests.cli.bucket.test_first_command import REGION, SECRET, Aws
from tests.support.faulty_server.server import FaultyServer
from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
KEPT = ("PIP_", "SSL_", "REQUESTS_", "http", "HTTP", "no_proxy", "NO_PROXY")
"""Prefixes of variables that tell pip where its index is; no other variables of this environment are kept."""


def first_commands() -> list[str]:
    """Return the commands that README begins with."""
    block = re.search(r"^## Your bucket.*?```console\n(.*?)```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


def test_readme_begins_with_three_commands() -> None:
    assert [command.split()[:2] for command in first_commands()] == [
        ["pip", "install"], ["tieredstore", "ls"], ["tieredstore", "cat"],
    ]  # fmt: skip


@pytest.mark.soak
def test_a_wheel_reads_the_first_record_in_three_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test prints the duration of each step without a limit: it depends on the machine and its package index."""
    make = ["make", "-o", ".venv/installed", "wheel", f"DIST={tmp_path}"]
    subprocess.run(make, check=True, timeout=1800, cwd=REPOSITORY, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "home"
    home.mkdir()
    venv.create(tmp_path / "env", with_pip=True)
    tools = tmp_path / "env" / "bin"
    kept = {name: text for name, text in os.environ.items() if name.startswith(KEPT)}
    taken: list[tuple[str, float, str]] = []
    with FaultyServer(Aws("07-txn")) as server:
        keys = {"AWS_ACCESS_KEY_ID": "AKIDIRECT", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
        environment = {
            **kept,
            **keys,
            "AWS_ENDPOINT_URL": server.url,
            "HOME": str(home),
            "PATH": f"{tools}:/usr/bin:/bin",
        }
        for command in first_commands():
            line = (
                command.replace("'.[", f"'{wheel.as_posix()}[")
                .replace("s3://bucket/prefix TOPIC", "s3://bucket/prod txn")
                .replace("s3://bucket/prefix", "s3://bucket/prod")
            )
            if "tieredstore cat" in line:
                line += " --json"
            begin = time.monotonic()
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                env=environment,
                cwd=home,
                capture_output=True,
                text=True,
                timeout=1800,
                check=False,
            )
            taken.append((command, time.monotonic() - begin, done.stdout))
            assert done.returncode == 0, done.stderr
    assert "txn" in taken[1][2]
    records = [json.loads(record) for record in taken[2][2].splitlines()]
    assert [record["topic"] for record in records] == ["txn"] * 5
    with capsys.disabled():
        for command, seconds, _ in taken:
            sys.stdout.write(f"\n{seconds:6.1f} s  {command}")
        sys.stdout.write(f"\n{sum(seconds for _, seconds, _ in taken):6.1f} s in {len(taken)} commands\n")
