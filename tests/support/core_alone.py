"""Runs the core's tests without its wings: ``python -m tests.support.core_alone ARGUMENTS-OF-PYTEST`` (`make core`).

The tests run in a copy of the tree without the wings' folders. Their interpreter has our packages except the editable
installation, which would find this tree's wings. Tests that need a wing are left out.
"""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.toolchain import environment
from tests.support.paths import REPOSITORY
from tests.support.servers.process import script_of_environment

WINGS: Final = frozenset({"consumer", "pipelines", "pubsub", "restore", "spark", "uploader"})

ROOTS: Final = ("backends", "benchmarks", "docs", "examples", "scripts", "tests", "tieredstore", "typings")
FILES: Final = ("Makefile", "README.md", "pyproject.toml")

AROUND: Final = frozenset(
    {"tests/asan", "tests/deployment", "tests/project", "tests/reference", "tests/development", "tests/testing"}
)
"""Folders left out: tests of the repository and of generated pages, and contract tests that need a wing."""

NAMING_WINGS: Final = (
    "tests/cli/app/test_completion.py::test_names_of_the_bucket_commands_options_and_choices_are_offered",
    "tests/cli/app/test_durations.py::test_commands_ask_for_them_in_the_same_words",
    "tests/cli/app/test_table.py",
    "tests/cli/bucket/test_bad_nights.py::test_a_deleted_topic",
    "tests/cli/bucket/test_bad_nights.py::test_a_full_disk",
    "tests/cli/bucket/test_refusals.py::test_a_denied_uploader_says_so_once",
    "tests/cli/test_screens.py",
    "tests/kafka/test_arrow_values.py::test_what_a_task_of_spark_does_imports_no_pandas",
    "tests/process/test_forks.py::test_a_worker_of_spark_has_managers_of_its_own_and_closes_none_of_its_parent_s",
    "tests/test_installation.py::test_without_optional_packages_every_entry_names_the_extra",
)
"""Tests that do not run although they import no wing: tests of all commands, and of a Spark task."""


def main(arguments: Sequence[str]) -> int:
    """Run pytest with ``arguments`` in a copy of the core, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="core-") as folder:
        tree = Path(folder).resolve()
        copy_core(tree)
        python = make_interpreter(tree)
        left_out = [f"--deselect={test}" for test in NAMING_WINGS]
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *arguments]
        servers = REPOSITORY / ".venv" / "servers"
        variables = {"TIEREDSTORE_SERVERS": str(servers), **environment(), "PYTHONPATH": str(tree)}
        return subprocess.run(command, cwd=tree, env=variables, check=False).returncode


def copy_core(tree: Path) -> None:
    """Link the repository into ``tree`` without the wings, their tests and the files that only those tests need."""
    for root in ROOTS:
        shutil.copytree(REPOSITORY / root, tree / root, symlinks=True, ignore=_left_out, copy_function=_link)
    for name in FILES:
        _link(str(REPOSITORY / name), str(tree / name))


def make_interpreter(tree: Path) -> Path:
    """Make an environment with our packages, but with tieredstore from ``tree``; return its interpreter."""
    venv.create(tree / ".venv", symlinks=True)
    (packages,) = tree.glob(".venv/lib/*/site-packages")
    # Python does not process .pth files in folders that a .pth file adds, so the editable installation has no effect.
    (packages / "core.pth").write_text(f"{tree}\n{sysconfig.get_path('purelib')}\n")
    (tree / ".venv" / "bin" / "weed").symlink_to(script_of_environment("weed"))
    return tree / ".venv" / "bin" / "python"


def tied_tests() -> set[str]:
    """Return the core's test files that import a wing, directly or through tests/support. They do not run."""
    around = tuple(f"{folder}/" for folder in AROUND)
    core = (path for path in tied_modules() if not str(path).startswith(around))
    return {str(path) for path in core if path.name.startswith("test_")}


def is_of_a_wing(path: Path) -> bool:
    """Return True if ``path`` is in a wing's folder, its tests or their support."""
    depth = 3 if path.parts[:2] == ("tests", "support") else 2
    return path.parts[0] in {"tests", "tieredstore"} and not WINGS.isdisjoint(path.parts[1:depth])


@functools.cache
def tied_modules() -> set[Path]:
    """Return the test modules that import a wing, directly or through other test modules."""
    imports = imports_of_tests()
    tied = {
        path for path, names in imports.items()
        if any(is_of_a_wing(name) or name.parts[0].startswith("pyspark") for name in names)
    }  # fmt: skip
    while more := {path for path, names in imports.items() if not tied.isdisjoint(names)} - tied:
        tied |= more
    return tied


@functools.cache
def imports_of_tests() -> Mapping[Path, set[Path]]:
    """Return the imports of each file of the core's tests, including those within functions."""
    paths = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "tests").rglob("*.py")]
    return {path: set(map(_file_of, _imported_names(path))) for path in paths if not is_of_a_wing(path)}


def _imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def _file_of(name: str) -> Path:
    """Return the file or folder of a module of this repository. For an external one, return where it would be."""
    parts = name.split(".")
    while parts:
        path = Path(*parts)
        if (REPOSITORY / path.with_suffix(".py")).is_file():
            return path.with_suffix(".py")
        if (REPOSITORY / path).is_dir():
            return path
        parts.pop()
    return Path(name.replace(".", "/"))


def _left_out(folder: str, names: list[str]) -> set[str]:
    paths = [Path(folder, name).relative_to(REPOSITORY) for name in names]
    return {path.name for path in paths if _is_left_out(path)}


def _is_left_out(path: Path) -> bool:
    if is_of_a_wing(path) or str(path) in AROUND:
        return True
    return path in tied_modules()


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # the temporary folder is on another file system
        shutil.copy2(source, target)
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
