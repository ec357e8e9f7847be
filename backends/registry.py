"""Which store the settings name, and which settings a URL stands for.

A store's module, and the SDK that it needs, is imported on first use. A URL says what the settings of a file would:

    file:///folder          s3://bucket/prefix          gs://bucket/prefix          az://container/prefix

A prefix is the path as it is written, with a ``/`` after it; nothing in it is percent-decoded, as the clouds' own tools
have it. What says where the store is and who asks comes from the file; where it says nothing of the kind, from the
environment that each cloud's SDK reads.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, cast
from urllib.parse import SplitResult, quote

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.contract.urls import split_url
from tieredstore.config.installed import STORES, installed_class
from tieredstore.config.loading import settings_from
from tieredstore.config.properties import own_properties, read_properties
from tieredstore.config.settings import Settings
from tieredstore.errors import ConfigError, excerpt
from tieredstore.installation import install_command
from tieredstore.model import Properties
from tieredstore.redaction import redacted


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
    "file": "tieredstore.backends.filesystem.url",
    "s3": "tieredstore.backends.s3.url",
    "gs": "tieredstore.backends.gcs.url",
    "az": "tieredstore.backends.azure.url",
}
"""The modules that know what a URL says, by its scheme."""


class UrlModule(Protocol):
    """What ``settings_at`` asks of a module in ``SCHEMES``."""

    def properties_of(self, parts: SplitResult, of_file: Properties, /) -> dict[str, str]:
        """The properties that a URL stands for, beside those that a settings file has already; or ConfigError."""
        ...


class OpenedBySettings(Protocol):
    """What ``store_from_settings`` asks of a store's class, a user's own included."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ObjectStore:
        """The store that the settings describe; ConfigError if one is missing or wrong."""
        ...


def settings_at(url: str, settings_file: Path | str | None = None) -> Settings:
    """The settings of ``settings_file`` (without one, the defaults) for the store that ``url`` names.

    A path that begins with one ``/`` stands for the URL of that folder. Relative paths in the file start from its
    folder. Raises ConfigError.
    """
    if settings_file is None:
        return settings_with(url, {})
    base_dir = Path(settings_file).absolute().parent
    return settings_with(url, read_properties(settings_file), base_dir=base_dir, source=str(settings_file))


def settings_with(url: str, texts: Properties, *, base_dir: Path | None = None, source: str | None = None) -> Settings:
    """The settings that the properties ``texts`` are, for the store that ``url`` names; errors name ``source``."""
    properties, source = properties_with(url, texts, source=source)
    return settings_from(properties, base_dir=base_dir, source=source)


def properties_with(url: str, texts: Properties, *, source: str | None = None) -> tuple[Properties, str]:
    """The properties of the store that ``url`` names in place of those of ``texts``, and what errors call them all."""
    parts = _folder(url) if _is_path(url) else split_url(url, tuple(SCHEMES))
    store = f"the store {url if _is_path(url) else f'{parts.scheme}://{parts.netloc}'}"
    source = store if source is None else f"{source}, with {store}"
    own = own_properties(texts, source)
    module = cast("UrlModule", importlib.import_module(SCHEMES[parts.scheme]))
    named = {own.prefix + name: text for name, text in module.properties_of(parts, own.values).items()}
    return {**texts, **named}, source


def _is_path(url: str) -> bool:
    # Two strokes begin a URL without its scheme, and so what may hold a password.
    return url.startswith("/") and not url.startswith("//")


def _folder(path: str) -> SplitResult:
    """The parts of the URL of a folder, whose name may hold what separates the parts of a URL."""
    return SplitResult("file", "", quote(path), "", "")


def store_from_settings(settings: Settings) -> ObjectStore:
    """The store that ``storage.backend.class`` names: one of ours, or a user's class.

    That is given by its dotted path, or by the name that an installed package gave it. It derives from ``ObjectStore``
    and has the class method ``from_settings``.
    """
    name = settings.storage_backend
    store_class = _load(BY_SETTING.get(name) or _own_class(name))
    if not callable(getattr(store_class, "from_settings", None)):
        raise ConfigError(
            f"storage.backend.class {excerpt(redacted(name))!r} has no class method from_settings(settings) to open "
            "it by"
        )
    return cast("OpenedBySettings", store_class).from_settings(settings)


def _own_class(name: str) -> StoreClass:
    try:
        installed = installed_class(STORES, name)
    except ValueError as error:
        raise ConfigError(f"storage.backend.class {excerpt(redacted(name))!r}: {error}") from error
    return _parse_dotted(installed or name)


def _parse_dotted(path: str) -> StoreClass:
    """``package.module:Class`` or ``package.module.Class``."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        known = ", ".join(BY_SETTING)
        raise ConfigError(
            f"storage.backend.class {excerpt(redacted(path))!r} is neither one of {known} nor package.module:Class"
        )
    return StoreClass(module, name)


def _load(entry: StoreClass) -> type[ObjectStore]:
    store_class: object = getattr(_module(entry), entry.name, None)
    if not (isinstance(store_class, type) and issubclass(store_class, ObjectStore)):
        raise ConfigError(f"{entry.module}:{entry.name} is not a class that derives from ObjectStore")
    return store_class


def _module(entry: StoreClass) -> ModuleType:
    try:
        return importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        # Any other module that is missing is a fault of the installation, and says best itself what it is.
        if missing.partition(".")[0] in entry.sdk:
            raise ConfigError(
                f"the store {entry.name} needs the package {missing}: {install_command(entry.extra)}"
            ) from error
        if f"{entry.module}.".startswith(f"{missing}."):
            raise ConfigError(f"there is no module {entry.module}, which storage.backend.class names") from error
        raise
