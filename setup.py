"""The compiled parts of the package; everything else is in pyproject.toml."""

from __future__ import annotations

from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDER = "tieredstore/kafka/records"
DEPENDS = [f"{FOLDER}/{name}" for name in ("_bytes.h", "_parse.pxd", "_batch.pxd", "_slabs.pxd", "_columns.pxd")]

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"tieredstore.kafka.records.{name}",
                [f"{FOLDER}/{name}.pyx"],
                depends=DEPENDS,
                include_dirs=[FOLDER],
                extra_compile_args=["-O3", "-Wno-unused-function"],
            )
            for name in ("_slabs", "_columns", "_kernel")
        ],
        language_level=3,
        build_dir="build/cython",
    )
)
