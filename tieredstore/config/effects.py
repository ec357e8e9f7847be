"""The effect of each property here: one table, read by the loader and by the reference."""

from __future__ import annotations

import enum
from typing import Final


class Effect(enum.Enum):
    """The effect of a property here; the value is the reference's word for it."""

    IN_EFFECT = "in effect"
    WITHOUT_EFFECT = "accepted without effect"
    REFUSED = "refused"


WITHOUT_EFFECT: Final = (
    "metrics.*",
    "iceberg.*",
    "structure.provider.*",
    "storage.overwrite.enabled",
    "fetch.indexes.cache.thread.pool.size",
    "fetch.chunk.cache.thread.pool.size",
)
"""Names, or prefixes ending in ``*``, that are accepted but not used here."""

REFUSED: Final = ("storage.aws.credentials.provider.class",)
"""Accepting these would silently use another identity or change the meaning."""


def effect_of(name: str) -> Effect:
    """Return the effect of the property ``name`` (without prefix) here."""
    if name in REFUSED:
        return Effect.REFUSED
    # A star covers a family whose names the plugin does not fix.
    matching = any(name == row or (row.endswith("*") and name.startswith(row[:-1])) for row in WITHOUT_EFFECT)
    return Effect.WITHOUT_EFFECT if matching else Effect.IN_EFFECT
