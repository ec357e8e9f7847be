"""Functions that make a store from settings, and settings from a store's URL.

A store's module, and its SDK, is imported on first use. A URL is short for settings:

    file:///folder          s3://bucket/prefix          gs://bucket/prefix          az://container/prefix

The prefix is the URL's path as written, with a ``/`` after it. Like the clouds' own tools, this module does not
percent-decode the path. Endpoint and credentials come from the settings file or, if it has none, from the environment
that each cloud's SDK reads.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast
from urllib.parse import SplitResult, quote

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.contract.urls import split_url
from tieredstore.config.installed import STORES, installed_class
from tieredstore.config.loading import settings_from
from tieredstore.config.properties import own_properties
from tieredstore.config.settings import Settings
from tieredstore.errors import ConfigError, excerpt
from tieredstore.installation import Extra
from tieredstore.model import Properties
from tieredstore.redaction import redacted


@dataclass(frozen=True, slots=True)
class StoreClass:
    """Module and name of a store's class, and the extra that installs its SDK."""

    module: str
    name: str
    extra: str = ""


BY_SETTING: Final[dict[str, StoreClass]] = {
    "filesystem": StoreClass("tieredstore.backends.filesystem.store", "FilesystemObjectStore"),
    "memory": StoreClass("tieredstore.backends.memory", "MemoryObjectStore"),
    "s3": StoreClass("tieredstore.backends.s3.store", "S3ObjectStore", "s3"),
    "gcs": StoreClass("tieredstore.backends.gcs.store", "GcsObjectStore", "gcs"),
    "azure": StoreClass("tieredstore.backends.azure.store", "AzureObjectStore", "azure"),
}
"""The store classes by their values of ``storage.backend.class``."""

SCHEMES: Final[dict[str, str]] = {
    "file": "tieredstore.backends.filesystem.url",
    "s3": "tieredstore.backends.s3.url",
    "gs": "tieredstore.backends.gcs.url",
    "az": "tieredstore.backends.azure.url",
}
"""The modules that translate a store's URL into settings, by the URL's scheme."""


class UrlModule(Protocol):
    """Interface of a module in ``SCHEMES``."""

    def properties_of(self, parts: SplitResult, of_file: Properties, /) -> dict[str, str]:
        """Return the settings for a URL; raise ConfigError for an invalid URL.

        Endpoint and credentials come from the environment if ``of_file``, the settings of the file, have none.
        """
        ...


class OpenedBySettings(Protocol):
    """Interface of a store's class, including a user's own."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ObjectStore:
        """Make the store; raise ConfigError if a setting is missing or invalid."""
        ...


def settings_with(url: str, texts: Properties, *, base_dir: Path | None = None, source: str | None = None) -> Settings:
    """Make settings from the properties ``texts`` and the store of ``url``; errors name ``source``. A path that begins
    with a single ``/`` names a folder. Relative paths in ``texts`` start from ``base_dir``."""
    properties, source = properties_with(url, texts, source=source)
    return settings_from(properties, base_dir=base_dir, source=source)


def properties_with(url: str, texts: Properties, *, source: str | None = None) -> tuple[Properties, str]:
    """Replace the store in ``texts`` by the store of ``url``. Return the new properties, and the name of their source
    for error messages.
    """
    # Two slashes begin a URL without a scheme. Such a URL may contain a password, so do not treat it as a path.
    is_path = url.startswith("/") and not url.startswith("//")
    # A folder's name may contain ``?`` or ``#``, so quote it.
    parts = SplitResult("file", "", quote(url), "", "") if is_path else split_url(url, tuple(SCHEMES))
    store = f"the store {url if is_path else f'{parts.scheme}://{parts.netloc}'}"
    source = store if source is None else f"{source}, with {store}"
    own = own_properties(texts, source)
    module = cast("UrlModule", importlib.import_module(SCHEMES[parts.scheme]))
    named = {own.prefix + name: text for name, text in module.properties_of(parts, own.values).items()}
    return {**texts, **named}, source


def store_from_settings(settings: Settings) -> ObjectStore:
    """Make the store that ``storage.backend.class`` names: one of this package's classes, or a user's class.

    A user's class is named by its dotted path, or by an entry point of an installed package. The class derives from
    ``ObjectStore`` and has the class method ``from_settings``.
    """
    name = settings.storage_backend
    store_class = _load(BY_SETTING.get(name) or _own_class(name))
    if not callable(getattr(store_class, "from_settings", None)):
        raise ConfigError(
            f"storage.backend.class {excerpt(redacted(name))!r} has no class method from_settings(settings), which "
            "opens the store"
        )
    return cast("OpenedBySettings", store_class).from_settings(settings)


def _own_class(name: str) -> StoreClass:
    try:
        installed = installed_class(STORES, name)
    except ValueError as error:
        raise ConfigError(f"storage.backend.class {excerpt(redacted(name))!r}: {error}") from error
    return _parse_dotted(installed or name)


def _parse_dotted(path: str) -> StoreClass:
    """Parse ``package.module:Class`` or ``package.module.Class``."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        known = ", ".join(BY_SETTING)
        raise ConfigError(
            f"storage.backend.class {excerpt(redacted(path))!r} is neither one of {known} nor package.module:Class"
        )
    return StoreClass(module, name)


def _load(entry: StoreClass) -> type[ObjectStore]:
    try:
        with Extra(f"the store {entry.extra or entry.name}", entry.extra):
            module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if f"{entry.module}.".startswith(f"{error.name}."):
            raise ConfigError(f"there is no module {entry.module}, which storage.backend.class names") from error
        raise
    store_class: object = getattr(module, entry.name, None)
    if not (isinstance(store_class, type) and issubclass(store_class, ObjectStore)):
        raise ConfigError(f"{entry.module}:{entry.name} is not a class that derives from ObjectStore")
    return store_class
