"""Create .venv with all packages pinned in requirements.lock, and this project: `python3 -m scripts.environment`.

Only the standard library is available when this runs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Final

from scripts.steps import numbered, run_main

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
_LOCK: Final = ROOT / "requirements.lock"


def main() -> None:
    """Create or update it; keep existing parts."""
    packages = len(re.findall(r"^[\w.-]+==", _LOCK.read_text(), re.MULTILINE))
    create, install, build = numbered(
        (
            "creating .venv",
            f"installing the {packages} packages that requirements.lock pins (several minutes where none is cached)",
            "compiling the record decoder",
        )
    )
    pip = (VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
    with create:
        # Another Python could not find the packages, which would waste disk space.
        if _python_of(VENV) not in (None, _version()):
            shutil.rmtree(VENV)
        create.run((sys.executable, "-m", "venv", VENV))
    with install:
        install.run((*pip, "--require-hashes", "--requirement", _LOCK), PipProgress().describe)
        install.status = ""
    with build:
        build.run((*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT), environment=_with_compiler())


class PipProgress:
    """Progress of pip, from the lines that it prints."""

    def __init__(self) -> None:
        self._collected = 0

    def describe(self, line: str) -> str | None:
        """Return a short status; None if the line has no news."""
        words = line.split()
        match words:
            case ["Collecting", requirement, *_]:
                self._collected += 1
                return f"{self._collected}: {requirement.split('==')[0]}"
            case ["Downloading", file, *size]:
                return f"{self._collected}: downloading {file.rpartition('/')[2]} {' '.join(size)}"
            case ["Building", "wheel", "for", package, *_]:
                return f"building {package}"
            case ["Installing", "collected", *_]:
                return "unpacking them"
            case _:
                return None


def _with_compiler() -> dict[str, str]:
    """Return an environment with a compiler: ``cc`` if the one that built Python has another name here."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return {**({} if shutil.which(compiler) else {"CC": "cc"}), **os.environ}


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _python_of(venv: Path) -> str | None:
    """Return the major and minor version of the Python that made ``venv``; None if there is none."""
    try:
        text = (venv / "pyvenv.cfg").read_text()
    except OSError:
        return None
    match = re.search(r"^version\s*=\s*(\d+\.\d+)", text, re.MULTILINE)
    return match[1] if match else None


if __name__ == "__main__":
    run_main(main)
