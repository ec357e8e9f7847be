"""Servers for the tests that are not on PyPI: `python -m scripts.servers`.

Installs MinIO (built from its Go module), Azurite (npm), Kafka brokers and ZooKeeper (jars from a Maven repository)
into .venv/servers, all pinned. A test that starts a server installs the server first. The user's cache folder keeps
parts that are slow to build for other clones. A second run does nothing unless a pin has changed. SeaweedFS and
fake-gcs-server come as wheels with the `servers` extra.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scripts import jars
from scripts.caches import cache_folder, cached, locked, place, recipe_key
from scripts.environment import ROOT, VENV
from scripts.steps import Step, run_main
from scripts.toolchain import GO, NODE, environment, npm, provide

_MINIO: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
_MINIO_FLAGS: Final = ("-v", "-trimpath", "-ldflags", "-s -w")
_AZURITE: Final = ROOT / "tests" / "support" / "servers" / "azurite"
_NPM_LOCK: Final = ("package.json", "package-lock.json")
NAMES: Final = ("minio", "azurite", *jars.LOCKS)


def main() -> None:
    """Install the servers that are missing, the slowest first."""
    for name in NAMES:
        install(name, VENV / "servers")


def install(name: str, folder: Path) -> None:
    """Install a server into ``folder`` unless it is there; wait if another process is installing it."""
    recipe, label, make = _recipe(name)
    key = f"{name}-{recipe}"
    target = folder / name
    with locked(folder / f"{name}.key") as stamp:
        if target.exists() and stamp.read().decode() == key:
            return
        stamp.truncate(0)
        with Step(label) as step:
            make(step, target, key)
        stamp.write(key.encode())


def _recipe(name: str) -> tuple[str, str, Callable[[Step, Path, str], None]]:
    """Return the key of a server's cached parts, the label of its step, and the function that installs it."""
    if name == "minio":
        return recipe_key(_MINIO, *_MINIO_FLAGS), f"MinIO{_first_build()}", _install_minio
    if name == "azurite":
        return recipe_key(*((_AZURITE / file).read_bytes() for file in _NPM_LOCK)), "Azurite", _install_azurite
    lock = jars.LOCKS[name]
    return recipe_key(lock.read_bytes()), f"the jars of {name}", partial(_install_jars, lock)


def _first_build() -> str:
    minutes = max(2, 10 // (os.cpu_count() or 1))
    return f": the first build takes about {minutes} minutes; {cache_folder()} keeps it for all clones"


def _install_azurite(step: Step, target: Path, key: str) -> None:
    def make(folder: Path) -> None:
        provide(NODE)
        for name in _NPM_LOCK:
            shutil.copy(_AZURITE / name, folder)
        quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")
        # Run npm in the folder instead of passing --prefix, because npm reads its lock from the current folder.
        step.run((*npm(), "ci", *quiet), environment=environment(), folder=folder)

    step.status = "npm ci"
    place(cached(key, make), target)
    step.status = ""


def _install_jars(lock: Path, step: Step, target: Path, _key: str) -> None:
    def tell(status: str) -> None:
        step.status = status

    # Empty the folder first, because the server would also load jars of another version.
    shutil.rmtree(target, ignore_errors=True)
    jars.install(jars.read_lock(lock.read_text()), target / "libs", tell)


def _install_minio(step: Step, target: Path, key: str) -> None:
    def make(folder: Path) -> None:
        go = provide(GO)
        packages = 0

        def describe(line: str) -> str:
            nonlocal packages
            packages += not line.startswith("go: ")
            return f"{packages} packages compiled" if packages else line.strip()

        # GOTOOLCHAIN=local keeps Go from downloading another version of itself, which no lock checks.
        variables = {**environment(), "GOBIN": str(folder), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        # -p limits the number of packages that Go builds at a time, because a small machine lacks memory for more.
        jobs = f"-p={os.environ.get('TIEREDSTORE_GO_JOBS', '2')}"
        # ``nice`` gives running tests precedence over the build, which otherwise delays their collection.
        command = ("nice", "-n", "10", go, "install", jobs, *_MINIO_FLAGS, f"github.com/minio/minio@{_MINIO}")
        step.run(command, describe, environment=variables, folder=folder)

    place(cached(key, make) / "minio", target)
    step.status = ""


if __name__ == "__main__":
    run_main(main)
