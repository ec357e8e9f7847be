"""The table of all ways to lie."""

from __future__ import annotations

from typing import Final

from tieredstore.testing.faulty_server.connection_ways import CONNECTION_WAYS
from tieredstore.testing.faulty_server.way import Way

WAYS: Final[tuple[Way, ...]] = (*CONNECTION_WAYS,)
"""All of them; no two have one name."""
