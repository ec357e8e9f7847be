"""The golden buckets, opened once per test module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.golden.stored import settings_of
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.remote import RemoteStorageManager

_managers: list[RemoteStorageManager] = []


@pytest.fixture(scope="module", autouse=True)
def managers_are_closed() -> Iterator[None]:
    yield
    opened.cache_clear()
    while _managers:
        _managers.pop().close()


@cache
def opened(case: str) -> tuple[RemoteStorageManager, Catalog]:
    """Return a case's manager, closed after the module's tests, and its catalog."""
    manager = RemoteStorageManager(settings_of(case))
    _managers.append(manager)
    return manager, load_catalog(manager)
