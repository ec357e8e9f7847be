"""Topics of batches as tables: the wing that keeps them attaches these by an entry point of ``tieredstore.tables``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from tieredstore.config.installed import attached_parts
from tieredstore.query.topic_table import Scan, ScannedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.config import Settings
    from tieredstore.errors import TieredStoreError
    from tieredstore.values import ValueType


class BatchScan(Scan, Protocol):
    """One scan, iterated once."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The records."""
        ...

    def close(self) -> None:
        """Fetch no more."""
        ...


class BatchTable(ScannedTable, Protocol):
    """A topic of batches that can be scanned often, until it is closed."""

    def scan(self, columns: Sequence[str] | None = None, filter: Any = None) -> BatchScan:
        """The records with these columns for which the filter holds."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        ...

    @property
    def error(self) -> TieredStoreError | None:
        """The first error that a scan ended with."""
        ...

    def check_interruption(self) -> None:
        """Raise what interrupted a scan, if somebody did."""
        ...

    def close(self) -> None:
        """End all scans, and begin no other."""
        ...


class BatchTables(Protocol):
    """The topics of batches of one store."""

    @classmethod
    def beside(cls, store: ObjectStore, settings: Settings) -> Self | None:
        """Those of this store; None for a store in which there can be none."""
        ...

    @staticmethod
    def schema(key: ValueType, value: ValueType) -> pa.Schema:
        """The columns of each, with keys and values of these types."""
        ...

    def names(self) -> Iterable[str]:
        """What all topics are called."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a topic of that name, which may be no name of one."""
        ...

    def table(self, name: str, key: ValueType, value: ValueType, *, keeps_snapshot: bool = True) -> BatchTable:
        """A topic; ``keeps_snapshot``: always up to where it ended at first. TopicNotFoundError if there is none."""
        ...


@functools.cache
def batch_tables() -> type[BatchTables] | None:
    """What the wing attaches; None where it is absent."""
    parts: list[type[BatchTables]] = attached_parts("tieredstore.tables")
    return parts[0] if parts else None


def batches_beside(store: ObjectStore, settings: Settings) -> BatchTables | None:
    """The topics of batches in a store; None where there can be none."""
    tables = batch_tables()
    return None if tables is None else tables.beside(store, settings)
