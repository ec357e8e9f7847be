"""Where topics lie, and in which layout: everything above sees one store with the plugin's keys.

A place is a store and a prefix. What stands between it and its readers are stores too, each of which maps keys:

- :class:`~tieredstore.places.routed.RoutedStore` sends each topic to its place;
- :class:`~tieredstore.places.entropy.EntropyStore` puts bits behind the prefix of a place;
- :class:`~tieredstore.places.raw_store.RawStore` shows the files of Pinterest's layout as the plugin's objects.

So catalog, readers, uploader and tools need to know nothing of all that. With none of it turned on there is none of
these, and a store is the one that the settings name.
"""

from tieredstore.places.endpoints import Endpoint, EndpointProvider, RulesProvider

__all__ = ["Endpoint", "EndpointProvider", "RulesProvider"]
