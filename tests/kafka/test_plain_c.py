"""The C of the kernel as other processors have it: without intrinsics, and on Arm where a cross compiler is named.

`TIEREDSTORE_ARM_CC` and `TIEREDSTORE_ARM_RUN` are commands, such as `zig cc -target aarch64-linux-musl -static` and
`qemu-aarch64-static`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tieredstore.kafka.records import _kernel

SOURCE = Path(__file__).with_name("plain_kernel.c")
HEADERS = Path(_kernel.__file__).parent
SUMS = "c11716c9 d2e9e010\n"


def outcome(compiler: list[str], runner: list[str], program: Path) -> str:
    command = [*compiler, "-O2", f"-I{HEADERS}", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return subprocess.run([*runner, str(program)], capture_output=True, text=True, timeout=300, check=False).stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("options", [[], ["-DTIEREDSTORE_PLAIN_C"]], ids=["with intrinsics", "plain"])
def test_sums_and_copies_are_the_same_with_and_without_intrinsics(options: list[str], tmp_path: Path) -> None:
    assert outcome(["cc", *options], [], tmp_path / "program") == SUMS


@pytest.mark.soak
@pytest.mark.skipif("TIEREDSTORE_ARM_CC" not in os.environ, reason="TIEREDSTORE_ARM_CC names no cross compiler")
@pytest.mark.parametrize("option", ["-mcpu=generic", "-mcpu=generic+crc"])
def test_arm_has_the_same_sums_and_copies(option: str, tmp_path: Path) -> None:
    compiler, runner = (shlex.split(os.environ[f"TIEREDSTORE_ARM_{name}"]) for name in ("CC", "RUN"))
    assert outcome([*compiler, option], runner, tmp_path / "program") == SUMS
