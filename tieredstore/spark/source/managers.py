"""What a Python process of Spark keeps open from one task to the next: connections, keys and caches."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from tieredstore.remote import RemoteStorageManager

if TYPE_CHECKING:
    from tieredstore.spark.source.store_source import StoreSource

_KEPT: Final = 4
"""Stores of one process; one more closes the one that was not asked for longest."""

_managers: Final[OrderedDict[tuple[int, StoreSource], RemoteStorageManager]] = OrderedDict()


def manager_of(source: StoreSource) -> RemoteStorageManager:
    """The manager of this process for a store, made on first use; not to be closed by who asks.

    For the one thread that runs a task. Settings are read in the process itself, so that no secret of a file travels.
    """
    place = os.getpid(), source
    found = _managers.pop(place, None) or RemoteStorageManager(source.load())
    _managers[place] = found
    while len(_managers) > _KEPT:
        (process, _), oldest = _managers.popitem(last=False)
        if process == os.getpid():  # a parent's is not a forked child's to close
            oldest.close()
    return found
