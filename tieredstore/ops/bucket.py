"""A store with the segments under one prefix, and its settings. The tools in ``ops`` work on such a bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.config.endpoint import LAYOUT, PINTEREST
from tieredstore.errors import ConfigError
from tieredstore.format.keys import displayed_key
from tieredstore.format.manifest import ManifestRules
from tieredstore.places.opening import open_places
from tieredstore.remote.manifest_object import rules_of

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class Bucket:
    """An open store and its settings. Key files are read only by :meth:`manager`."""

    settings: Settings
    store: ObjectStore

    @property
    def prefix(self) -> str:
        """The prefix of all segments' keys."""
        return self.settings.key_prefix

    @property
    def manifest_rules(self) -> ManifestRules:
        """The rules from the settings that manifests must obey."""
        return rules_of(self.settings)

    def show_key(self, key: str) -> str:
        """Return the key as messages show it. The prefix is masked if the settings say so."""
        return displayed_key(key, self.prefix, self.settings.key_prefix_mask)

    def refuse_raw(self, tool: str, why: str) -> None:
        """Raise ConfigError if the settings choose the raw layout, which ``tool`` does not support."""
        if self.settings.endpoint.is_raw:
            raise ConfigError(f"{tool} does not work on the raw layout ({LAYOUT}={PINTEREST}): {why}")

    def manager(self) -> RemoteStorageManager:
        """Return a manager that copies and fetches in the same store. Reads the key files. The caller closes it."""
        # Import the module only now. It needs cryptography and compression, and listing and deleting do not.
        from tieredstore.remote import RemoteStorageManager  # noqa: PLC0415

        return RemoteStorageManager(self.settings, store=self.store)

    def open_uncached_manager(self, *, verifies_again: bool = False) -> RemoteStorageManager:
        """Return a manager without a chunk cache, because cached chunks would prove nothing about the store.

        With ``verifies_again``, the manager does not keep manifests and indexes either, so it sees changes.
        """
        fetch = self.settings.fetch.model_copy(update={"chunk_cache": None})
        if verifies_again:
            caches = {"manifest_cache": fetch.manifest_cache, "index_cache": fetch.index_cache}
            none = {name: cache.model_copy(update={"size": 0}) for name, cache in caches.items()}
            fetch = fetch.model_copy(update=none)
        return replace(self, settings=self.settings.model_copy(update={"fetch": fetch})).manager()


@contextlib.contextmanager
def open_bucket(settings: Settings) -> Generator[Bucket]:
    """Open the store of the settings. Close it at the end of the block."""
    with contextlib.closing(open_places(settings)) as store:
        yield Bucket(settings, store)
