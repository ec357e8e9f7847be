"""Places of topics and their layouts: all packages above this one see one store with the plugin's keys.

A place is a store and a prefix. Stores that translate keys lie between a place and its readers:

- :class:`~tieredstore.places.routed.RoutedStore` sends each topic to its place;
- :class:`~tieredstore.places.entropy.EntropyStore` puts hash bits after the prefix;
- :class:`~tieredstore.places.raw_store.RawStore` shows the files of Pinterest's layout as the plugin's objects.

So catalog, readers, uploader and tools know nothing of layouts. By default none of these is used, and the store is the
one that the settings name.
"""

from tieredstore.places.endpoints import Endpoint, EndpointProvider, RulesProvider

__all__ = ["Endpoint", "EndpointProvider", "RulesProvider"]
