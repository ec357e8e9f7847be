"""The records of a topic as one stream of record batches."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from tieredstore.errors import AlreadyClosedError, TieredStoreError
from tieredstore.process.fan_in import FanIn
from tieredstore.process.interruption import Interrupted
from tieredstore.query.arguments import check_count
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes
from tieredstore.records.arrow_stream import ArrowStream

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from tieredstore.model import Places
    from tieredstore.process.closing import Closing
    from tieredstore.query.topic_scan import TopicScan

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The parameters of a read.

    ``start`` and ``stop`` (exclusive) are places, or None for the first record or the end. ``filter`` is a pyarrow
    expression over any columns. Records that its conditions on ``partition``, ``offset`` and ``timestamp`` exclude are
    not even fetched. ``types`` are the types of keys and values.

    ``parallelism`` is the number of splits to read at once, by default the number of cores. Records are sorted by
    partition and offset. Readers stop decoding while ``max_bytes`` of decoded records wait for the caller (one more
    batch may wait).
    """

    start: Places | None = None
    stop: Places | None = None
    columns: Sequence[str] = TOPIC_COLUMNS
    filter: ds.Expression | None = None
    types: ColumnTypes = field(default_factory=ColumnTypes)
    parallelism: int | None = None
    max_bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        if self.parallelism is not None:
            check_count("parallelism", self.parallelism)
        check_count("max_bytes", self.max_bytes)


class TopicRead(ArrowStream):
    """The records of a topic. No record batch is empty. Not thread-safe. The caller reads it to its end, or closes it.

    If this object is garbage collected, its running work ends within about a second. Iterating after an early close
    raises AlreadyClosedError, so that the read never seems complete. Iterating after a failure raises the same error
    again.

    A read is also an Arrow stream (``__arrow_c_stream__``), which pyarrow, Polars, DuckDB and DataFusion can read once.
    For pandas, use ``pyarrow.table(read).to_pandas()``.

    If the read fails, these libraries raise their own errors, with the class and sentence of the original error. At its
    end, a ``with`` block raises the original error instead, which is also in ``error``.
    """

    def __init__(self, topic: str, plan: ReadPlan, scan: TopicScan, *, owned: Closing | None = None) -> None:
        """Begin the read. :meth:`close` also closes ``owned``."""
        self.topic = topic
        self.schema = scan.schema
        self.error: TieredStoreError | None = None
        self.interruption: BaseException | None = None
        self.is_closed = False
        self._is_over = False
        self._owned = owned
        self._batches = FanIn(
            scan.streams(), at_once=scan.readers, weigh=lambda batch: batch.nbytes, max_weight=plan.max_bytes
        )
        weakref.finalize(self, self._batches.abandon).atexit = False

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches, None)
        except TieredStoreError as error:
            self.error = error
            self.close()
            raise
        except (Interrupted, KeyboardInterrupt) as interruption:
            # Keep the interruption for the caller, because a library that reads through Arrow's C interface raises
            # its own error instead.
            self.interruption = interruption
            raise
        if batch is None:
            self._end()
            raise StopIteration
        return batch

    def _end(self) -> None:
        """End the read. After an early close, raise an error, because otherwise the caller would think that all
        records were read.
        """
        if self.is_closed and not self._is_over:
            if self.error is None:
                self.error = AlreadyClosedError(
                    f"this read of {self.topic} was closed before its end; start another read"
                )
            raise self.error
        self._is_over = True
        self.close()

    def reader(self) -> pa.RecordBatchReader:
        """Return the same read as a pyarrow stream. Raise AlreadyClosedError if its records were read already."""
        if self.is_closed:
            raise AlreadyClosedError(f"this read of {self.topic} was exhausted or closed before; start another read")
        return super().reader()

    def close(self) -> None:
        """End the read without waiting for running work."""
        self.is_closed = True
        self._batches.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()
        if self.error is not None and isinstance(error, Exception) and not isinstance(error, TieredStoreError):
            raise self.error from None
