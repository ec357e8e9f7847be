"""The effect that each property has in this package, for the loader and for the reference."""

from __future__ import annotations

import enum
from typing import Final


class Effect(enum.Enum):
    """The effect of a property in this package. The value is the reference's word for this effect."""

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
"""Names, or prefixes ending in ``*``, of properties that are accepted without effect."""

REFUSED: Final = ("storage.aws.credentials.provider.class",)
"""Refused properties. If this package ignored the Java class, it would silently use other credentials."""


def effect_of(name: str) -> Effect:
    """Return the effect of the property ``name`` (without prefix)."""
    if name in REFUSED:
        return Effect.REFUSED
    # A star stands for any ending, because the plugin does not fix the names of these properties.
    matching = any(name == row or (row.endswith("*") and name.startswith(row[:-1])) for row in WITHOUT_EFFECT)
    return Effect.WITHOUT_EFFECT if matching else Effect.IN_EFFECT
