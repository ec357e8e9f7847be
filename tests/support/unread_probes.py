"""Probes of code that goes to another process by value, as Spark's pickling sends functions: what they see stays there.

A module of its own: that process imports it, and must not measure.
"""

from __future__ import annotations

import copyreg
import importlib
from collections import defaultdict
from typing import Any, Final

_probe: Final[Any] = importlib.import_module("slipcover.probe")  # it has no types


class _Nobody:
    """What a probe tells what it has seen."""

    def __init__(self) -> None:
        self.newly_seen: dict[str, set[object]] = defaultdict(set)

    def deinstrument_seen(self) -> None:
        """Nothing."""


_nobody: Final = _Nobody()


def unread_probe() -> object:
    """A probe in place of one of another process, which may be sent on to a third."""
    copyreg.pickle(Probe, without_its_place)
    return _probe.new(_nobody, "", 0, 50)


def without_its_place(_of_other_process: object) -> tuple[Any, ...]:
    """How to pickle a probe."""
    return unread_probe, ()


Probe: Final[Any] = type(_probe.new(_nobody, "", 0, 50))
