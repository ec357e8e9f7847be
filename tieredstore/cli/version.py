"""Which version this is."""

from __future__ import annotations

import importlib.metadata


def version_text() -> str:
    """Name and version."""
    try:
        return f"tieredstore {importlib.metadata.version('tieredstore')}"
    except importlib.metadata.PackageNotFoundError:
        return "tieredstore (run from its source, not installed)"
