"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = REPOSITORY / "tests" / "golden"
"""What a real broker and the real plugin wrote, one folder a case."""

COVERAGE_VARIABLE: Final = "COVERAGE_OF_PROCESSES"
"""Names the folder for what processes that tests start have reached, a file of JSON each. Unset: nobody measures."""
