"""The settings of the store that a Spark query reads, and the open stores of a process. Settings come from a file, from
options, or from both.

Spark sends the name of the file to the tasks, but never its contents, because each process reads the file itself.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pyspark import SparkFiles

from tieredstore.config import Settings, settings_from
from tieredstore.config.fields import property_fields
from tieredstore.config.names import core_groups
from tieredstore.config.properties import own_properties
from tieredstore.config.values import PATH
from tieredstore.errors import ConfigError
from tieredstore.process.forks import PerProcess
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.stores import NamedStore, StoreLike, find_store, named_store_of

_PATHS: Final = frozenset(name for group in core_groups() for name, _, kind in property_fields(group) if kind is PATH)


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A store's settings. ``properties`` override the values in ``settings_file``. Either of the two may be missing.

    The properties have the names of Kafka's tiered storage plugin, with or without ``rsm.config.``. The repr shows no
    values.
    """

    settings_file: str | None
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def from_options(cls, settings_file: str | None, properties: Mapping[str, str]) -> StoreSource:
        """Return the source for the option ``settings`` and the store's options. Raise ConfigError if neither names a
        store."""
        if settings_file is None and "storage.backend.class" not in properties:
            raise ConfigError(
                "no store is named: set the option settings to a settings file, or storage.backend.class and the "
                "store's other settings"
            )
        return cls(settings_file, tuple(sorted(properties.items())))

    def load(self) -> Settings:
        """Load the settings in this process. Raise ConfigError for missing or invalid settings.

        If the file's name or a path in ``properties`` is relative, it is looked up in the working directory, then among
        the files that Spark ships. Paths inside the file are relative to its folder.
        """
        given = {
            name: _locate(name, text) for name, text in own_properties(dict(self.properties), "options").texts.items()
        }
        if self.settings_file is None:
            return settings_from(given, source="options")
        path = _find(self.settings_file)
        if path is None:
            raise ConfigError(
                f"the settings file {self.settings_file} is neither in the working directory {Path.cwd()} nor among "
                "the files that Spark ships: give its absolute path, or add it by --files"
            )
        return NamedStore(path, tuple(given.items()), f"{path} with options" if given else str(path)).load()

    def version(self) -> tuple[int, ...]:
        """Return numbers that differ after an edit of the settings file. Return none if there is no such file, or if it
        cannot be accessed.
        """
        path = None if self.settings_file is None else _find(self.settings_file)
        try:
            found = None if path is None else path.stat()
        except OSError:
            found = None
        return () if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)

    def __repr__(self) -> str:
        return f"StoreSource({self.settings_file!r}, {[name for name, _ in self.properties]})"


def store_source(source: StoreLike | StoreSource) -> StoreSource:
    """Return a picklable source from any form that names a store. Raise ConfigError for other forms."""
    if isinstance(source, StoreSource):
        return source
    if isinstance(source, str) and "://" not in source and not Path(source).is_dir():
        return StoreSource(source, ())  # a settings file, possibly shipped by Spark
    found = find_store(source)
    named = named_store_of(source) if isinstance(found, Settings) else found
    if named is None:
        raise ConfigError("loaded settings cannot be sent to tasks: give their file, URL or mapping")
    return StoreSource(None if named.file is None else str(named.file.absolute()), tuple(sorted(named.properties)))


def _locate(name: str, text: str) -> str:
    if name not in _PATHS and not name.endswith((".key.file", ".private.key.passphrase.file")):
        return text
    path = _find(text)
    return text if path is None else str(path.absolute())


def _find(text: str) -> Path | None:
    """Return the path of a file or folder. Return None if it does not exist."""
    candidates = itertools.chain([Path(text)], (folder / text for folder in find_shipped_folders()))
    return next((path for path in candidates if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # the file may exist but be inaccessible; opening it then raises the reason


def find_shipped_folders() -> list[Path]:
    """Return the folder of the files that Spark ships, if this process has one."""
    try:
        return [Path(SparkFiles.getRootDirectory())]
    except (AssertionError, RuntimeError):
        return []  # this process has no running session


_KEPT: Final = 4
"""Maximum number of open stores in a process. Opening another store closes the least recently used store."""


_Managers: TypeAlias = OrderedDict[tuple["StoreSource", tuple[int, ...]], RemoteStorageManager]
"""Open stores by source and version of the settings file."""


def _close_all(managers: _Managers) -> None:
    while managers:
        managers.popitem()[1].close()


# Spark's daemon forks its workers, and a child must neither use nor close resources of its parent. So PerProcess gives
# each process its own resources.
_managers: Final = PerProcess[_Managers](OrderedDict, _close_all)


def manager_of(source: StoreSource) -> RemoteStorageManager:
    """Return this process's manager of a store, opened on first use, and again after an edit of the settings file. The
    caller must not close it.

    The function is not thread-safe, and need not be, because a Spark process runs one task at a time. Each process
    reads the settings file itself, so that no secret is sent.
    """
    managers = _managers.get()
    key = source, source.version()
    if not key[1]:
        key = next((known for known in reversed(managers) if known[0] == source), key)
    manager = managers.pop(key, None) or RemoteStorageManager(source.load())
    managers[key] = manager
    while len(managers) > _KEPT:
        managers.popitem(last=False)[1].close()
    return manager
