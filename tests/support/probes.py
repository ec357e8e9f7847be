"""Slipcover's probes, inserted into product code at import.

A process measures if it imports this module before the product: the workers of a run with ``-p
tests.support.coverage``, and processes that start with :mod:`tests.support.measured_process`.
"""

from __future__ import annotations

import copyreg
import importlib
from typing import Any, Final

from tests.support.thread_frames import give_no_others
from tests.support.unread_probes import Probe, without_its_place

slipcover: Final[Any] = importlib.import_module("slipcover")  # no types
SETTINGS: Final[dict[str, Any]] = importlib.import_module("slipcover.config").read_config()

# Spark sends our functions to its workers with their code, including the probes.
copyreg.pickle(Probe, without_its_place)

# A probe that stays after it was reached costs little. To remove such probes, Slipcover visits every function of every
# module, which takes up to 0.1 s. With its own limit of 50, it would do so about a hundred times in a worker, and again
# in each fork.
_REACHED_OFTEN: Final = 20_000

give_no_others()
probes: Final = slipcover.Slipcover(branch=True, d_miss_threshold=_REACHED_OFTEN, exclude_also=SETTINGS["exclude-also"])
slipcover.ImportManager(probes, slipcover.FileMatcher(sources=SETTINGS["source"])).__enter__()
