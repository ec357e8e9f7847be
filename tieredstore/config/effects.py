"""Which properties change something here: one table, read by the loader and by the reference."""

from __future__ import annotations

import enum
from typing import Final


class Effect(enum.Enum):
    """What a property does here; the value is the reference's word for it."""

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
"""Known and accepted, but nothing here looks at them. A name, or a beginning and ``*``."""

REFUSED: Final = ("storage.aws.credentials.provider.class",)
"""Accepting these would take another identity, or another meaning, in silence."""


def effect_of(name: str) -> Effect:
    """What the property ``name`` (without prefix) does here."""
    if name in REFUSED:
        return Effect.REFUSED
    # A star stands for a whole family, whose names the plugin does not fix.
    matching = any(name == row or (row.endswith("*") and name.startswith(row[:-1])) for row in WITHOUT_EFFECT)
    return Effect.WITHOUT_EFFECT if matching else Effect.IN_EFFECT
