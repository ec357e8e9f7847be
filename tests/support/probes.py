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

give_no_others()
probes: Final = slipcover.Slipcover(branch=True, exclude_also=SETTINGS["exclude-also"])
slipcover.ImportManager(probes, slipcover.FileMatcher(sources=SETTINGS["source"])).__enter__()
