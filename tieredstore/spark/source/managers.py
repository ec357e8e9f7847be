"""What a Python process of Spark keeps open from one task to the next: connections, keys and caches."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from tieredstore.process.per_process import PerProcess
from tieredstore.remote import RemoteStorageManager

if TYPE_CHECKING:
    from tieredstore.spark.source.store_source import StoreSource

_KEPT: Final = 4
"""Stores of one process; one more closes the one that was not asked for longest."""


def _close_all(managers: OrderedDict[StoreSource, RemoteStorageManager]) -> None:
    while managers:
        managers.popitem()[1].close()


# Spark's daemon forks its workers: what a parent has open is not a child's to use, nor to close.
_managers: Final = PerProcess[OrderedDict["StoreSource", RemoteStorageManager]](OrderedDict, _close_all)


def manager_of(source: StoreSource) -> RemoteStorageManager:
    """The manager of this process for a store, made on first use; not to be closed by who asks.

    For the one thread that runs a task. Settings are read in the process itself, so that no secret of a file travels.
    """
    managers = _managers.get()
    manager = managers.pop(source, None) or RemoteStorageManager(source.load())
    managers[source] = manager
    while len(managers) > _KEPT:
        managers.popitem(last=False)[1].close()
    return manager
