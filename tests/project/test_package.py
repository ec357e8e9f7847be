"""The installed package: one name per module, and no import that a task does not need."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tieredstore
import tieredstore.backends
from tests.support.golden.segments import settings_text
from tests.support.paths import REPOSITORY
from tests.support.records.small_segments import ENC, ZSTD

MODULES = [module.name for module in pkgutil.walk_packages(tieredstore.__path__, "tieredstore.")]
ENDS_THE_PROCESS = {"tieredstore.cli.__main__"}


def test_backends_are_one_folder_behind_a_relative_link() -> None:
    link = REPOSITORY / "tieredstore" / "backends"
    assert link.is_symlink()
    assert link.readlink() == Path("../backends")
    assert Path(tieredstore.backends.__path__[0]).resolve() == REPOSITORY / "backends"


def test_every_module_imports_under_its_one_name() -> None:
    for name in sorted(set(MODULES) - ENDS_THE_PROCESS):
        module = importlib.import_module(name)
        assert module.__name__ == name
        assert "backends" not in sys.modules
        is_compiled = name.endswith(("_kernel", "_slabs", "_columns", "_runs", "_walk", "_message", "_files"))
        assert module.__doc__ or is_compiled, name


def compiled_sources(*patterns: str) -> list[Path]:
    """Return the compiled sources, including those in the linked folder, which a search does not follow."""
    package = REPOSITORY / "tieredstore"
    folders = (package, package / "backends")
    return [path for folder in folders for pattern in patterns for path in folder.rglob(pattern)]


def test_a_source_distribution_has_what_the_compiled_parts_are_made_of() -> None:
    lines = [line.split() for line in (REPOSITORY / "MANIFEST.in").read_text().splitlines()]
    included = [(Path(line[1]), pattern) for line in lines if line[0] == "recursive-include" for pattern in line[2:]]
    sources = compiled_sources("*.pyx", "*.pxd", "*.h", "*.pyi")
    assert len(sources) > 10
    for source in sources:
        place = source.relative_to(REPOSITORY)
        assert any(place.is_relative_to(folder) and place.match(pattern) for folder, pattern in included), place


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_what_is_compiled_is_compiled_again_when_it_changes() -> None:
    rules = subprocess.run(
        ["make", "-npr", "help"], capture_output=True, text=True, check=True, timeout=120, cwd=REPOSITORY
    ).stdout
    (needed,) = (line.split()[1:] for line in rules.splitlines() if line.startswith(".venv/installed:"))
    assert {str(path.relative_to(REPOSITORY)) for path in compiled_sources("*.pyx", "*.pxd", "*.h")} <= set(needed)


def test_what_packages_export_is_there() -> None:
    for name in sorted(set(MODULES) - ENDS_THE_PROCESS):
        module = importlib.import_module(name)
        exported: list[str] = getattr(module, "__all__", [])
        assert len(set(exported)) == len(exported)
        assert all(hasattr(module, each) for each in exported)


COPY_AND_FETCH = """
import json, sys
from pathlib import Path
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager

settings = json.loads(sys.argv[1])
segment = describe(discover(Path(sys.argv[2])).segments[0])
metadata = segment.to_metadata(Uuid.random())
with RemoteStorageManager(settings_from(settings)) as manager:
    manager.copy_log_segment_data(metadata, segment.files)
    assert manager.fetch_log_segment(metadata, 0).read() == segment.files.log_segment.read_bytes()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.slow
def test_copy_and_fetch_import_no_sdk_and_no_data_frame_library(tmp_path: Path) -> None:
    settings = settings_text("01-none") | ZSTD | ENC | {"storage.root": str(tmp_path)}
    originals = REPOSITORY / "tests" / "golden" / "11-single-record" / "original"
    command = [sys.executable, "-c", COPY_AND_FETCH, json.dumps(settings), str(originals)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=REPOSITORY)
    loaded = set(json.loads(result.stdout))
    heavy = {
        "pyarrow",
        "pyspark",
        "pandas",
        "numpy",
        "boto3",
        "botocore",
        "google",
        "azure",
        "diskcache",
        "typer",
        "rich",
    }
    assert not loaded & heavy
