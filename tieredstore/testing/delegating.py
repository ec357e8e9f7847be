"""The base of the store doubles: a store that hands every call on to another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tieredstore.backends.base import DelegatingStore, ObjectStore
from tieredstore.errors import TieredStoreError

OperationName: TypeAlias = Literal[
    "put",
    "get",
    "get_into",
    "list",
    "delete",
    "head",
    "replace",
    "prepare",
    "publish",
    "abandoned_writes",
    "discard",
    "now_ms",
]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a store: the ``number``-th since the double was made or reset, from 0.

    ``keys`` are those of a delete, the one key of another call, or the prefix of a listing. A small read, and one of
    the whole, is a ``get``.
    """

    number: int
    name: OperationName
    keys: tuple[str, ...]


class DelegatingObjectStore(DelegatingStore):
    """Hands every call on to ``inner``; a double overrides what it observes or disturbs."""

    @property
    def small_batch(self) -> int:
        """1: a double sees each read by itself."""
        return 1

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """By ``get``."""
        ObjectStore.get_whole(self, key, buffer)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """By ``get_small``, one after the other."""
        return ObjectStore.get_small_batch(self, keys, most)
