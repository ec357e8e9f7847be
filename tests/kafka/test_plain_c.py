"""The C kernel as on other processors: without intrinsics, and on Arm if a cross compiler is named.

For Arm, the tests run only three C headers: checksums and copies. For this machine's processor, they also build the
Cython extensions without intrinsics, which then decode the Java consumer's input.

`TIEREDSTORE_ARM_CC` and `TIEREDSTORE_ARM_RUN` are commands, such as `zig cc -target aarch64-linux-musl -static` and
`qemu-aarch64-static`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tieredstore.kafka.records import _kernel

SOURCE = Path(__file__).with_name("plain_kernel.c")
HEADERS = Path(_kernel.__file__).parent
SUMS = "c11716c9 d2e9e010\n"


def outcome(compiler: list[str], runner: list[str], program: Path) -> str:
    command = [*compiler, "-O2", f"-I{HEADERS}", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return subprocess.run([*runner, str(program)], capture_output=True, text=True, timeout=300, check=False).stdout


@pytest.mark.slow
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


# Import from the build folder before anything of the working tree.
DECODING = """
import sys
from pathlib import Path

built = Path(sys.argv[1])
sys.path.insert(0, str(built))
from tieredstore.kafka.records import _kernel
assert built in Path(_kernel.__file__).parents, _kernel.__file__
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
DECODERS = ("test_records_golden.py", "test_records_codecs.py", "test_records_damage.py", "test_batch_runs.py")


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.timeout(1800)
def test_all_extensions_without_intrinsics_decode_what_the_java_consumer_read(tmp_path: Path) -> None:
    built = tmp_path / "lib"
    build = subprocess.run(
        [sys.executable, "setup.py", "build", "--build-base", str(tmp_path / "base"), "--build-lib", str(built)],
        cwd=REPOSITORY, env={**os.environ, "CFLAGS": "-DTIEREDSTORE_PLAIN_C"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500, check=True,
    )  # fmt: skip
    compiled = [line for line in build.stdout.splitlines() if " -c " in line]
    assert len(compiled) == len(list(built.rglob("*.so")))
    assert all("-DTIEREDSTORE_PLAIN_C" in line for line in compiled)
    tests = [str(SOURCE.with_name(name)) for name in DECODERS]
    ran = subprocess.run(
        [sys.executable, "-c", DECODING, str(built), *tests],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert " passed" in ran.stdout
