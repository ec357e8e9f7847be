"""Deleting keys one by one, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tieredstore.errors import ObjectNotFound, TieredStoreError
from tieredstore.process.thread_pool import ThreadPool


def delete_singly(keys: Sequence[str], delete: Callable[[str], object], parallelism: int) -> Sequence[TieredStoreError]:
    """``delete`` each of the keys; the errors of those that still stand, an absent one not among them."""

    def failure(key: str) -> TieredStoreError | None:
        try:
            delete(key)
        except ObjectNotFound:
            return None
        except TieredStoreError as error:
            return error
        return None

    if not keys:
        return []
    with ThreadPool(min(parallelism, len(keys)), "tieredstore-delete") as pool:
        return [error for error in pool.map(failure, keys) if error is not None]
