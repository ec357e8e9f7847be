"""What a subclass of ``ObjectStoreTests`` tells about its store."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tieredstore.backends.base import ObjectStore


class StoreAccess:
    """The settings and hooks of ``ObjectStoreTests``, which says how to use them."""

    picklable: ClassVar[bool] = True
    """False for a store whose pickling must raise TypeError."""

    largest_object: ClassVar[int] = 70 << 20
    """The size in bytes of the largest object that a test writes."""

    listed_objects: ClassVar[int] = 2_500
    """How many objects a listing over several pages has; more than two pages of the store."""

    race_rounds: ClassVar[int] = 10
    """How often each race between writers is run."""

    racing_publishers: ClassVar[int] = 4
    """How many publish different objects for one key at once; 1 for a service that knows no condition there, which then
    is only looked at before."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store, made anew for each test, and closed after it: every subclass has to define it."""
        pytest.fail(f"{type(self).__name__} defines no fixture `store`")

    def raw_put(self, store: ObjectStore, key: str, data: bytes) -> None:
        """Write an object by other means than ``store``, which is what is tested, where there are any."""
        store.put(key, data)

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        """Read an object by other means than ``store``, where there are any."""
        return store.get(key)

    def etag(self, store: ObjectStore, key: str) -> str:
        """The object's etag by ``head``, which always tells it."""
        etag = store.head(key).etag
        assert etag
        return etag
