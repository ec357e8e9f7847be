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

# A probe that was reached stays and costs little. To remove those that were reached, Slipcover looks at every function
# of every module, which takes as long as a million probes: so it does that only for a probe that is reached
# often (its own limit is 50). A fork would do it all again.
_REACHED_OFTEN: Final = 20_000

give_no_others()
probes: Final = slipcover.Slipcover(branch=True, d_miss_threshold=_REACHED_OFTEN, exclude_also=SETTINGS["exclude-also"])
slipcover.ImportManager(probes, slipcover.FileMatcher(sources=SETTINGS["source"])).__enter__()
