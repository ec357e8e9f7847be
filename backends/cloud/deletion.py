"""Deleting keys one by one, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tieredstore.errors import ObjectNotFound, TieredStoreError
from tieredstore.process.deadline import Deadline, Stall
from tieredstore.process.thread_pool import ThreadPool


def delete_singly(
    keys: Sequence[str], delete: Callable[[str, Deadline], object], parallelism: int, stall: Stall
) -> Sequence[TieredStoreError]:
    """``delete`` each of the keys; the errors of those that still stand, an absent one not among them.

    Once the store has given no answer about any key for as long as ``stall`` allows, the rest is given up at once.
    """

    def failure(key: str) -> TieredStoreError | None:
        with stall.under_way() as deadline:
            try:
                delete(key, deadline)
            except TieredStoreError as error:
                if error.retryable:
                    return error
                stall.progress()
                return None if isinstance(error, ObjectNotFound) else error
            stall.progress()
            return None

    if not keys:
        return []
    with ThreadPool(min(parallelism, len(keys)), "tieredstore-delete") as pool:
        return [error for error in pool.map(failure, keys) if error is not None]
