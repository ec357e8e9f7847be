"""Loads and checks settings from a file, a mapping or options; logs properties without effect once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from tieredstore.config.encryption import read_encryption
from tieredstore.config.endpoint import ENDPOINT, UPLOADER_LAYOUT, read_endpoint
from tieredstore.config.fetch import read_fetch
from tieredstore.config.fields import SettingsGroup
from tieredstore.config.jvm import JvmProperties
from tieredstore.config.names import check_is_ours, check_names, forgotten_names
from tieredstore.config.pinterest import translate
from tieredstore.config.properties import Effect, OwnProperties, effect_of, own_properties, read_properties, texts_of
from tieredstore.config.settings import Settings
from tieredstore.config.source import SettingsReader
from tieredstore.config.storage import BACKENDS, ProxySettings, backend_name
from tieredstore.config.values import is_quoted, plain
from tieredstore.model import GivenProperties
from tieredstore.process.log_once import LogOnce

_logger: Final = logging.getLogger(__name__)
_BACKEND: Final = "storage.backend.class"

_log: Final = LogOnce(_logger)
"""Logs each line once per process, because a Spark executor loads settings for each task."""


def load_settings(path: Path | str) -> Settings:
    """Return the settings of a ``.properties`` file, which may be a broker's ``server.properties``.

    Relative paths in the file start from the file's folder. Raise ConfigError that names file and property.
    """
    # Make the folder absolute, because the working directory may change while the settings are in use.
    return settings_from(read_properties(path), base_dir=Path(path).absolute().parent, source=str(path))


def settings_from(properties: GivenProperties, *, base_dir: Path | None = None, source: str = "settings") -> Settings:
    """Return the settings that a mapping gives. Its keys are names of settings, with or without ``rsm.config.``; its
    values are texts or plain values.

    Relative paths start from ``base_dir``; without ``base_dir``, they stay relative. Errors name ``source``. Raise
    ConfigError with all problems, one per line.
    """
    properties = translate(texts_of(properties, source), source)
    own = own_properties(properties, source)
    reader = SettingsReader(own, base_dir or Path())
    beside = (name for name in own.others if name.startswith(ENDPOINT) or name == UPLOADER_LAYOUT)
    reader.values |= {name: plain(properties[name]) for name in beside}
    check_is_ours(reader)
    backend = backend_name(reader.values.get(_BACKEND, ""))
    # The properties of a user's own class are unknown here, so accept every name under ``storage.``.
    own_class = backend is not None and backend not in BACKENDS
    wings = check_names(reader, ("storage.",) if own_class else ())
    # The JVM plugin's properties are read only to find problems. Their values are not used.
    reader.read(JvmProperties)
    groups = {
        "encryption": read_encryption(reader),
        "fetch": read_fetch(reader),
        "endpoint": read_endpoint(reader),
        **_read_store(reader, backend),
    }
    present: dict[str, object] = {name: group for name, group in groups.items() if group is not None}
    beyond: dict[str, object] = {
        "storage_options": _storage_options(reader) if own_class else (),
        "sections": tuple(filter(None, [reader.read(group) for group in wings if not group.beside])),
    }
    settings = reader.result(reader.read(Settings, fields=present | beyond))
    _say_what_is_odd(reader, own)
    return settings


def _read_store(reader: SettingsReader, backend: str | None) -> dict[str, SettingsGroup | None]:
    """Read the groups of the selected store. Properties of other stores are ignored."""
    if backend not in {"s3", "gcs", "azure"}:
        return {}  # ignore ``storage.proxy.*``: other stores use no proxy
    from tieredstore.config.clouds import (  # noqa: PLC0415  only these stores need it
        AwsCredentials,
        AzureSettings,
        GcsSettings,
        S3Settings,
    )

    store: dict[str, SettingsGroup | None] = {}
    if backend == "s3":
        credentials = reader.read(AwsCredentials)
        store["cloud"] = reader.read(S3Settings, fields={"credentials": credentials} if credentials else {})
    else:
        store["cloud"] = reader.read(GcsSettings if backend == "gcs" else AzureSettings)
    if any(name.startswith("storage.proxy.") for name in reader.values):
        store["proxy"] = reader.read(ProxySettings)
    return store


def _storage_options(reader: SettingsReader) -> tuple[tuple[str, SecretStr], ...]:
    names = [name for name in reader.values if name.startswith("storage.") and name != _BACKEND]
    return tuple((name.removeprefix("storage."), SecretStr(reader.values[name])) for name in names)


def _say_what_is_odd(reader: SettingsReader, own: OwnProperties) -> None:
    if is_quoted(own.texts.get("key.prefix", "")):
        _log.warn(
            f"{own.source}: the quotes around key.prefix are ignored, but the JVM plugin would write them into every "
            "key"
        )
    if forgotten := forgotten_names(reader):
        under = f"are ignored, because they do not start with {own.prefix}"
        _log.warn(f"{own.source}: {', '.join(forgotten)} {under}")
    idle = (name for name in own.texts if effect_of(name) is Effect.WITHOUT_EFFECT)
    if new := [name for name in idle if _log.is_first(name)]:
        _logger.info("%s: accepted without effect: %s", own.source, ", ".join(new))
