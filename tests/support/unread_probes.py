"""Inert probes for code that is pickled for another process, such as Spark's functions. They collect no coverage.

This module is separate because the process that unpickles the code imports it, and must not measure coverage.
"""

from __future__ import annotations

import copyreg
import importlib
from collections import defaultdict
from typing import Any, Final

_probe: Final[Any] = importlib.import_module("slipcover.probe")  # no types


class _Nobody:
    """Receiver that ignores a probe's reports."""

    def __init__(self) -> None:
        self.newly_seen: dict[str, set[object]] = defaultdict(set)

    def deinstrument_seen(self) -> None:
        """Do nothing."""


_nobody: Final = _Nobody()


def unread_probe() -> object:
    """Return an inert probe in place of another process's probe; it can be pickled again."""
    copyreg.pickle(Probe, without_its_place)
    return _probe.new(_nobody, "", 0, 50)


def without_its_place(_of_other_process: object) -> tuple[Any, ...]:
    """Pickle a probe as a call of ``unread_probe``."""
    return unread_probe, ()


Probe: Final[Any] = type(_probe.new(_nobody, "", 0, 50))
