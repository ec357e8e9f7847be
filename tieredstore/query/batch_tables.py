"""Topics of batches as tables; their wing attaches them by an entry point of ``tieredstore.tables``."""

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
        """Yield the records."""
        ...

    def close(self) -> None:
        """Stop fetching."""
        ...


class BatchTable(ScannedTable, Protocol):
    """A topic of batches that can be scanned often, until it is closed."""

    def scan(self, columns: Sequence[str] | None = None, filter: Any = None) -> BatchScan:
        """Scan the records with these columns for which the filter holds."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if it was closed."""
        ...

    @property
    def error(self) -> TieredStoreError | None:
        """The first error that ended a scan."""
        ...

    def check_interruption(self) -> None:
        """Raise the interruption of a scan, if there was one."""
        ...

    def close(self) -> None:
        """End all scans, and begin no other."""
        ...


class BatchTables(Protocol):
    """The topics of batches of one store."""

    @classmethod
    def beside(cls, store: ObjectStore, settings: Settings) -> Self | None:
        """Return the topics of this store; None if it cannot have any."""
        ...

    @staticmethod
    def schema(key: ValueType, value: ValueType) -> pa.Schema:
        """Return the columns of each, with keys and values of these types."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        ...

    def has(self, name: str) -> bool:
        """Return True if there is a topic of that name, which may be an invalid one."""
        ...

    def table(self, name: str, key: ValueType, value: ValueType, *, keeps_snapshot: bool = True) -> BatchTable:
        """Return a topic; with ``keeps_snapshot``, always up to its first end. Raise TopicNotFoundError if there is
        none.
        """
        ...


@functools.cache
def batch_tables() -> type[BatchTables] | None:
    """Return the wing's class; None if the wing is absent."""
    parts: list[type[BatchTables]] = attached_parts("tieredstore.tables")
    return parts[0] if parts else None


def batches_beside(store: ObjectStore, settings: Settings) -> BatchTables | None:
    """Return the topics of batches in a store; None if it cannot have any."""
    tables = batch_tables()
    return None if tables is None else tables.beside(store, settings)
