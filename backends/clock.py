"""The clock of a store, by which ages of what is in it are told."""

from __future__ import annotations

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError


def store_time_ms(store: ObjectStore) -> int:
    """The store's own time, in ms. Every comparison with the time of an object goes by it: a machine whose clock is
    ahead would take what is young for old. ConfigError for a store that does not tell."""
    now_ms = store.now_ms()
    if now_ms is None:
        raise ConfigError(f"{store.identity} does not tell its time, so nobody knows how old anything in it is")
    return now_ms
