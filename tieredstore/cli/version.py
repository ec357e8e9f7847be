"""Which version this is."""

from __future__ import annotations

from typing import Final

from tieredstore.installation import version

JSON_VERSION: Final = 1
"""The version of docs/json.md: of the names in the JSON that commands print, and of their meanings."""


def version_text() -> str:
    """Name and version."""
    return f"tieredstore {version()}"
