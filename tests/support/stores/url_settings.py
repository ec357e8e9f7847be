"""Settings for a store's URL, together with a settings file."""

from __future__ import annotations

from pathlib import Path

from tieredstore.backends.registry import settings_with
from tieredstore.config import Settings
from tieredstore.config.properties import read_properties


def settings_at(url: str, settings_file: Path | str | None = None) -> Settings:
    """Load ``settings_file`` (or the defaults), but with the store of ``url``."""
    if settings_file is None:
        return settings_with(url, {})
    base_dir = Path(settings_file).absolute().parent
    return settings_with(url, read_properties(settings_file), base_dir=base_dir, source=str(settings_file))
