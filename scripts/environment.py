"""Create .venv with this project and the packages of its extras, or all packages that requirements.lock pins.

    python3 -m scripts.environment [EXTRA...]

Only the standard library is available when this runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from scripts.caches import cache_folder
from scripts.steps import numbered, run_main

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
LOCKS: Final = ROOT / "scripts" / "wheels"
PYTHON: Final = VENV / "bin" / "python"
UV: Final = (VENV / "bin" / "uv", "pip", "install", "--no-progress", "--python", PYTHON)
_LOCK: Final = ROOT / "requirements.lock"
_PINNED: Final = ("--constraints", _LOCK, "--build-constraints", _LOCK)
# uv builds a wheel of PySpark's 450 MB of jars. Jars are compressed already, so do not compress the wheel.
_STORED: Final = ("--config-settings-package", "pyspark:--build-option=--compression=stored")


def main() -> None:
    """Create or update .venv; keep existing parts."""
    extras = sys.argv[1:]
    wanted = [word for extra in extras for word in ("--extra", extra)]
    requirements: tuple[str | Path, ...] = (
        (*_PINNED, *wanted, "--requirements", ROOT / "pyproject.toml")
        if extras
        else ("--require-hashes", "--requirements", _LOCK)
    )
    create, tools, install, project = numbered(
        (
            "creating .venv with uv",
            "installing Cython",
            "installing the packages that requirements.lock pins, and compiling the record decoder meanwhile",
            "installing this project",
        )
    )
    with create:
        # Packages that were installed for another version of Python are of no use to this version, and waste disk
        # space.
        if _python_of(VENV) not in (None, _version()):
            shutil.rmtree(VENV)
        create.run((sys.executable, "-m", "venv", VENV))
        pip = (PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
        create.run((*pip, "--require-hashes", "--requirement", LOCKS / "uv.lock"))
    variables = uv_variables()
    with tools:
        tools.run((*UV, *_PINNED, "Cython", "setuptools"), environment=variables)
    with install, ThreadPoolExecutor() as pool:
        compiling = pool.submit(
            install.run, (PYTHON, "setup.py", "-q", "build_ext", "--inplace"), environment=_with_compiler(), folder=ROOT
        )
        install.run((*UV, *_STORED, *requirements), str.strip, environment=variables)
        install.status = "compiling"
        compiling.result()
        install.status = ""
    with project:
        project.run(
            (*UV, "--no-deps", "--no-build-isolation", "--editable", ROOT), environment=variables | _with_compiler()
        )
    # Each set-up adds a build of PySpark (1.8 GB) to uv's cache. Pruning deletes all builds except the newest.
    subprocess.run((UV[0], "cache", "prune", "--quiet"), env=variables, check=False)


def uv_variables() -> dict[str, str]:
    """Return the environment variables for uv, with pip's index, the system's certificates and a writable cache."""
    configured = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    index = re.search(r"\.index-url='(.+)'$", configured.stdout, re.MULTILINE)
    return {
        "UV_CACHE_DIR": str(cache_folder() / "uv"),
        "UV_HTTP_TIMEOUT": "180",
        "UV_SYSTEM_CERTS": "1",
        **({"UV_DEFAULT_INDEX": index[1]} if index else {}),
        **os.environ,
    }


def _with_compiler() -> dict[str, str]:
    """Return the environment variables for compiling: they choose ``cc`` if the compiler that built Python is
    missing."""
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
