"""What a command works on: the settings, the store they name, and how its keys are laid out."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import Settings, load_settings
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.layout import KeyLayout


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


@contextlib.contextmanager
def opened(settings_path: Path) -> Generator[OpenedStore, None, None]:
    """The store that a settings file names, closed again at the end."""
    settings = load_settings(settings_path)
    with contextlib.closing(store_from_settings(settings)) as store:
        yield OpenedStore(settings, store)
