"""Several places together keep the contract of all stores: callers never see which store holds an object."""

from __future__ import annotations

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.places import Endpoint
from tieredstore.places.endpoints import RulesProvider
from tieredstore.places.routed import Place, RoutedStore
from tieredstore.testing.object_store_tests import ObjectStoreTests


class TestRoutedStore(ObjectStoreTests):
    """The keys of these tests belong to no topic, so all their objects are in the first place."""

    picklable = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        settings = settings_from({"storage.backend.class": "memory", "chunk.size": "64"})
        other = Place(Endpoint(prefix="x/"), MemoryObjectStore(), "x/")
        return RoutedStore([Place(Endpoint(), MemoryObjectStore(), ""), other], RulesProvider(settings))
