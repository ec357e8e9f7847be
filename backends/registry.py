"""Functions that make a store from settings, and settings from a store's URL.

A store's module, and its SDK, is imported on first use. A URL is short for settings:

    file:///folder          s3://bucket/prefix          gs://bucket/prefix          az://container/prefix

The prefix is the URL's path as written, with a ``/`` after it. Like the clouds' own tools, this module does not
percent-decode the path. Endpoint and credentials come from the settings file or, if it has none, from the environment
that each cloud's SDK reads.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.s3.options import region_of_profile
from tieredstore.config.loading import settings_from
from tieredstore.config.named_class import STORES, installed_class
from tieredstore.config.properties import own_properties
from tieredstore.config.settings import Settings
from tieredstore.config.values import plain
from tieredstore.errors import ConfigError, excerpt, redact
from tieredstore.installation import Extra
from tieredstore.model import Properties

BY_SETTING: Final = {
    "filesystem": "tieredstore.backends.filesystem.store:FilesystemObjectStore",
    "memory": "tieredstore.backends.memory:MemoryObjectStore",
    "s3": "tieredstore.backends.s3.store:S3ObjectStore",
    "gcs": "tieredstore.backends.gcs.store:GcsObjectStore",
    "azure": "tieredstore.backends.azure.store:AzureObjectStore",
}
"""The store classes by their values of ``storage.backend.class``. The extra that installs an SDK has the same name."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Control characters, which are refused: ``urlsplit`` would silently remove some of them."""

_ANYWHERE: Final = "aws-global"
"""The AWS SDK's name for an unknown region. The SDK then learns the bucket's region from the server's answer."""

_AZURE_IDENTITY: Final = ("connection.string", "account.name", "account.key", "sas.token")
_AZURE_VARIABLES: Final = ("connection.string", "account", "key", "sas.token")
"""Settings that Azure's command line also reads from environment variables."""


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
    parts = SplitResult("file", "", quote(url), "", "") if is_path else _split_url(url)
    store = f"the store {url if is_path else f'{parts.scheme}://{parts.netloc}'}"
    source = store if source is None else f"{source}, with {store}"
    own = own_properties(texts, source)
    named = {own.prefix + name: text for name, text in SCHEMES[parts.scheme](parts, own.values).items()}
    return {**texts, **named}, source


def store_from_settings(settings: Settings) -> ObjectStore:
    """Make the store that ``storage.backend.class`` names: one of this package's classes, or a user's class.

    A user's class is named by its dotted path, or by an entry point of an installed package. The class derives from
    ``ObjectStore`` and has the class method ``from_settings``.
    """
    name = settings.storage_backend
    store_class = _load(BY_SETTING.get(name) or _own_class(name), name if name in BY_SETTING else "")
    from_settings = getattr(store_class, "from_settings", None)
    if not callable(from_settings):
        raise ConfigError(
            f"storage.backend.class {excerpt(redact(name))!r} has no class method from_settings(settings), which "
            "opens the store"
        )
    return cast("ObjectStore", from_settings(settings))


def _own_class(name: str) -> str:
    try:
        return installed_class(STORES, name) or name
    except ValueError as error:
        raise ConfigError(f"storage.backend.class {excerpt(redact(name))!r}: {error}") from error


def _load(path: str, extra: str) -> type[ObjectStore]:
    """Import ``package.module:Class`` or ``package.module.Class``, which needs the packages of ``extra``."""
    module_name, _, name = path.rpartition(":" if ":" in path else ".")
    if not module_name or not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        known = ", ".join(BY_SETTING)
        raise ConfigError(
            f"storage.backend.class {excerpt(redact(path))!r} is neither one of {known} nor package.module:Class"
        )
    try:
        with Extra(f"the store {extra or name}", extra):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"storage.backend.class: no module {module_name}; is it in PYTHONPATH?") from error
        raise
    store_class: object = getattr(module, name, None)
    if not (isinstance(store_class, type) and issubclass(store_class, ObjectStore)):
        raise ConfigError(f"{module_name}:{name} is not a class that derives from ObjectStore")
    return store_class


