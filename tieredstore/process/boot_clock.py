"""The time since the machine started, the time that it slept included."""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux alone counts sleep by a clock of its own; its monotonic one stands still meanwhile, as macOS's does not."""


def boot_clock_s() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)
