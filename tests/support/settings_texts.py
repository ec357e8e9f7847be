"""Minimal settings, minimal settings of each store, and the error message of invalid settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tieredstore.config import settings_from
from tieredstore.errors import ConfigError

BASE: Final = {"storage.backend.class": "memory", "chunk.size": "4194304"}
S3: Final = BASE | {"storage.backend.class": "s3", "storage.s3.bucket.name": "b", "storage.s3.region": "r"}
GCS: Final = BASE | {
    "storage.backend.class": "gcs", "storage.gcs.bucket.name": "b", "storage.gcs.credentials.default": "true",
}  # fmt: skip
AZURE: Final = BASE | {
    "storage.backend.class": "azure", "storage.azure.container.name": "c", "storage.azure.account.name": "a",
}  # fmt: skip


def error_of(properties: Mapping[str, str]) -> str:
    """Return the message of the settings error."""
    with pytest.raises(ConfigError) as caught:
        settings_from(properties)
    return str(caught.value)
