"""Typed settings under the names of Aiven's plugin, from ``.properties`` files, mappings and options.

The reference of all properties is ``docs/reference/settings.md``, which `make docs` writes.
"""

from __future__ import annotations

from tieredstore.config.loading import load_settings, settings_from
from tieredstore.config.properties import read_properties
from tieredstore.config.settings import Settings

__all__ = ["Settings", "load_settings", "read_properties", "settings_from"]
