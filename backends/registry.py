"""Which store a URL or a setting names. A store's module, and the SDK that it needs, is imported on first use."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import SplitResult, urlsplit

from tieredstore.backends.base import ObjectStore
from tieredstore.config.installed import installed_store
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from tieredstore.config import Settings


@dataclass(frozen=True, slots=True)
class StoreClass:
    """Where a store's class is. ``sdk`` names the packages that come with ``extra`` (both empty: nothing is needed)."""

    module: str
    name: str
    extra: str = ""
    sdk: tuple[str, ...] = ()


BY_SETTING: Final[dict[str, StoreClass]] = {
    "filesystem": StoreClass("tieredstore.backends.filesystem.store", "FilesystemObjectStore"),
    "memory": StoreClass("tieredstore.backends.memory", "MemoryObjectStore"),
    "s3": StoreClass("tieredstore.backends.s3.store", "S3ObjectStore", "s3", ("boto3", "botocore")),
    "gcs": StoreClass("tieredstore.backends.gcs.store", "GcsObjectStore", "gcs", ("google", "requests")),
    "azure": StoreClass("tieredstore.backends.azure.store", "AzureObjectStore", "azure", ("azure", "requests")),
}
"""The store classes by the name that ``storage.backend.class`` has in the settings."""

SCHEMES: Final[dict[str, str]] = {
    "file": "filesystem",
    "memory": "memory",
    "s3": "s3",
    "gs": "gcs",
    "az": "azure",
}
"""The names of ``BY_SETTING`` by the scheme of a URL."""


class OpenedByUrl(Protocol):
    """What ``open_store`` asks of a class in the table."""

    @classmethod
    def from_url(cls, url: SplitResult) -> ObjectStore:
        """The store that ``url`` names; ConfigError if it names none."""
        ...


class OpenedBySettings(Protocol):
    """What ``store_from_settings`` asks of a store's class, a user's own included."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ObjectStore:
        """The store that the settings describe; ConfigError if one is missing or wrong."""
        ...


def open_store(url: str) -> ObjectStore:
    """The store of a URL of one of ``SCHEMES``; ConfigError for another scheme or a malformed URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}:" for scheme in SCHEMES)
        raise ConfigError(f"{url!r} does not name a store; a store's URL starts with one of {known}")
    return cast("OpenedByUrl", _loaded(BY_SETTING[SCHEMES[parts.scheme]])).from_url(parts)


def store_from_settings(settings: Settings) -> ObjectStore:
    """The store that ``storage.backend.class`` names: one of ours, or a user's class.

    That is given by its dotted path, or by the name that an installed package gave it. It derives from ``ObjectStore``
    and has the class method ``from_settings``.
    """
    name = settings.storage_backend
    found = _loaded(BY_SETTING.get(name) or _own_class(name))
    if not callable(getattr(found, "from_settings", None)):
        raise ConfigError(f"storage.backend.class {name!r} has no class method from_settings(settings) to open it by")
    return cast("OpenedBySettings", found).from_settings(settings)


def _own_class(name: str) -> StoreClass:
    try:
        return _dotted(installed_store(name) or name)
    except ValueError as error:
        raise ConfigError(f"storage.backend.class {name!r}: {error}") from error


def _dotted(path: str) -> StoreClass:
    """``package.module:Class`` or ``package.module.Class``."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        known = ", ".join(BY_SETTING)
        raise ConfigError(f"storage.backend.class {path!r} is neither one of {known} nor package.module:Class")
    return StoreClass(module, name)


def _loaded(wanted: StoreClass) -> type[ObjectStore]:
    found: object = getattr(_module(wanted), wanted.name, None)
    if not (isinstance(found, type) and issubclass(found, ObjectStore)):
        raise ConfigError(f"{wanted.module}:{wanted.name} is not a class that derives from ObjectStore")
    return found


def _module(wanted: StoreClass) -> ModuleType:
    try:
        return importlib.import_module(wanted.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        # Any other module that is missing is a fault of the installation, and says best itself what it is.
        if missing.partition(".")[0] in wanted.sdk:
            raise ConfigError(
                f"the store {wanted.name} needs the package {missing}; install tieredstore[{wanted.extra}]"
            ) from error
        if f"{wanted.module}.".startswith(f"{missing}."):
            raise ConfigError(f"there is no module {wanted.module}, which storage.backend.class names") from error
        raise
