"""The store that somebody names, in any of the ways that people have it: every entry point takes them all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from tieredstore.backends.registry import SCHEMES, settings_with
from tieredstore.config import Settings, read_properties, settings_from
from tieredstore.config.names import known_names
from tieredstore.config.properties import own_properties, texts_of
from tieredstore.errors import ConfigError, excerpt
from tieredstore.model import GivenProperties, SettingValue
from tieredstore.redaction import redacted

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager


@runtime_checkable
class OfSettings(Protocol):
    """What was made from settings, as a bucket and a manager are."""

    @property
    def settings(self) -> Settings:
        """Those of its store."""
        ...


StoreLike: TypeAlias = "str | os.PathLike[str] | GivenProperties | Settings | OfSettings | None"
"""A URL, a folder, a settings file (a broker's ``server.properties`` too), settings by name, settings that were read,
or what was made from them; None is the file that :data:`SETTINGS_VARIABLE` names."""

SETTINGS_VARIABLE: Final = "TIEREDSTORE_SETTINGS"
"""The environment's variable that names a settings file."""

_NOTHING: Final[GivenProperties] = MappingProxyType({})
_ALMOST_A_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/*(.*)", re.DOTALL)
_KINDS: Final = "a path, a URL, a mapping of settings, Settings, or what was opened from them"


def settings_of(source: StoreLike, *, store: str | None = None, extra: GivenProperties = _NOTHING) -> Settings:
    """The settings that ``source`` names, ``extra`` in place of what they say, for the store at the URL ``store``.

    Asks no store. ConfigError for what names none, in a sentence without a secret.
    """
    match source:
        case Settings():
            return _as_they_are(source, store, extra)
        case Mapping():
            return _settings(texts_of(source, "settings"), store, extra, source="settings")
        case str() | os.PathLike():
            return _of_text(os.fspath(source), store, extra)
        case None:
            return _of_environment(store, extra)
        case OfSettings():
            return _as_they_are(source.settings, store, extra)
        case _:
            raise ConfigError(f"source is of the type {type(source).__name__}; give {_KINDS}")


def manager_of(source: StoreLike | RemoteStorageManager) -> tuple[RemoteStorageManager, bool]:
    """The manager of a store, and whether it was opened here, so that whoever asked closes it."""
    from tieredstore.remote.manager import RemoteStorageManager  # noqa: PLC0415  it takes settings by this module

    if isinstance(source, RemoteStorageManager):
        return source, False
    if isinstance(own := getattr(source, "manager", None), RemoteStorageManager):
        return own, False
    return RemoteStorageManager(settings_of(source)), True


def keyword_properties(given: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings given as keywords, under their names: ``chunk_size`` is ``chunk.size``."""
    names = {name.replace(".", "_").replace("-", "_"): name for name in known_names()}
    return {names.get(name, name.replace("_", ".")): value for name, value in given.items()}


def url_of(settings: Settings) -> str:
    """Where the settings' store and prefix are, as a URL and without credentials; of a class of one's own its name."""
    prefix = settings.key_prefix
    if settings.s3 is not None:
        return f"s3://{settings.s3.bucket_name}/{prefix}"
    if settings.gcs is not None:
        return f"gs://{settings.gcs.bucket_name}/{prefix}"
    if settings.azure is not None:
        return f"az://{settings.azure.container_name}/{prefix}"
    if settings.storage_root is not None:
        return f"{settings.storage_root.absolute().as_uri()}/{prefix}"
    return f"{redacted(settings.storage_backend)}:{prefix}"


def _as_they_are(settings: Settings, store: str | None, extra: GivenProperties) -> Settings:
    if store is not None or extra:
        raise ConfigError("settings that were read stay as they are: give their file, URL or mapping to change them")
    return settings


def _of_environment(store: str | None, extra: GivenProperties) -> Settings:
    if path := os.environ.get(SETTINGS_VARIABLE):
        return _of_text(path, store, extra)
    if store is not None:
        return _settings({}, store, extra, source=None)
    if extra:
        return _settings({}, None, extra, source="settings")
    raise ConfigError(f"no store is named: give {_KINDS}, or name a settings file by {SETTINGS_VARIABLE}")


def _of_text(text: str, store: str | None, extra: GivenProperties) -> Settings:
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} names no store: give {_KINDS}")
    if "://" in text:
        if store is not None:
            raise ConfigError("two stores are named: give a settings file with store=, or the URL alone")
        return _settings({}, text, extra, source=None)
    path = Path(text).expanduser()
    if path.is_dir():
        if store is not None:
            raise ConfigError(f"two stores are named: the folder {excerpt(text)} and store=")
        return _settings({}, str(path.absolute()), extra, source=None)
    if path.suffix != ".properties" and not path.exists():
        raise ConfigError(_no_such(text))
    return _settings(read_properties(path), store, extra, source=text, base_dir=path.absolute().parent)


def _settings(
    texts: Mapping[str, str],
    store: str | None,
    extra: GivenProperties,
    *,
    source: str | None,
    base_dir: Path | None = None,
) -> Settings:
    named = source or "settings"
    prefix = own_properties(texts, named).prefix
    merged = {**texts, **{prefix + name: text for name, text in texts_of(extra, named).items()}}
    if store is not None:
        return settings_with(_url(store), merged, base_dir=base_dir, source=source)
    return settings_from(merged, base_dir=base_dir, source=named)


def _url(store: str) -> str:
    """What names a store alone: a URL, or a folder that may be empty or not there yet."""
    if "://" in store:
        return store
    if meant := _meant_url(store):
        raise ConfigError(meant)
    path = Path(store).expanduser()
    if path.name == store and not path.is_dir():  # a word alone may be a bucket's name
        raise ConfigError(_no_such(store))
    return str(path.absolute())


def _meant_url(text: str) -> str | None:
    almost = _ALMOST_A_URL.fullmatch(text)
    if almost is None or almost[1] not in SCHEMES:
        return None
    meant = f"{almost[1]}://{excerpt(redacted(almost[2]))}"
    return f"{excerpt(redacted(text))!r} is not a URL; did you mean {meant}?"


def _no_such(text: str) -> str:
    if meant := _meant_url(text):
        return meant
    shown = repr(excerpt(redacted(text)))
    schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    return f"there is no file or folder {shown}; URLs begin with {schemes}"
