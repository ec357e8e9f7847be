"""Interleaved timing: every job once, then every job again, so that a machine that drifts drifts for all of them.

Each round has an order of its own: what a job leaves behind (garbage in a server) is not always the same job's to pay.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping

Job = Callable[[], object]


def interleaved_seconds(jobs: Mapping[str, Job], runs: int) -> dict[str, list[float]]:
    """The wall seconds of each job, ``runs`` rounds after one that is not counted, which keeps the order given."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    order = list(jobs.items())
    for round_number in range(runs + 1):
        if round_number:
            random.Random(round_number).shuffle(order)
        for name, job in order:
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
