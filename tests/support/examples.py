"""How many examples a slow property test takes: a part of them in `make test`, all of them in `make soak`."""

from __future__ import annotations

import os
from typing import Final

SOAK: Final = bool(os.environ.get("TIEREDSTORE_SOAK"))
"""Whether this is `make soak`, which has the time for all examples."""


def examples(count: int) -> int:
    """``count`` examples in `make soak`, two in five of them otherwise: each costs this test tens of milliseconds."""
    return count if SOAK else max(4, count * 2 // 5)
