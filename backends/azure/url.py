"""Settings from ``az://container/prefix`` and from the environment variables of Azure's command line."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import SplitResult

from tieredstore.backends.contract.urls import bucket_of, prefix_of
from tieredstore.errors import ConfigError
from tieredstore.model import Properties

_IDENTITY: Final = ("connection.string", "account.name", "account.key", "sas.token")
_VARIABLES: Final = ("connection.string", "account", "key", "sas.token")
"""Settings that Azure's command line also reads from environment variables."""


def properties_of(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a container and its account."""
    place = {"storage.backend.class": "azure", "storage.azure.container.name": bucket_of(parts), **prefix_of(parts)}
    # If the settings file has any part of the identity, ignore the environment. Otherwise a key from the environment
    # could be used with the file's account.
    if any(f"storage.azure.{name}" in of_file for name in _IDENTITY):
        return place
    variables = {name: os.environ.get(f"AZURE_STORAGE_{name.replace('.', '_').upper()}") for name in _VARIABLES}
    if variables["connection.string"]:
        return {**place, "storage.azure.connection.string": variables["connection.string"]}
    if not variables["account"]:
        raise ConfigError(
            f"no storage account is given for az://{parts.netloc}: set storage.azure.account.name in a settings file, "
            "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT"
        )
    texts = {
        "account.name": variables["account"],
        "account.key": variables["key"],
        "sas.token": variables["sas.token"],
    }
    return {**place, **{f"storage.azure.{name}": text for name, text in texts.items() if text}}
