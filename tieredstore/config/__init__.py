"""Typed settings under the names of Aiven's plugin, from ``.properties`` files, mappings and options.

The reference of all properties is ``docs/reference/settings.md``, which `make docs` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.config.encryption import EncryptionSettings, KeyPairSettings
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.loading import load_settings, settings_from
from tieredstore.config.properties import read_properties
from tieredstore.config.settings import Settings
from tieredstore.config.storage import ProxySettings

if TYPE_CHECKING:
    from tieredstore.config.clouds import AwsCredentials, AzureSettings, GcsSettings, S3Settings

__all__ = [
    "AwsCredentials",
    "AzureSettings",
    "ChunkCacheSettings",
    "EncryptionSettings",
    "FetchSettings",
    "GcsSettings",
    "IndexCacheSettings",
    "KeyPairSettings",
    "ManifestCacheSettings",
    "ProxySettings",
    "S3Settings",
    "Settings",
    "load_settings",
    "read_properties",
    "settings_from",
]


def __getattr__(name: str) -> object:
    """Import the settings of a cloud store on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.config import clouds  # noqa: PLC0415  see above

    return getattr(clouds, name)
