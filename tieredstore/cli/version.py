"""Which version this is."""

from __future__ import annotations

from tieredstore.installation import version


def version_text() -> str:
    """Name and version."""
    return f"tieredstore {version()}"
