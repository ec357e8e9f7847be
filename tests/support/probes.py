"""Slipcover's probes, inserted into product code at import.

A process is measured if it imports this module before the product. The workers of a run with ``-p
tests.support.coverage`` do so, and processes that import :mod:`tests.support.measured_process` first.
"""

from __future__ import annotations

import copyreg
import importlib
from typing import Any, Final

from tests.support.thread_frames import give_no_others
from tests.support.unread_probes import Probe, without_its_place

slipcover: Final[Any] = importlib.import_module("slipcover")  # no types
SETTINGS: Final[dict[str, Any]] = importlib.import_module("slipcover.config").read_config()

# Make probes picklable, because Spark sends our functions to its workers with their code, including the probes.
copyreg.pickle(Probe, without_its_place)

# Raise the limit at which Slipcover removes probes that were reached often. Such a probe costs little. To remove it,
# Slipcover visits all functions of all modules, in up to 0.1 s; by default, a worker and each of its forks would do
# this about a hundred times.
_REACHED_OFTEN: Final = 20_000

give_no_others()
probes: Final = slipcover.Slipcover(branch=True, d_miss_threshold=_REACHED_OFTEN, exclude_also=SETTINGS["exclude-also"])
slipcover.ImportManager(probes, slipcover.FileMatcher(sources=SETTINGS["source"])).__enter__()
