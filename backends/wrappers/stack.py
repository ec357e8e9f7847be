"""The one place where a store's wrappers are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.registry import BY_SETTING, store_from_settings
from tieredstore.backends.wrappers.limited import LimitedStore, shared_bucket
from tieredstore.backends.wrappers.metered import MeteredStore

if TYPE_CHECKING:
    from tieredstore.config import Settings


def wrapped(store: ObjectStore, settings: Settings) -> ObjectStore:
    """``store``, counted, and limited where the settings limit: what waits for the limit is not counted as time.

    It is counted under its short name in the settings, or, a user's own, under the name of its class.
    """
    name = settings.storage_backend
    metered = MeteredStore(store, name if name in BY_SETTING else type(store).__name__)
    up = shared_bucket("up", settings.upload_rate_limit)
    down = shared_bucket("down", settings.fetch.rate_limit)
    return metered if up is None and down is None else LimitedStore(metered, up, down)


def open_wrapped(settings: Settings) -> ObjectStore:
    """The store of the settings with all its wrappers."""
    return wrapped(store_from_settings(settings), settings)
