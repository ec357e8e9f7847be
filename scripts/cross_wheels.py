"""Wheels for Linux with glibc and with musl, for x86-64 and arm64, by Zig's C compiler.

    python -m scripts.cross_wheels FOLDER

The Makefile runs this for `make wheels`, after it has installed Zig and auditwheel apart from other packages. All
platforms use this machine's Python headers, because the definitions for x86-64 Linux hold for arm64 and for musl too.

Each wheel fits Python 3.11 and later, because setup.py compiles its modules for the stable interface alone (abi3). One
wheel per Python version would be no faster. To measure this, 7 processes with abi3 and 7 without ran in turn on a busy
machine. The processor time of the fastest with abi3, divided by that of the fastest without, was 0.93 to 1.02 for
bench_decode's jobs, 0.90 to 1.03 for bench_transform's jobs without compression, and 1.02 for copying memory. With
compression it was 1.00 to 1.19, although zstd takes most of the time, and both builds have the same zstd. A second
measurement of these jobs, at the median of 8 copies in each of 3 processes, gave 0.98 and 1.03.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.caches import cache_folder
from scripts.environment import ROOT, VENV
from scripts.sdist import commit_time, write_sdist
from scripts.steps import numbered, run_main

_TOOLS: Final = VENV / "wheels"
# Our C headers enable SSE 4.2 in single functions, and check the processor before calling them. Zig's baseline excludes
# the crc32 instruction, which SSE 4.2 implies. So allow this instruction, which no other code uses.
_MACHINES: Final = {"x86_64": ("-mcrc32",), "aarch64": ()}

# auditwheel can check wheels for all platforms, but its command line accepts only those of the machine on which it
# runs.
_AUDIT: Final = """
import sys
from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.main import main

machine, libc = sys.argv[1:3]
del sys.argv[1:3]
Architecture.detect = lambda: Architecture(machine)
Libc.detect = lambda: Libc.MUSL if libc == "musl" else Libc.GLIBC
sys.exit(main())
"""


@dataclass(frozen=True)
class Platform:
    """The kind of machine that a wheel is for."""

    machine: str
    tag: str
    """The platform's tag in the wheel's name, without the machine."""
    libc: str
    target: str
    """Zig's name of the C library, with its version."""

    @property
    def name(self) -> str:
        """Return the whole tag."""
        return f"{self.tag}_{self.machine}"

    def compiler(self) -> list[str]:
        """Return the command that compiles for this platform."""
        zig = str(_TOOLS / "ziglang" / "zig")
        return [zig, "cc", "-target", f"{self.machine}-linux-{self.target}", *_MACHINES[self.machine]]

    def environment(self, scratch: Path) -> dict[str, str]:
        """Return the environment variables with which setuptools and Zig build for this platform. Only Zig's C
        libraries are cached."""
        return {
            **os.environ,
            "CC": shlex.join(self.compiler()),
            "LDSHARED": shlex.join([*self.compiler(), "-shared", "-s"]),
            "_PYTHON_HOST_PLATFORM": f"linux-{self.machine}",
            "ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(scratch / "zig"),
        }


PLATFORMS: Final = [
    Platform(machine, *libc)
    for machine in _MACHINES
    for libc in (("manylinux_2_28", "gnu", "gnu.2.28"), ("musllinux_1_2", "musl", "musl"))
]


def main() -> None:
    """Write the wheels into the folder that the command line names."""
    write_wheels(write_sdist(ROOT, Path(sys.argv[1])), Path(sys.argv[1]))


def write_wheels(archive: Path, folder: Path) -> None:
    """Compile the source distribution for each platform, and write wheels that auditwheel has checked."""
    time = {"SOURCE_DATE_EPOCH": str(commit_time(ROOT))}
    apart = {
        "PYTHONPATH": str(_TOOLS),
        "PATH": f"{_TOOLS / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    for platform, step in zip(PLATFORMS, numbered(each.name for each in PLATFORMS), strict=True):
        with step, tempfile.TemporaryDirectory() as scratch:
            tree, built = Path(scratch, "tree"), Path(scratch, "built")
            tree.mkdir()
            subprocess.run(("tar", "-xzf", archive, "-C", tree, "--strip-components", "1"), check=True)
            setup = (sys.executable, "setup.py", "-q")
            variables = platform.environment(Path(scratch)) | time
            step.run((*setup, "build"), environment=variables, folder=tree)
            if platform.libc == "musl":
                # Zig links to ``libc.so``, musl's own name, but distributions install musl under this name.
                name = f"libc.musl-{platform.machine}.so.1"
                rename = (_TOOLS / "bin" / "patchelf", "--replace-needed", "libc.so", name)
                step.run((*rename, *tree.glob("build/lib*/**/*.so")))
            step.run((*setup, "bdist_wheel", "--skip-build", "--dist-dir", built), environment=variables, folder=tree)
            (wheel,) = built.iterdir()
            audit = (sys.executable, "-c", _AUDIT, platform.machine, platform.libc)
            repair = (*audit, "repair", "--only-plat", "--plat", platform.name, "--wheel-dir", folder, wheel)
            step.run(repair, environment=os.environ | apart | time)


if __name__ == "__main__":
    run_main(main)
