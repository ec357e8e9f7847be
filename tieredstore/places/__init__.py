"""Places of topics (each a store and a prefix), and layouts of keys. All other packages see one store with the plugin's
keys.

These wrappers of stores translate between the plugin's keys and the stored keys:

- :class:`~tieredstore.places.routed.RoutedStore` sends each topic to its place;
- :class:`~tieredstore.places.entropy.EntropyStore` puts hash bits after the prefix;
- :class:`~tieredstore.places.raw_store.RawStore` shows the files of Pinterest's layout as the plugin's objects.

Because of these wrappers, catalog, readers, uploader and tools do not depend on layouts. By default no wrapper is used,
only the store that the settings name.
"""

from tieredstore.places.endpoints import Endpoint, EndpointProvider, RulesProvider

__all__ = ["Endpoint", "EndpointProvider", "RulesProvider"]
