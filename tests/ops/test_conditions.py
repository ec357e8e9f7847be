"""What a store says of its conditional writes, through everything that may stand before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.records.small_segments import memory_settings
from tests.support.stores.doubles import DelegatingObjectStore, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.wrappers.stack import LimitedStore, MeteredStore
from tieredstore.errors import ConfigError
from tieredstore.ops.steps import require_conditional_writes
from tieredstore.remote import RemoteStorageManager


@pytest.fixture(params=["bare", "metered", "limited", "delegating", "managed"])
def unconditional(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    store = ScriptedStore(MemoryObjectStore(), conditional_writes=False)
    if request.param == "managed":
        with RemoteStorageManager(memory_settings(), store=store) as manager:
            yield manager.store
        return
    wrap = {"bare": lambda inner: inner, "metered": MeteredStore, "limited": LimitedStore}
    yield wrap.get(request.param, DelegatingObjectStore)(store)


def test_a_store_without_atomic_conditions_is_refused_by_name(unconditional: ObjectStore) -> None:
    with pytest.raises(ConfigError, match=r"key rotation needs .*memory://"):
        require_conditional_writes(unconditional, "key rotation")


def test_our_stores_have_them() -> None:
    require_conditional_writes(MemoryObjectStore(), "key rotation")
