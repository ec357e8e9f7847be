"""What a command works on: the settings, the store they name, and how its keys are laid out."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.registry import settings_at
from tieredstore.backends.wrappers.stack import open_wrapped
from tieredstore.config import Settings, load_settings
from tieredstore.errors import ConfigError
from tieredstore.remote.layout import KeyLayout
from tieredstore.remote.manager import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """An open store and its settings. No key file was read: only :meth:`manager` needs them."""

    settings: Settings
    store: ObjectStore

    @property
    def layout(self) -> KeyLayout:
        """How keys are made, and shown."""
        return KeyLayout(self.settings.key_prefix, self.settings.key_prefix_mask)

    def manager(self) -> RemoteStorageManager:
        """What copies and fetches, over the same store; close it. Reads the key files."""
        return RemoteStorageManager(self.settings, store=self.store)


def chosen_settings(settings_path: Path | None, store_url: str | None) -> Settings:
    """The settings of a file, of a URL, or of a file for the store of a URL; ConfigError without both."""
    if store_url is not None:
        return settings_at(store_url, settings_path)
    if settings_path is None:
        raise ConfigError("no store is named: give --settings FILE (-c) or --store URL")
    return load_settings(settings_path)


@contextlib.contextmanager
def opened(settings_path: Path | None, store_url: str | None = None) -> Generator[OpenedStore, None, None]:
    """The store that a settings file or a URL names, closed again at the end."""
    settings = chosen_settings(settings_path, store_url)
    with contextlib.closing(open_wrapped(settings)) as store:
        yield OpenedStore(settings, store)
