"""The interface by which queries read topics of MemQ batches as tables. The optional part ``pubsub`` implements it, and
registers it as an entry point of ``tieredstore.tables``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from tieredstore.errors import ConfigError
from tieredstore.installation import attached_parts
from tieredstore.query.topic_table import Scan, ScannedTable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from tieredstore.backends.base import ObjectStore
    from tieredstore.config import Settings
    from tieredstore.errors import TieredStoreError
    from tieredstore.values import ValueType


class BatchScan(Scan, Protocol):
    """One scan of a topic of batches. Iterate over it once."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the records."""
        ...

    def close(self) -> None:
        """Stop fetching."""
        ...


class BatchTable(ScannedTable, Protocol):
    """A topic of batches that can be scanned repeatedly until it is closed."""

    def scan(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> BatchScan:
        """Return a scan of the records for which the filter holds, with these columns."""
        ...

    @property
    def is_closed(self) -> bool:
        """True after ``close``."""
        ...

    @property
    def error(self) -> TieredStoreError | None:
        """The first error that ended a scan."""
        ...

    def check_interruption(self) -> None:
        """If a signal interrupted a scan, raise that interruption."""
        ...

    def close(self) -> None:
        """End all scans, and refuse new ones."""
        ...


class BatchTables(Protocol):
    """The topics of batches of one store."""

    READERS: ClassVar[str]
    """The names of the tools that read a topic of batches, for error messages."""

    @classmethod
    def beside(cls, store: ObjectStore, settings: Settings) -> Self | None:
        """Return the batch topics of this store; None if this kind of store cannot have batch topics."""
        ...

    @staticmethod
    def schema(key: ValueType, value: ValueType) -> pa.Schema:
        """Return the columns of every batch topic, with keys and values of these types."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all batch topics."""
        ...

    def has(self, name: str) -> bool:
        """Return True if there is a batch topic of that name. The name may be invalid."""
        ...

    def table(self, name: str, key: ValueType, value: ValueType, *, keeps_snapshot: bool = True) -> BatchTable:
        """Return a batch topic as a table. Raise TopicNotFoundError if it does not exist.

        With ``keeps_snapshot``, every scan ends where the first one ended.
        """
        ...


@functools.cache
def batch_tables() -> type[BatchTables] | None:
    """Return the class of the optional part ``pubsub``; None if that part is not installed."""
    parts: list[type[BatchTables]] = attached_parts("tieredstore.tables")
    return parts[0] if parts else None


def batches_beside(store: ObjectStore, settings: Settings) -> BatchTables | None:
    """Return the batch topics of a store; None if this kind of store cannot have batch topics."""
    tables = batch_tables()
    return None if tables is None else tables.beside(store, settings)


def check_no_window(topic: str, *window: object) -> None:
    """Raise ConfigError if ``window`` has partitions, a start or a stop, because a topic of batches is always read
    whole."""
    if any(one is not None for one in window):
        raise ConfigError(
            f"partitions, start and stop do not apply to {topic}, a topic of batches: leave them out, or name "
            "topics of segments"
        )
