"""Locations in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = REPOSITORY / "tests" / "golden"
"""Golden output of a real broker and of the real plugin, with one folder per case."""

COVERAGE_VARIABLE: Final = "COVERAGE_OF_PROCESSES"
"""Variable with the folder for child processes' coverage, a JSON file each. If it is unset, none is measured."""
