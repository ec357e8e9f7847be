"""Numbers of examples for slow property tests: reduced in `make test`, full in `make soak`."""

from __future__ import annotations

import os
from typing import Final

SOAK: Final = bool(os.environ.get("TIEREDSTORE_SOAK"))
"""True in `make soak`, which has time for all examples."""


def examples(count: int) -> int:
    """Return ``count`` in `make soak`, otherwise two fifths of it, because each example takes tens of milliseconds."""
    return count if SOAK else max(4, count * 2 // 5)
