"""The compiled parts of the package; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

# Its types are partial.
cythonize: Any = importlib.import_module("Cython.Build").cythonize

KERNELS = {
    "tieredstore/backends/filesystem": (("_files",), ()),
    "tieredstore/remote/diskcache": (
        ("_value_files",),
        ("../../kafka/records/_bytes.h", "../../kafka/records/_fold.h"),
    ),
    "tieredstore/kafka/records": (
        ("_slabs", "_buffers", "_columns", "_checks", "_kernel"),
        (
            *("_bytes.h", "_fold.h", "_pages.h", "_parse.pxd", "_batch.pxd", "_slabs.pxd"),
            *("_buffers.pxd", "_appending.pxd", "_columns.pxd"),
            *("_expand.h", "_expand.pxd", "_lz4.h", "_matches.h", "_snappy.h"),
        ),
    ),
    "tieredstore/kafka": (
        ("_header_walk", "_runs"),
        ("records/_bytes.h", "records/_fold.h", "records/_parse.pxd", "records/_batch.pxd"),
    ),
    "tieredstore/consumer": (("_message",), ()),
    "tieredstore/pipelines/filing": (("_json_scan",), ("_json_scan.h",)),
    "tieredstore/pubsub/format": (("_checksums", "_packets", "_reading", "_writing"), ("_parse.h",)),
}

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"{folder.replace('/', '.')}.{name}",
                [f"{folder}/{name}.pyx"],
                depends=[f"{folder}/{part}" for part in depends],
                include_dirs=sorted({str(Path(folder, part).parent) for part in ("_", *depends)}),
                extra_compile_args=["-O3", "-Wno-unused-function"],
            )
            for folder, (names, depends) in KERNELS.items()
            for name in names
        ],
        language_level=3,
        build_dir="build/cython",
    )
)
