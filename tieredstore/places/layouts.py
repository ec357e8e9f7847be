"""Assembles the places for settings with a layout other than the plugin's.

``opening`` imports this module only if the settings name such a layout, so that other commands start faster.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tieredstore.backends.registry import settings_with
from tieredstore.backends.wrappers.stack import open_wrapped
from tieredstore.config.loading import settings_from
from tieredstore.places.endpoints import Endpoint, provider_of
from tieredstore.places.entropy import EntropyStore
from tieredstore.places.raw_store import RawStore
from tieredstore.places.record import Layout
from tieredstore.places.routed import Place, RoutedStore

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.config import Settings


def lay_out_places(store: ObjectStore, settings: Settings) -> ObjectStore:
    """Wrap ``store`` in the layout of the settings, and add the other places that the settings name. Closing the result
    closes all stores."""
    own = Place(Endpoint(), _lay_out(store, settings.key_prefix, settings), settings.key_prefix)
    provider = provider_of(settings)
    places = [own]
    with contextlib.ExitStack() as opened:
        for other in dict.fromkeys(provider.endpoints()):
            if other != Endpoint():
                places.append(_open_place(other, store, settings))
                opened.callback(places[-1].store.close)
        opened.pop_all()
    return own.store if len(places) == 1 else RoutedStore(places, provider)


def _open_place(endpoint: Endpoint, store: ObjectStore, settings: Settings) -> Place:
    if endpoint.url is None and not endpoint.storage:
        prefix = settings.key_prefix if endpoint.prefix is None else endpoint.prefix
        return Place(endpoint, _lay_out(store, prefix, settings), prefix, is_own_store=True)
    texts = {name: text.get_secret_value() for name, text in settings.endpoint.texts} | dict(endpoint.storage)
    base_dir, source = settings.endpoint.base_dir, "endpoint.rules"
    if endpoint.url is None:
        own = settings_from(texts, base_dir=base_dir, source=source)
    else:
        own = settings_with(endpoint.url, texts, base_dir=base_dir, source=source)
    prefix = own.key_prefix if endpoint.prefix is None else endpoint.prefix
    return Place(endpoint, _lay_out(open_wrapped(own), prefix, settings), prefix)


def _lay_out(store: ObjectStore, prefix: str, settings: Settings) -> ObjectStore:
    endpoint = settings.endpoint
    layout = Layout(endpoint.entropy_bits, endpoint.cluster, endpoint.is_raw)
    if layout.is_raw:
        return RawStore(store, prefix, layout, settings.chunk_size)
    return EntropyStore(store, prefix, layout) if layout.bits else store
