"""Each benchmark runs to its end, in small. Nothing else runs them between two releases."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Final

import pytest

from tests.support.paths import REPOSITORY

SMALL: Final = {
    "transform": "--mib 16 --runs 1",
    "fetch": "--mib 16 --runs 1 --server none",
    "random": "--mib 16 --rounds 1 --reads 20",
    "backends": "--mib 8 --runs 1 --store s3-minio",
    "decode": "--runs 1",
    "catalog": "--segments 800 --runs 1",
    "consumer": "--only speed --records 300000 --runs 1",
    "ops": "--manifests 300 --mib 64 --runs 1 --rotations 20",
    "spark": "--records 100000 --runs 1",
    "compute": "--records 100000 --runs 1",
    "pipelines": "--records 200000 --runs 1 --without-broker --what ratios requests",
    "pubsub": "--runs 1 --mib 16 --what encode decode throughput broker",
    "restore": "--mib 16 --records 20000 --runs 1",
    "uploader": "--partitions 20 --mib 32 --runs 1 --only many large memory",
}
"""The options of a small run, for each benchmark of `make bench`."""


def test_make_bench_has_each() -> None:
    (loop,) = (line for line in (REPOSITORY / "Makefile").read_text().splitlines() if "benchmarks.bench_" in line)
    names = loop.partition(" in ")[2].partition(";")[0]
    assert names.split() == [*SMALL]


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.broker
@pytest.mark.parametrize("name", SMALL)
def test_it_prints_figures(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", f"benchmarks.bench_{name}", *shlex.split(SMALL[name])],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    assert json.loads(run.stdout)
