"""Search for the store that a caller names. Every entry point accepts all forms of ``StoreLike``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from tieredstore.backends.registry import SCHEMES, properties_with
from tieredstore.config import Settings, read_properties, settings_from
from tieredstore.config.names import known_names
from tieredstore.config.properties import own_properties, texts_of
from tieredstore.errors import ConfigError, excerpt, redact
from tieredstore.model import GivenProperties, Properties, SettingValue

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager


@runtime_checkable
class OfSettings(Protocol):
    """An object made from settings, such as a bucket or a manager."""

    @property
    def settings(self) -> Settings:
        """The settings of the object's store."""
        ...


StoreLike: TypeAlias = "str | os.PathLike[str] | GivenProperties | Settings | OfSettings | None"
"""A URL, a folder, a settings file (also a broker's ``server.properties``), a mapping of settings, loaded settings,
or an object made from settings. None means the file that :data:`SETTINGS_VARIABLE` names.
"""

SETTINGS_VARIABLE: Final = "TIEREDSTORE_SETTINGS"
"""The environment variable that names a settings file."""

T = TypeVar("T")

_NOTHING: Final[GivenProperties] = MappingProxyType({})
_ALMOST_A_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/*(.*)", re.DOTALL)
_PREFIXES: Final = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_KINDS: Final = "a path, a URL, a mapping of settings, Settings, or an object opened from them"


@dataclass(frozen=True, slots=True)
class NamedStore:
    """Origin of settings: a file, ``properties`` that extend and override it, or both.

    Another process can load the settings from a ``NamedStore``. Its repr contains no values of settings.
    """

    file: Path | None
    properties: tuple[tuple[str, str], ...]
    source: str
    elsewhere: tuple[tuple[str, str], ...] = ()
    """``properties`` without the properties that come from the URL of a store."""

    def load(self, default: Properties = MappingProxyType({})) -> Settings:
        """Load the settings now, with ``default`` for missing settings. Raise a ConfigError that lists all faults."""
        given = self._read()
        prefix = own_properties(given, self.source).prefix if default else ""
        texts = {**{prefix + name: text for name, text in default.items()}, **given}
        return settings_from(texts, base_dir=self._folder(), source=self.source)

    def load_by(self, read: Callable[..., T]) -> T:
        """Load settings that an optional part reads itself, by its function with the parameters of
        :func:`settings_from`."""
        return read(self._read(), base_dir=self._folder(), source=self.source)

    def at(self, store: str) -> NamedStore:
        """Return the same settings for another store, as ``settings_of(..., store=)`` does."""
        texts = {} if self.file is None else read_properties(self.file)
        return _make_named(
            self.file, texts, store, dict(self.elsewhere), source=None if self.file is None else self.source
        )

    def _read(self) -> Properties:
        given = dict(self.properties)
        if self.file is None:
            return given
        in_file = read_properties(self.file)
        prefix = own_properties(in_file, self.source).prefix
        return {**in_file, **{prefix + name: text for name, text in given.items()}}

    def _folder(self) -> Path | None:
        return None if self.file is None else self.file.absolute().parent

    def __repr__(self) -> str:
        return f"NamedStore({self.file!r}, {[name for name, _ in self.properties]})"


def settings_of(source: StoreLike, *, store: str | None = None, extra: GivenProperties = _NOTHING) -> Settings:
    """Load the settings of ``source``, overridden by ``extra``. A URL in ``store`` replaces the store that ``source``
    names.

    Make no request. Raise ConfigError, without a secret in its text, if ``source`` names no settings.
    """
    return resolve_store(source, store=store, extra=extra)[0]


def resolve_store(
    source: StoreLike, *, store: str | os.PathLike[str] | None = None, extra: GivenProperties = _NOTHING
) -> tuple[Settings, NamedStore | None]:
    """Load settings as :func:`settings_of` does. Return them and their origin, which is None if ``source`` is a
    settings object.
    """
    found = find_store(source, store=store, extra=extra)
    return (found, named_store_of(source)) if isinstance(found, Settings) else (found.load(), found)


def find_store(
    source: StoreLike, *, store: str | os.PathLike[str] | None = None, extra: GivenProperties = _NOTHING
) -> NamedStore | Settings:
    """Return the origin of the settings that ``source`` names, without loading them. Return loaded settings unchanged.
    Raise ConfigError if ``source`` names no settings.
    """
    if store is not None:
        try:
            store = os.fsdecode(store)
        except TypeError:
            raise ConfigError(f"store is of the type {type(store).__name__}; give a URL or a folder") from None
    match source:
        case Settings():
            return _as_they_are(source, store, extra)
        case Mapping():
            return _make_named(None, texts_of(source, "settings"), store, extra, source="settings")
        case str() | os.PathLike():
            return _of_text(os.fspath(source), store, extra)
        case None:
            return _of_environment(store, extra)
        case OfSettings():
            return _as_they_are(source.settings, store, extra)
        case _:
            raise ConfigError(f"an object of the type {type(source).__name__} names no store: give {_KINDS}")


def target_settings(target: StoreLike, source: NamedStore | None) -> Settings:
    """Return the settings of a mirror's target. If ``target`` is a URL or a folder, take the other settings from
    ``source``.

    A settings file, a mapping or an opened object contains all settings. Raise ConfigError if ``source`` is needed but
    None.
    """
    text = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    if text is None or _is_settings_file(text):
        return settings_of(target)
    if source is None:
        raise ConfigError("the source was opened with loaded settings: give the target's settings too")
    if _is_absent_word(text):
        raise ConfigError(f"there is no folder {_show(text)}: create it, or give a URL ({_PREFIXES})")
    return source.at(text).load()


def named_store_of(source: object) -> NamedStore | None:
    """Return the origin of an opened object's settings, or None if the object was made from loaded settings."""
    named = getattr(source, "named", None)
    return named if isinstance(named, NamedStore) else None


def manager_of(source: StoreLike | RemoteStorageManager) -> tuple[RemoteStorageManager, bool]:
    """Return the manager for ``source``. Also return True if this call opened the manager, so that the caller must
    close it."""
    from tieredstore.remote.manager import RemoteStorageManager  # noqa: PLC0415  that module imports this one

    if isinstance(source, RemoteStorageManager):
        return source, False
    if isinstance(own := getattr(source, "manager", None), RemoteStorageManager):
        return own, False
    return RemoteStorageManager(settings_of(source)), True


def keyword_properties(given: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Rename settings given as keywords; for example, ``chunk_size`` becomes ``chunk.size``."""
    if not given:
        return {}
    names = {name.replace(".", "_").replace("-", "_"): name for name in known_names()}
    return {names.get(name, name.replace("_", ".")): value for name, value in given.items()}


def url_of(settings: Settings) -> str:
    """Return the store and its prefix as a URL without credentials. For a user's own store class, return the class's
    name."""
    prefix = settings.key_prefix
    if settings.s3 is not None:
        return f"s3://{settings.s3.bucket_name}/{prefix}"
    if settings.gcs is not None:
        return f"gs://{settings.gcs.bucket_name}/{prefix}"
    if settings.azure is not None:
        return f"az://{settings.azure.container_name}/{prefix}"
    if settings.storage_root is not None:
        return f"{settings.storage_root.absolute().as_uri()}/{prefix}"
    return f"{redact(settings.storage_backend)}:{prefix}"


def _as_they_are(settings: Settings, store: str | None, extra: GivenProperties) -> Settings:
    if store is not None or extra:
        raise ConfigError("loaded settings cannot be changed: give their file, URL or mapping instead")
    return settings


def _of_environment(store: str | None, extra: GivenProperties) -> NamedStore:
    if path := os.environ.get(SETTINGS_VARIABLE):
        return _of_text(path, store, extra)
    if store is None and not extra:
        raise ConfigError(f"no store is named: give {_KINDS}, or name a settings file by {SETTINGS_VARIABLE}")
    return _make_named(None, {}, store, extra, source=None if store is not None else "settings")


def _of_text(text: str, store: str | None, extra: GivenProperties) -> NamedStore:
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} names no store: give {_KINDS}")
    if "://" in text:
        if store is not None:
            raise ConfigError("two stores are named: give a settings file with store=, or the URL alone")
        return _make_named(None, {}, text, extra, source=None)
    path = _local_path(text)
    if path.is_dir():
        if store is not None:
            raise ConfigError(f"two stores are named: the folder {excerpt(text)} and store=")
        return _make_named(None, {}, str(path.absolute()), extra, source=None)
    if path.suffix != ".properties" and not path.exists():
        raise ConfigError(_no_such(text))
    if path.exists() and not path.is_file():
        raise ConfigError(f"{excerpt(text)} is a pipe or a device: settings are read several times, so give a file")
    return _make_named(path, read_properties(path), store, extra, source=text)


def _make_named(
    file: Path | None, texts: Properties, store: str | None, extra: GivenProperties, *, source: str | None
) -> NamedStore:
    """Make the NamedStore. ``texts`` are the properties in the file. Without a file, ``texts`` are all properties."""
    label = source or "settings"
    given = texts_of(extra, label)
    if file is None:
        prefix = own_properties(texts, label).prefix
        given = {**texts, **{prefix + name: text for name, text in given.items()}}
    elsewhere = tuple(given.items())
    if store is not None:
        # Read the URL together with the file's settings, because the settings can change the meaning of the URL.
        own = {**own_properties(texts, label).texts, **given} if file is not None else given
        properties, label = properties_with(_url(store), own, source=source)
        given |= {name: text for name, text in properties.items() if own.get(name) != text}
    return NamedStore(file, tuple(given.items()), label, elsewhere)


def _is_settings_file(text: str) -> bool:
    path = None if "://" in text or "\0" in text else _local_path(text)
    return path is not None and (path.suffix == ".properties" or path.is_file())


def _url(store: str) -> str:
    """Return the URL of a store. The argument is a URL, or a folder that may be empty or absent."""
    if not store or "\0" in store:  # ``Path("")`` would be the working folder
        raise ConfigError(f"{store!r} names no store: give a URL or a folder")
    if "://" in store:
        return store
    if meant := _meant_url(store):
        raise ConfigError(meant)
    path = _local_path(store)
    if path.is_file():
        raise ConfigError(f"{excerpt(store)!r} is a file, and a store is a URL or a folder; -c takes a settings file")
    if _is_absent_word(store):
        raise ConfigError(_no_such(store))
    return str(path.absolute())


def _is_absent_word(store: str) -> bool:
    """Return True for a single word that names no folder or file, because the user may mean a bucket."""
    path = None if "\0" in store or _meant_url(store) else _local_path(store)
    return path is not None and path.name == store and not path.exists()


def _local_path(text: str) -> Path:
    """Expand a local path, including ``~`` and ``~user``. Raise ConfigError for a user without a home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{excerpt(text)!r} begins with a user's home folder, and there is no such user") from None


def _meant_url(text: str) -> str | None:
    almost = _ALMOST_A_URL.fullmatch(text)
    if almost is None or almost[1] not in SCHEMES:
        return None
    meant = f"{almost[1]}://{excerpt(redact(almost[2]))}"
    return f"{excerpt(redact(text))!r} is not a URL; did you mean {meant}?"


def _no_such(text: str) -> str:
    if meant := _meant_url(text):
        return meant
    return f"there is no file or folder {_show(text)}; URLs begin with {_PREFIXES}"


def _show(text: str) -> str:
    return repr(excerpt(redact(text)))
