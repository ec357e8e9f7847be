"""Interleaved timing: runs every job once, then every job again, so that drift of the machine affects all equally.

The order differs between rounds, so that no job always follows the same other job, whose leftovers (such as garbage in
a server) may slow it down.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Taken:
    """The cost of one run of a job: wall-clock seconds, and seconds on all processors. The processor seconds are those
    of this process, unless the caller measures more processes.
    """

    seconds: float
    cpu_seconds: float


@contextmanager
def home_in(folder: Path | None) -> Generator[Path]:
    """Yield the absolute path of ``folder``, which is created if missing, and kept. If ``folder`` is None, yield the
    path of a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        yield home.absolute()


def interleaved_seconds(jobs: Mapping[str, Job], runs: int) -> dict[str, list[float]]:
    """Return the wall-clock seconds of each job in ``runs`` rounds. Before, run an uncounted round in the given
    order."""
    return {name: [run.seconds for run in taken] for name, taken in interleaved(jobs, runs).items()}


def interleaved(
    jobs: Mapping[str, Job],
    runs: int,
    *,
    processor_seconds: Callable[[], float] = time.process_time,
    clean_up: Job | None = None,
) -> dict[str, list[Taken]]:
    """Return the result of :func:`interleaved_seconds` with processor time, which other programs affect less.

    Call ``clean_up`` after each run; its time is not counted.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in jobs}
    order = list(jobs.items())
    for round_number in range(runs + 1):
        if round_number:
            random.Random(round_number).shuffle(order)
        for name, job in order:
            start, processor = time.perf_counter(), processor_seconds()
            job()
            run = Taken(time.perf_counter() - start, processor_seconds() - processor)
            if clean_up is not None:
                clean_up()
            if round_number:
                taken[name].append(run)
        print(f"round {round_number} of {runs}", file=sys.stderr)
    return taken


def rates(taken: Mapping[str, list[float]], size: int) -> dict[str, float]:
    """Return MB/s (10^6 bytes) at the median of each job's runs over ``size`` bytes."""
    return {name: size / statistics.median(seconds) / 1e6 for name, seconds in taken.items()}


def to_the_limit(taken: Mapping[str, list[Taken]], job: str, limits: tuple[str, ...]) -> dict[str, float]:
    """Return the speed of ``job`` divided by that of all ``limits`` in sequence (1: equally fast), by wall-clock and
    processor time.

    The result is the median of the rounds' ratios, because within a round the machine is equally busy for all jobs.
    """
    ratios = {
        "to the limit": [
            sum(taken[name][at].seconds for name in limits) / run.seconds for at, run in enumerate(taken[job])
        ],
        "to the limit by CPU time": [
            sum(taken[name][at].cpu_seconds for name in limits) / run.cpu_seconds for at, run in enumerate(taken[job])
        ],
    }
    return {name: round(statistics.median(values), 2) for name, values in ratios.items()}


def machine() -> dict[str, object]:
    """Return a description of the machine."""
    return {"processors": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
