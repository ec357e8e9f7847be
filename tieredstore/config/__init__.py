"""Typed settings under the names of Aiven's plugin, from ``.properties`` files, mappings and options.

The reference of all properties is ``docs/settings.md``, which ``python -m tieredstore.config.reference`` writes.
"""

from __future__ import annotations

from tieredstore.config.encryption import EncryptionSettings, KeyPairSettings
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.loading import load_settings, settings_from
from tieredstore.config.properties import read_properties
from tieredstore.config.settings import Settings
from tieredstore.config.storage import AwsCredentials, AzureSettings, GcsSettings, ProxySettings, S3Settings

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
