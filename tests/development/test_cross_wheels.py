"""Wheels: ``make wheels`` for four platforms, whole and small; the same bytes on arm64 and on other Pythons."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from scripts.cross_wheels import PLATFORMS
from tests.project.test_wheel import COMPILED, IMPORTS, install, without_compiler
from tests.support.paths import REPOSITORY
from tests.support.servers.debian_package import debian_package, debian_tree

LARGEST: Final = 4 << 20
ELF_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""The field ``e_machine`` in the header of an ELF file."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheels by platform."""
    folder = tmp_path_factory.mktemp("wheels")
    command = ["make", "-o", ".venv/installed", "wheels", f"DIST={folder}"]
    subprocess.run(command, check=True, timeout=3500, cwd=REPOSITORY)
    return {path.stem.split("-")[-1]: path for path in folder.glob("*.whl")}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_platform_has_a_whole_and_small_wheel(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {each.name for each in PLATFORMS}
    for each in PLATFORMS:
        assert wheels[each.name].stat().st_size <= LARGEST
        with zipfile.ZipFile(wheels[each.name]) as files:
            libraries = {name: files.read(name) for name in files.namelist() if ".so" in name}
        assert set(libraries) == {f"{name}.abi3.so" for name in COMPILED}
        machines = {int.from_bytes(data[18:20], "little") for data in libraries.values()}
        assert machines == {ELF_MACHINES[each.machine]}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_one_for_this_machine_reads_the_sample(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = install(wheels[f"manylinux_2_28_{platform.machine()}"], tmp_path / "environment")
    sample = tmp_path / "sample"
    shutil.copytree(REPOSITORY / "examples" / "sample", sample)
    ours = Path(sys.executable)
    for words in (["ls"], ["cat", "orders", "--json"]):
        shown = [
            subprocess.run(
                [str(each.with_name("tieredstore")), *words, "-c", "store.properties"],
                check=True, timeout=300, env=without_compiler(each), cwd=sample, stdout=subprocess.PIPE, text=True,
            ).stdout
            for each in (python, ours)
        ]  # fmt: skip
        assert shown[0] == shown[1] != ""


GOLDEN: Final = (
    "tests/backends/filesystem/test_visits.py",
    "tests/consumer/test_messages.py",
    "tests/kafka/test_batch_runs.py",
    "tests/kafka/test_log_scan.py",
    "tests/kafka/test_records_golden.py",
    "tests/pubsub/format/test_golden.py",
    "tests/pubsub/format/test_packets.py",
    "tests/remote/diskcache/test_value_files.py",
)
"""Tests of the bytes that compiled modules read and write; none starts a process or a server."""
TIMES_IN_JSON: Final = """
from tests.support.records import json_texts
assert json_texts.check(1, 1000) > 100
"""
"""A check of ``_json_scan`` that replaces its tests, because those need all clouds' libraries."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_golden_bytes_on_an_emulated_arm64(wheels: dict[str, Path], tmp_path: Path) -> None:
    debian = debian_tree("bookworm", "arm64", "python3", "libstdc++6")
    emulator = debian_package("qemu-user-static") / "usr" / "bin" / "qemu-aarch64-static"
    # pip does not know that wheels for an older glibc also run here: bookworm has Python 3.11 and glibc 2.36.
    platforms = ["--python-version=3.11", *(f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37))]
    site = install_apart(wheels["manylinux_2_28_aarch64"], tmp_path / "site", Path(sys.executable), *platforms)
    check_golden([emulator, "-L", debian, debian / "usr" / "bin" / "python3"], site, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["python3.12", "python3.13"])
def test_golden_bytes_on_another_python(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    if (python := python_of(name)) is None:
        pytest.skip(f"this machine has no {name}")
    subprocess.run([python, "-m", "venv", tmp_path / "environment"], check=True, timeout=300)
    own = tmp_path / "environment" / "bin" / "python"
    site = install_apart(wheels[f"manylinux_2_28_{platform.machine()}"], tmp_path / "site", own)
    check_golden([own], site, tmp_path)


def python_of(name: str) -> Path | None:
    """Return the program: pyenv's, which need not be on the path, or the machine's."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"*/bin/{name}"))
    found = kept[-1] if kept else shutil.which(name)
    return Path(found) if found else None


def pins(folder: Path) -> Path:
    """Write the versions that the lock pins, but no hashes. With hashes, pip would require a hash of our wheel too."""
    file = folder / "constraints.txt"
    lock = (REPOSITORY / "requirements.lock").read_text()
    file.write_text(re.sub(r" \\$|^ +--hash.*\n", "", lock, flags=re.MULTILINE))
    return file


def install_apart(wheel: Path, folder: Path, python: Path, *platforms: str) -> Path:
    """Install the wheel and the libraries of the golden tests into a folder of their own."""
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    asked = (f"{wheel}[cache,kafka,s3]", "aiokafka", "hypothesis", "pytest", "pytest-timeout")
    target = ("--only-binary=:all:", "--target", folder, "--constraint", pins(folder.parent))
    subprocess.run([*pip, *platforms, *target, *asked], check=True, timeout=1200)
    return folder


def check_golden(python: list[str | Path], site: Path, scratch: Path) -> None:
    """Import all compiled modules from ``site`` and run the golden tests beside them."""
    tree = scratch / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "spark")
    for folder in ("scripts", "tests"):
        shutil.copytree(REPOSITORY / folder, tree / folder, ignore=left_out)
    shutil.copy(REPOSITORY / "pyproject.toml", tree)
    variables = {"PATH": os.defpath, "HOME": str(scratch), "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        return subprocess.run(
            [*python, *words], check=True, timeout=3000, cwd=tree, env=variables, stdout=subprocess.PIPE, text=True
        ).stdout

    modules = [name.replace("/", ".") for name in sorted(COMPILED)]
    files = [Path(file) for file in json.loads(run("-c", IMPORTS, *modules))]
    assert [file.relative_to(site).as_posix().partition(".")[0] for file in files] == sorted(COMPILED)
    run("-c", TIMES_IN_JSON)
    assert re.search(r"^\d{3,} passed", run("-m", "pytest", "-q", "-p", "no:cacheprovider", *GOLDEN), re.MULTILINE)
