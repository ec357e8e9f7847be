"""The store that somebody names, in one of the ways that people have it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast

from tieredstore.config import Settings, load_settings, settings_from
from tieredstore.query.arguments import wrong_kind
from tieredstore.remote import RemoteStorageManager

StoreLike: TypeAlias = Settings | Mapping[str, str] | str | Path | RemoteStorageManager
"""Settings of a store, their properties, their file, or a manager that is open."""


def manager_of(store: StoreLike) -> tuple[RemoteStorageManager, bool]:
    """The manager, and whether it was opened here, so that whoever asked closes it.

    ConfigError for what is no store.
    """
    match store:
        case RemoteStorageManager():
            return store, False
        case Settings():
            return RemoteStorageManager(store), True
        case str() | Path():
            return RemoteStorageManager(load_settings(store)), True
        case _ if isinstance(cast("object", store), Mapping):
            return RemoteStorageManager(settings_from(store)), True
        case _:
            raise wrong_kind("the store", store, "settings, their file, properties, or an open RemoteStorageManager")
