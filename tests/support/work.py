"""Measurement of work by Python's calls and peak memory, instead of time."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")
_NOW: Final = re.compile(r"VmRSS:\s+(\d+) kB")


@dataclass
class Work:
    """Number of calls of Python and C functions in all threads, and bytes by which the process grew at its peak."""

    calls: int = 0
    peak_bytes: int = 0


@contextlib.contextmanager
def measured() -> Generator[Work]:
    """Measure the block and the threads it starts; the result is filled in when the block has ended."""
    work, counter = Work(), itertools.count()

    def note(_frame: FrameType, _event: str, _arg: object) -> None:
        next(counter)

    before = _reset_peak()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield work
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        work.calls = next(counter)
        work.peak_bytes = max(0, _kilobytes(_PEAK) * 1024 - before)


def least_traced_peak(work: Callable[[], object]) -> int:
    """Return the bytes that Python allocated at the peak of ``work``. Try five times and take the least, because
    threads left by other tests may allocate in some tries.
    """
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for _ in range(5):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            work()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return min(peaks)


def _reset_peak() -> int:
    """Reset the process's peak; return its current size."""
    Path("/proc/self/clear_refs").write_text("5")
    return _kilobytes(_NOW) * 1024


def _kilobytes(of: re.Pattern[str]) -> int:
    match = of.search(_STATUS.read_text())
    assert match is not None
    return int(match[1])
