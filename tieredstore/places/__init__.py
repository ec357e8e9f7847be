"""The places of topics and their layouts: every room above sees one store with the plugin's keys.

A place is a store and a prefix. Stores that map keys lie between it and its readers:

- :class:`~tieredstore.places.routed.RoutedStore` sends each topic to its place;
- :class:`~tieredstore.places.entropy.EntropyStore` puts bits after the prefix of a place;
- :class:`~tieredstore.places.raw_store.RawStore` shows the files of Pinterest's layout as the plugin's objects.

So catalog, readers, uploader and tools do not know about layouts. Without any of these settings none of them is used,
and the store is the one that the settings name.
"""

from tieredstore.places.endpoints import Endpoint, EndpointProvider, RulesProvider

__all__ = ["Endpoint", "EndpointProvider", "RulesProvider"]
