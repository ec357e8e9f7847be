"""Locations in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = REPOSITORY / "tests" / "golden"
"""Output of a real broker and the real plugin, one folder per case."""

COVERAGE_VARIABLE: Final = "COVERAGE_OF_PROCESSES"
"""Variable with the folder where child processes write their coverage, one JSON file each. Unset: no coverage."""
