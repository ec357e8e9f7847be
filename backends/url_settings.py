"""The settings that the URL of a store stands for, over those of a file.

    file:///folder          s3://bucket/prefix          gs://bucket/prefix          az://container/prefix

A prefix is the path as it is written, with a ``/`` after it; nothing in it is percent-decoded, as the clouds' own tools
have it. What says where the store is and who asks comes from the file; where it says nothing of the kind, from the
environment that each cloud's SDK reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from tieredstore.config import Settings, read_properties, settings_from
from tieredstore.config.properties import own_properties
from tieredstore.config.values import plain
from tieredstore.errors import ConfigError
from tieredstore.model import Properties

DEFAULT_CHUNK_SIZE: Final = 4194304
"""``chunk.size`` where there is a URL and no file."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""``urlsplit`` takes some of these out of a URL in silence, and blanks before it."""


def settings_at(url: str, settings_file: Path | str | None = None) -> Settings:
    """The settings of ``settings_file`` (without one, the defaults) for the store that ``url`` names.

    Relative paths start from the file's folder. Raises ConfigError.
    """
    parts = _split(url)
    shown = f"{parts.scheme}://{parts.netloc}"
    if settings_file is None:
        source, base_dir = f"the store {shown}", None
        texts: Properties = {"chunk.size": str(DEFAULT_CHUNK_SIZE)}
    else:
        source, base_dir = f"{settings_file}, with the store {shown}", Path(settings_file).absolute().parent
        texts = read_properties(settings_file)
    own = own_properties(texts, source)
    named = {own.prefix + name: text for name, text in _PROPERTIES[parts.scheme](parts, own.values).items()}
    return settings_from({**texts, **named}, base_dir=base_dir, source=source)


def _split(url: str) -> SplitResult:
    """The parts of the URL of a store; ConfigError, without the text, if it may hold a password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"this is not the URL of a store: {error}") from error
    if parts.scheme == "memory":
        raise ConfigError("a store in memory ends with the process that made it: name one that lasts")
    if parts.scheme not in _PROPERTIES:
        known = ", ".join(f"{scheme}://" for scheme in _PROPERTIES)
        raise ConfigError(f"the URL of a store starts with one of {known}")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(
            "the URL of a store is its scheme, its name and a prefix, without credentials, '?' and '#'; "
            "set credentials and an unusual key.prefix in the settings file"
        )
    if _CONTROL.search(url) or url != url.strip():
        raise ConfigError(f"{url!r} holds a control character, or blanks around it")
    return parts


def _filesystem(parts: SplitResult, _given: Properties) -> dict[str, str]:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{parts.geturl()!r} is not the URL of a local folder; write file:///path/of/the/folder")
    return {"storage.backend.class": "filesystem", "storage.root": _exact(unquote(parts.path))}


def _s3(parts: SplitResult, given: Properties) -> dict[str, str]:
    place = {"storage.backend.class": "s3", "storage.s3.bucket.name": _named(parts), **_prefix(parts)}
    if "storage.s3.region" in given and "storage.s3.endpoint.url" in given:
        return place
    return {**_s3_environment(parts, given), **place}


def _s3_environment(parts: SplitResult, given: Properties) -> dict[str, str]:
    try:
        # Needs the SDK.
        from tieredstore.backends.s3.environment import environment_endpoint, environment_region  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{parts.scheme}:// needs the package {error.name}; install tieredstore[s3]") from error
    region = given.get("storage.s3.region") or environment_region()
    if region is None:
        raise ConfigError(
            f"nothing says the region of s3://{parts.netloc}: set storage.s3.region in a settings file, "
            "AWS_REGION, or the region of the AWS profile"
        )
    endpoint = given.get("storage.s3.endpoint.url") or environment_endpoint()
    return {"storage.s3.region": region} | ({"storage.s3.endpoint.url": endpoint} if endpoint else {})


def _gcs(parts: SplitResult, given: Properties) -> dict[str, str]:
    place = {"storage.backend.class": "gcs", "storage.gcs.bucket.name": _named(parts), **_prefix(parts)}
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator and "storage.gcs.endpoint.url" not in given:
        place["storage.gcs.endpoint.url"] = emulator if "://" in emulator else f"http://{emulator}"
    if not any(name.startswith("storage.gcs.credentials.") for name in given):
        # As Google's own client: an emulator asks nobody who they are.
        by_default = "false" if emulator and "storage.gcs.endpoint.url" in place else "true"
        place["storage.gcs.credentials.default"] = by_default
    return place


_AZURE_IDENTITY: Final = ("connection.string", "account.name", "account.key", "sas.token")


def _azure(parts: SplitResult, given: Properties) -> dict[str, str]:
    place = {"storage.backend.class": "azure", "storage.azure.container.name": _named(parts), **_prefix(parts)}
    # One identity, from one place: a key of the environment is never put beside an account of the file.
    if any(f"storage.azure.{name}" in given for name in _AZURE_IDENTITY):
        return place
    found = {name: os.environ.get(f"AZURE_STORAGE_{name.replace('.', '_').upper()}") for name in _AZURE_VARIABLES}
    if found["connection.string"]:
        return {**place, "storage.azure.connection.string": found["connection.string"]}
    if not found["account"]:
        raise ConfigError(
            f"nothing says the account of az://{parts.netloc}: set storage.azure.account.name in a settings file, "
            "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT"
        )
    texts = {"account.name": found["account"], "account.key": found["key"], "sas.token": found["sas.token"]}
    return {**place, **{f"storage.azure.{name}": text for name, text in texts.items() if text}}


_AZURE_VARIABLES: Final = ("connection.string", "account", "key", "sas.token")
"""The ends of the names of environment variables of Azure's command line, as settings are written."""

_PROPERTIES: Final[Mapping[str, Callable[[SplitResult, Properties], dict[str, str]]]] = {
    "file": _filesystem,
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
}
"""For each scheme, what makes properties of the URL's parts and of those that the file gives."""


def _named(parts: SplitResult) -> str:
    """The bucket or container."""
    if not parts.netloc or ":" in parts.netloc:
        raise ConfigError(
            f"{parts.geturl()!r} names no bucket: write {parts.scheme}://name or {parts.scheme}://name/prefix"
        )
    return _exact(parts.netloc)


def _prefix(parts: SplitResult) -> dict[str, str]:
    """``key.prefix``, where the URL has a path."""
    path = parts.path.removeprefix("/")
    if not path:
        return {}
    return {"key.prefix": _exact(path if path.endswith("/") else f"{path}/")}


def _exact(text: str) -> str:
    """``text``, if a property can have it as it is: blanks and quotes around it would be taken off."""
    if not text or plain(text) != text:
        raise ConfigError(f"{text!r} cannot be part of a store's URL: set it in the settings file")
    return text
