"""Which records are shown: those that match, and only so many."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from tieredstore.errors import ConfigError, excerpt

if TYPE_CHECKING:
    import pyarrow as pa

PartitionRecords: TypeAlias = "tuple[int, pa.RecordBatch]"
"""A partition's number, and records of it."""


class Pattern:
    """A regular expression of RE2 that a record's key or its value has somewhere. Bytes are matched, as they are."""

    def __init__(self, text: str) -> None:
        """ConfigError for what is no expression."""
        self._arrow: Any = importlib.import_module("pyarrow")
        self._compute: Any = importlib.import_module("pyarrow.compute")
        self._text = text
        try:
            self._matches(self._arrow.array([b""], self._arrow.binary()))
        except (self._arrow.ArrowInvalid, UnicodeEncodeError) as error:
            raise ConfigError(f"--grep {excerpt(text)!r} is no regular expression: {error}") from error

    def filtered(self, batches: Iterable[PartitionRecords]) -> Iterator[PartitionRecords]:
        """The records that match, without empty batches."""
        for partition, records in batches:
            columns: Any = records
            mask = self._compute.or_(self._matches(columns.column("key")), self._matches(columns.column("value")))
            kept = columns.filter(mask)
            if kept.num_rows:
                yield partition, kept

    def _matches(self, column: Any) -> Any:
        return self._compute.match_substring_regex(column, self._text).fill_null(fill_value=False)


def first_of(batches: Iterable[PartitionRecords], count: int) -> Iterator[PartitionRecords]:
    """The first ``count`` records; nothing is asked for behind the last of them."""
    left = count
    for partition, records in batches:
        columns: Any = records
        yield partition, columns.slice(0, left)
        left -= min(left, records.num_rows)
        if not left:
            return
