"""Bucket with every oddity: a hole, an object without a segment, a hold."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.cli.cli_process import tieredstore


def make_it_odd(store: Path, settings: Path) -> None:
    """Change the demo's bucket: delete the first segment of a partition of ``none``, and one in the middle of ``txn``.
    Add an old log without a manifest, and a hold on ``smallbatch``.
    """
    manifest = next(store.glob("none-*/0/*2225-*.rsm-manifest"))
    txn = next(store.glob("txn-*/0/*1209-*.rsm-manifest"))
    for path in [*manifest.parent.glob(f"{0:020}-*"), *txn.parent.glob(f"{1209:020}-*")]:
        path.unlink()
    left = next(store.glob("smallbatch-*/0/*.log"))
    stray = left.with_name(left.name[:21] + "A" * 21 + "A.log")
    shutil.copy(left, stray)
    os.utime(stray, (1_700_000_000, 1_700_000_000))
    assert tieredstore("holds", "place", "case", "smallbatch", "-c", settings).code == 0
