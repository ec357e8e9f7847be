"""Slipcover's probes in the product's code, put there as it is imported.

Whoever imports this before the product measures: the workers of a run with ``-p tests.support.coverage``, and the
processes that :mod:`tests.support.measured_process` begins.
"""

from __future__ import annotations

import copyreg
import importlib
from typing import Any, Final

from tests.support.thread_frames import give_no_others
from tests.support.unread_probes import Probe, without_its_place

slipcover: Final[Any] = importlib.import_module("slipcover")  # it has no types
SETTINGS: Final[dict[str, Any]] = importlib.import_module("slipcover.config").read_config()

# Spark sends functions of ours to its workers with their code, and so with its probes.
copyreg.pickle(Probe, without_its_place)

give_no_others()
probes: Final = slipcover.Slipcover(branch=True, exclude_also=SETTINGS["exclude-also"])
slipcover.ImportManager(probes, slipcover.FileMatcher(sources=SETTINGS["source"])).__enter__()
