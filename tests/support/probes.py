"""Slipcover's probes, inserted into product code at import.

A process is measured if it imports this module before the product. The workers of a run with ``-p
tests.support.coverage`` do so, and processes that import :mod:`tests.support.measured_process` first.
"""

from __future__ import annotations

import copyreg
import importlib
import marshal
import sys
from typing import Any, Final

from tests.support.probed_code import Finder
from tests.support.removed_probes import Probes
from tests.support.unread_probes import Probe, without_its_place

slipcover: Final[Any] = importlib.import_module("slipcover")  # no types
SETTINGS: Final[dict[str, Any]] = importlib.import_module("slipcover.config").read_config()

# Make probes picklable, because Spark sends our functions to its workers with their code, including the probes.
copyreg.pickle(Probe, without_its_place)

probes: Final = Probes(SETTINGS["exclude-also"])
sys.meta_path.insert(0, Finder(probes, slipcover.FileMatcher(sources=SETTINGS["source"])))


def reached() -> bytes:
    """Return the lines and branches of each imported file, and those that this process has reached, marshalled.

    Slipcover's own report would take seconds, because it reads all sources to leave out excluded lines.
    """
    with probes.lock:
        for file, places in probes._get_newly_seen().items():
            probes.all_seen[file].update(places)
        return marshal.dumps(
            {
                file: (lines, probes.code_branches[file], probes.all_seen[file])
                for file, lines in probes.code_lines.items()
            }
        )
