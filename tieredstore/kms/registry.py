"""Key management services by name: those of this package, and those that other installed packages offer as entry
points.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Final

from tieredstore.config.named_class import KEY_SOURCES, installed_class
from tieredstore.errors import ConfigError, excerpt
from tieredstore.installation import Extra
from tieredstore.kms.base import KeySource
from tieredstore.kms.calls import ask_service

_SERVICES: Final = {
    "aws": "tieredstore.kms.aws:AwsKeySource",
    "gcp": "tieredstore.kms.gcp:GcpKeySource",
    "azure": "tieredstore.kms.azure:AzureKeySource",
    "vault": "tieredstore.kms.vault:VaultKeySource",
}


def key_source(service: str, key: str, endpoint_url: str | None = None) -> KeySource:
    """Return the service's key; raise ConfigError for an unknown service, or if its SDK is not installed.

    Raise KeyServiceUnavailableError if the SDK is not ready by the deadline, because it may look for credentials on the
    network.
    """
    path = _SERVICES.get(service) or _find_installed(service)
    module, _, name = path.partition(":")
    with Extra(f"the key management service {service}"):
        offered: object = getattr(importlib.import_module(module), name, None)
    if not (isinstance(offered, type) and issubclass(offered, KeySource)):
        raise ConfigError(f"{excerpt(path)} is not a class that derives from KeySource")
    return ask_service(f"opening the key of {service}", partial(offered.from_settings, key, endpoint_url))


def _find_installed(service: str) -> str:
    try:
        path = installed_class(KEY_SOURCES, service)
    except ValueError as error:
        raise ConfigError(f"private.key.kms {excerpt(service)!r}: {error}") from error
    if path is None:
        raise ConfigError(
            f"private.key.kms {excerpt(service)!r} is neither one of {', '.join(_SERVICES)} nor a service of an "
            "installed package"
        )
    return path
