"""Settings from ``file:///folder``."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote

from tieredstore.backends.contract.urls import check_exact, show_url
from tieredstore.errors import ConfigError
from tieredstore.model import Properties


def properties_of(parts: SplitResult, _: Properties) -> dict[str, str]:
    """Return the settings for a folder. Only ``file:`` URLs are percent-decoded."""
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(
            f"{show_url(parts.geturl())} is not the URL of a local folder; write file:///path/of/the/folder"
        )
    return {"storage.backend.class": "filesystem", "storage.root": check_exact(unquote(parts.path))}
