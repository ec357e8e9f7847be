"""The result of `make wheel`: the whole package once, for Python 3.11 and later, installed without a compiler."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.segments import case_path
from tests.support.paths import REPOSITORY

# A library without types.
setuptools: Any = importlib.import_module("setuptools")

PACKAGES = ("pyspark_memq", "pyspark_tieredstore", "tieredstore")
COMPILED = {
    "tieredstore/backends/filesystem/_files",
    "tieredstore/consumer/_message",
    "tieredstore/kafka/_header_walk",
    "tieredstore/kafka/_runs",
    "tieredstore/kafka/records/_buffers",
    "tieredstore/kafka/records/_checks",
    "tieredstore/kafka/records/_columns",
    "tieredstore/kafka/records/_kernel",
    "tieredstore/kafka/records/_slabs",
    "tieredstore/pipelines/filing/_json_scan",
    "tieredstore/pubsub/format/_packets",
    "tieredstore/pubsub/format/_reading",
    "tieredstore/pubsub/format/_writing",
    "tieredstore/remote/diskcache/_value_files",
}
IMPORTS = """
import importlib, json, sys
modules = [importlib.import_module(name) for name in sys.argv[1:]]
print(json.dumps([module.__file__ for module in modules]))
"""


def sources(folder: Path, suffixes: set[str]) -> set[str]:
    """Return files of the package as imported; a linked folder counts like a folder."""
    return {
        str((Path(path) / name).relative_to(folder))
        for package in PACKAGES
        for path, _, names in os.walk(folder / package, followlinks=True)
        for name in names
        if Path(name).suffix in suffixes or name == "py.typed"
    }


def test_every_folder_of_modules_is_a_package_that_is_packed() -> None:
    folders = {str(Path(source).parent) for source in sources(REPOSITORY, {".py"})}
    packed: list[str] = setuptools.find_packages(
        str(REPOSITORY), include=["pyspark_memq", "pyspark_tieredstore", "tieredstore*"]
    )
    assert {name.replace(".", "/") for name in packed} == folders


def test_what_is_compiled_is_known_here() -> None:
    compiled = {source.removesuffix(".pyx") for source in sources(REPOSITORY, {".pyx"}) if source.endswith(".pyx")}
    assert compiled == COMPILED


def without_compiler(python: Path) -> dict[str, str]:
    return {"PATH": str(python.parent), "CC": "false", "HOME": str(python.parent)}


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment that also has this environment's libraries. Return the new Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=300, env=without_compiler(python))
    # Add the libraries after the installation, because pip takes this repository's editable installation for the same
    # project.
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.soak
def test_the_wheel_is_whole_and_needs_no_compiler(tmp_path: Path) -> None:
    command = ["make", "-o", ".venv/installed", "wheel", f"DIST={tmp_path}"]
    subprocess.run(command, check=True, timeout=1800, cwd=REPOSITORY, capture_output=True)
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    with tarfile.open(archive) as files:
        within = {name.partition("/")[2] for name in files.getnames()}
        assert all(not member.issym() for member in files)
    assert sources(REPOSITORY, {".py", ".pyi", ".pyx", ".pxd", ".h"}) <= within
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
    libraries = {name for name in names if name.endswith(".so")}
    assert libraries == {f"{name}.abi3.so" for name in COMPILED}
    assert names - libraries == sources(REPOSITORY, {".py", ".pyi"})

    python = install(wheel, tmp_path / "environment")
    modules = [name.replace("/", ".") for name in sorted(COMPILED)]
    run = [str(python), "-I", "-c", IMPORTS, *modules]
    shown = subprocess.run(run, check=True, timeout=300, env=without_compiler(python), stdout=subprocess.PIPE)
    files_of = [Path(file) for file in json.loads(shown.stdout)]
    assert all(file.is_relative_to(tmp_path / "environment") for file in files_of)
    assert not list((tmp_path / "environment").rglob("*.pyx"))

    case = case_path("11-single-record")
    listing = [str(python.with_name("tieredstore")), "ls", "-c", "rsm.properties", "-p", "all", "--json"]
    listed = subprocess.run(
        listing, check=True, timeout=300, env=without_compiler(python), cwd=case, stdout=subprocess.PIPE
    )
    *rows, _ = map(json.loads, listed.stdout.splitlines())
    assert [row["topic"] for row in rows]
