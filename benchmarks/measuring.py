"""Interleaved timing: every job once, then every job again, so that a machine that drifts drifts for all of them."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping

Job = Callable[[], object]


def interleaved_seconds(jobs: Mapping[str, Job], runs: int) -> dict[str, list[float]]:
    """The wall seconds of each job, ``runs`` rounds after one that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for round_number in range(runs + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds = time.perf_counter() - start
            if round_number:
                taken[name].append(seconds)
        print(f"round {round_number} of {runs}", file=sys.stderr)
    return taken


def rates(taken: Mapping[str, list[float]], size: int) -> dict[str, float]:
    """MB/s (10^6 bytes) at the median of each job's runs over ``size`` bytes."""
    return {name: size / statistics.median(seconds) / 1e6 for name, seconds in taken.items()}


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {"processors": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
