"""The compiled parts of the package; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

from setuptools import Extension, setup

# Untyped: these modules have incomplete types.
Cython: Any = importlib.import_module("Cython")
cythonize: Any = importlib.import_module("Cython.Build").cythonize
build_ext: Any = importlib.import_module("setuptools.command.build_ext").build_ext

ROOT: Final = Path(__file__).resolve().parent
KERNELS: Final = {
    "tieredstore/backends/filesystem": ("_files",),
    "tieredstore/remote/diskcache": ("_value_files",),
    "tieredstore/kafka/records": ("_slabs", "_buffers", "_columns", "_checks", "_kernel"),
    "tieredstore/kafka": ("_header_walk", "_runs"),
    "tieredstore/consumer": ("_message",),
    "tieredstore/pipelines/filing": ("_json_scan",),
    "tieredstore/pubsub/format": ("_packets", "_reading", "_writing"),
}
USING_RECORDS: Final = {"tieredstore/kafka", "tieredstore/remote/diskcache"}
# Debug information would be most of a module's size, and take a quarter of the compile time.
FLAGS: Final = ["-O3", "-Wno-unused-function", *([] if "CFLAGS" in os.environ else ["-g0"])]
# A wheel's modules use Python's stable interface alone, so one wheel fits this version and all later ones, at no cost
# (scripts/cross_wheels.py). Modules built in place use the full interface.
OLDEST: Final = (3, 11)
STABLE: Final = [("Py_LIMITED_API", f"0x{OLDEST[0]:02x}{OLDEST[1]:02x}0000"), ("CYTHON_LIMITED_API", "1")]


class BuildExtensions(build_ext):
    """Compile modules in parallel. In place, reuse those that any clone compiled from the same bytes."""

    def finalize_options(self) -> None:
        """Use all cores. Ignore file times, which change with a checkout and do not change with the compiler."""
        # Set this first: the file names depend on it. Set it for both cases, because an editable installation first
        # lists the sources as for a wheel.
        in_place = bool(self.inplace or self.editable_mode)
        for ext in self.distribution.ext_modules:
            ext.py_limited_api = not in_place
            ext.define_macros = [] if in_place else STABLE
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        self.force = True
        self.cython = threading.Lock()  # Cython's compiler serves one thread at a time

    def run(self) -> None:
        """Build. Use the cache only in a clone: a source distribution lacks ``scripts``, which implements it."""
        self.reuses = bool(self.inplace) and (ROOT / "scripts").is_dir()
        if self.reuses:
            sys.path.insert(0, str(ROOT))
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile ``ext``, or take it from the cache."""
        if not self.reuses:
            self.compile(ext)
            return
        from scripts.caches import cached, recipe_key  # noqa: PLC0415

        target = Path(self.get_ext_fullpath(ext.name))
        key = recipe_key(ext.name, *self.tools(), *map(_text, (*ext.sources, *ext.depends)))
        source = cached(f"{ext.name}-{key}", partial(self.compile, ext)) / target.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

    def compile(self, ext: Extension, folder: Path | None = None) -> None:
        """Compile ``ext``; copy the result into ``folder``."""
        with self.cython:
            ext.sources = cythonize([ext], build_dir=self.build_temp, force=True)[0].sources
        super().build_extension(ext)
        if folder is not None:
            shutil.copy(self.get_ext_fullpath(ext.name), folder)

    def tools(self) -> list[str]:
        """Return what affects the compiled module besides its sources: Python, Cython, the compiler and its options."""
        command = self.compiler.compiler_so
        asked = [command[0], "--version"]
        version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout  # noqa: S603
        return [sys.version, Cython.__version__, version, *command, *self.compiler.linker_so, *FLAGS]


def _text(path: str) -> str:
    return f"{path}\n{(ROOT / path).read_text()}"


def extension(folder: str, name: str) -> Extension:
    """Return one module, which depends on all declarations and headers of the folders that it may include."""
    folders = [folder, *(["tieredstore/kafka/records"] if folder in USING_RECORDS else [])]
    shared = (path.relative_to(ROOT) for one in folders for path in (ROOT / one).iterdir())
    return Extension(
        f"{folder.replace('/', '.')}.{name}",
        [f"{folder}/{name}.pyx"],
        depends=sorted(str(path) for path in shared if path.suffix in {".pxd", ".h"}),
        include_dirs=folders,
        extra_compile_args=FLAGS,
    )


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": BuildExtensions},
        options={"bdist_wheel": {"py_limited_api": "cp{}{}".format(*OLDEST)}},
        ext_modules=[extension(folder, name) for folder, names in KERNELS.items() for name in names],
    )