def _split_url(url: str) -> SplitResult:
    """Split the URL of a store. Raise ConfigError if it is invalid; the message does not quote a URL that may contain a
    password.
    """
    parts = _parts(url)
    if parts is None:
        # Do not chain the original error, whose message may quote the URL.
        raise ConfigError("this is not the URL of a store: it cannot be split into its parts")
    if parts.scheme == "memory":
        raise ConfigError("a store in memory ends with its process: name a store that lasts")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"the URL of a store starts with one of {known}; a folder's path with /, ./ or ../")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(
            "the URL of a store is its scheme, its name and a prefix, without credentials, '?' and '#'; "
            "set credentials and an unusual key.prefix in the settings file"
        )
    if _CONTROL.search(url) or url != url.strip():
        raise ConfigError(f"{_show_url(url)} contains a control character, or blanks around it")
    if parts.scheme != "file" and (not parts.netloc or ":" in parts.netloc):
        usage = f"write {parts.scheme}://name or {parts.scheme}://name/prefix"
        raise ConfigError(f"{_show_url(url)} names no bucket: {usage}")
    return parts


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _show_url(url: str) -> str:
    """Return ``url`` for a message, without its query and without credentials (everything up to the last ``@``)."""
    scheme, colon, rest = re.split(r"[?#]", url, maxsplit=1)[0].partition(":")
    _, at, after = rest.rpartition("@")
    return repr(f"{scheme}{colon}…@{after}" if at else f"{scheme}{colon}{rest}")


def _check_exact(text: str) -> str:
    """Return ``text``. Raise ConfigError if it is empty, or if a settings file would strip blanks or quotes from its
    ends."""
    if not text or plain(text) != text:
        raise ConfigError(f"{redact(text)!r} cannot be part of a store's URL: set it in the settings file")
    return text


def _bucket_of(parts: SplitResult) -> str:
    """Return the bucket or container of a cloud's URL."""
    return _check_exact(parts.netloc)


def _prefix_of(parts: SplitResult) -> dict[str, str]:
    """Return the property ``key.prefix`` if a cloud's URL has a path."""
    path = parts.path.removeprefix("/")
    if not path:
        return {}
    return {"key.prefix": _check_exact(path if path.endswith("/") else f"{path}/")}


def _of_folder(parts: SplitResult, _: Properties) -> dict[str, str]:
    """Return the settings for a folder. Only ``file:`` URLs are percent-decoded."""
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(
            f"{_show_url(parts.geturl())} is not the URL of a local folder; write file:///path/of/the/folder"
        )
    return {"storage.backend.class": "filesystem", "storage.root": _check_exact(unquote(parts.path))}


def _of_s3(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a bucket, its region and its endpoint."""
    place = {"storage.backend.class": "s3", "storage.s3.bucket.name": _bucket_of(parts), **_prefix_of(parts)}
    if "storage.s3.region" in of_file and "storage.s3.endpoint.url" in of_file:
        return place
    # Read AWS_REGION here, because botocore ignores it, although Amazon's other SDKs read it.
    region = of_file.get("storage.s3.region") or os.environ.get("AWS_REGION") or region_of_profile(parts.scheme)
    endpoint = of_file.get("storage.s3.endpoint.url")
    if not endpoint and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    given = {"storage.s3.endpoint.url": endpoint} if endpoint else {}
    return {"storage.s3.region": region or _ANYWHERE, **given, **place}


def _of_gcs(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a bucket, its endpoint and its credentials."""
    place = {"storage.backend.class": "gcs", "storage.gcs.bucket.name": _bucket_of(parts), **_prefix_of(parts)}
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator and "storage.gcs.endpoint.url" not in of_file:
        place["storage.gcs.endpoint.url"] = emulator if "://" in emulator else f"http://{emulator}"
    if not any(name.startswith("storage.gcs.credentials.") for name in of_file):
        # Use no credentials for an emulator, as Google's own client does.
        by_default = "false" if emulator and "storage.gcs.endpoint.url" in place else "true"
        place["storage.gcs.credentials.default"] = by_default
    return place


def _of_azure(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a container and its account."""
    place = {"storage.backend.class": "azure", "storage.azure.container.name": _bucket_of(parts), **_prefix_of(parts)}
    # If the settings file has any part of the identity, ignore the environment. Otherwise a key from the environment
    # could be used with the file's account.
    if any(f"storage.azure.{name}" in of_file for name in _AZURE_IDENTITY):
        return place
    variables = {name: os.environ.get(f"AZURE_STORAGE_{name.replace('.', '_').upper()}") for name in _AZURE_VARIABLES}
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


SCHEMES: Final[dict[str, Callable[[SplitResult, Properties], dict[str, str]]]] = {
    "file": _of_folder,
    "s3": _of_s3,
    "gs": _of_gcs,
    "az": _of_azure,
}
"""Functions that translate a store's URL into settings, by the URL's scheme.

A function gets the settings of the file. Endpoint and credentials come from the environment if the file has none.
"""
