"""Opens the store of the settings with all its places. All other packages read and write this store."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tieredstore.backends.wrappers.stack import open_wrapped

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.config import Settings


def open_places(settings: Settings) -> ObjectStore:
    """Open the settings' store with all places that the settings name. If they name no layout and no other places,
    return the store without wrappers."""
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(contextlib.closing(open_wrapped(settings)))
        placed_store = place_store(store, settings)
        opened.pop_all()
    return placed_store


def place_store(store: ObjectStore, settings: Settings) -> ObjectStore:
    """Wrap ``store`` in the layout of the settings, and add the other places that the settings name. Closing the result
    closes all stores."""
    if settings.endpoint.is_default:
        return store
    # Import layouts only when needed, because most buckets have the plugin's layout.
    from tieredstore.places.layouts import lay_out_places  # noqa: PLC0415

    return lay_out_places(store, settings)
