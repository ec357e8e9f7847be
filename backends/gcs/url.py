"""Settings from ``gs://bucket/prefix`` and, unless the settings file has them, from Google's environment variables."""

from __future__ import annotations

import os
from urllib.parse import SplitResult

from tieredstore.backends.contract.urls import bucket_of, prefix_of
from tieredstore.model import Properties


def properties_of(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a bucket, its endpoint and its credentials."""
    place = {"storage.backend.class": "gcs", "storage.gcs.bucket.name": bucket_of(parts), **prefix_of(parts)}
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator and "storage.gcs.endpoint.url" not in of_file:
        place["storage.gcs.endpoint.url"] = emulator if "://" in emulator else f"http://{emulator}"
    if not any(name.startswith("storage.gcs.credentials.") for name in of_file):
        # Use no credentials for an emulator, as Google's own client does.
        by_default = "false" if emulator and "storage.gcs.endpoint.url" in place else "true"
        place["storage.gcs.credentials.default"] = by_default
    return place
