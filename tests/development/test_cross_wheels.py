"""``make wheels``: whole, small, for four platforms; the one for this machine runs without a compiler."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from scripts.cross_wheels import PLATFORMS
from tests.project.test_wheel import COMPILED, install, without_compiler
from tests.support.paths import REPOSITORY

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
        version = f"{sys.version_info.major}{sys.version_info.minor}"
        suffix = f".cpython-{version}-{each.machine}-linux-{each.libc}.so"
        assert set(libraries) == {f"{name}{suffix}" for name in COMPILED}
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
