"""The records of a topic as one stream of Arrow's record batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import pyarrow as pa

from tieredstore.errors import AlreadyClosedError, TieredStoreError
from tieredstore.process.fan_in import FanIn
from tieredstore.process.interruption import Interrupted
from tieredstore.query.arguments import check_count
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes
from tieredstore.records.arrow_stream import ArrowStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tieredstore.model import Place
    from tieredstore.process.closing import Closing
    from tieredstore.records.settings import ReadSettings

_MIB: Final = 1024 * 1024

GivenPlaces: TypeAlias = "Place | Mapping[int, Place] | None"
"""The start or end of a read: for all partitions, or by number; None for the log's own end."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The content of a read, and its options: :func:`read_topic` describes each."""

    start: GivenPlaces = None
    stop: GivenPlaces = None
    columns: Sequence[str] = TOPIC_COLUMNS
    filter: Any = None
    types: ColumnTypes = field(default_factory=ColumnTypes)
    ordered: bool = True
    parallelism: int | None = None
    max_bytes: int = 64 * _MIB
    settings: ReadSettings | None = None

    def __post_init__(self) -> None:
        if self.parallelism is not None:
            check_count("parallelism", self.parallelism)
        check_count("max_bytes", self.max_bytes)


class StreamedScan(Protocol):
    """The source of a read: consecutive streams, several of them read in parallel."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        ...

    @property
    def readers(self) -> int:
        """The number of streams read in parallel."""
        ...

    def streams(self) -> Iterator[Callable[[], Iterator[pa.RecordBatch]]]:
        """Yield the streams, each begun by calling it."""
        ...


class TopicRead(ArrowStream):
    """The records of a topic; no record batch is empty. For one reader. Exhaust it, or close it.

    An unreferenced one ends too, within about a second. Closed early, it raises AlreadyClosedError, not an end; after a
    failure it raises its error again. It is also an Arrow stream (``__arrow_c_stream__``): pyarrow, Polars, DuckDB and
    DataFusion accept it, once, and pandas by ``pyarrow.table(read).to_pandas()``. Their errors have the class and the
    sentence of ours in their text. Used as a context manager it raises ours in their place, and ``error`` has it.
    """

    def __init__(self, topic: str, plan: ReadPlan, scan: StreamedScan, *, owned: Closing | None = None) -> None:
        """Begin the read; ``owned`` is closed with it."""
        self.topic = topic
        self.schema: Any = scan.schema
        self.error: TieredStoreError | None = None
        self.interruption: BaseException | None = None
        self.is_closed = False
        self._is_over = False
        self._owned = owned
        self._batches = FanIn(
            scan.streams(),
            at_once=scan.readers, ordered=plan.ordered, weigh=_weight, max_weight=plan.max_bytes,
        )  # fmt: skip
        weakref.finalize(self, self._batches.abandon).atexit = False

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches, None)
        except TieredStoreError as error:
            self.error = error
            self.close()
            raise
        except (Interrupted, KeyboardInterrupt) as interruption:
            # A reader through C only learns that something failed.
            self.interruption = interruption
            raise
        if batch is None:
            self._end()
            raise StopIteration
        return batch

    def _end(self) -> None:
        """End the read; raise its error if it was closed early, which a reader must not take for the end of records."""
        if self.is_closed and not self._is_over:
            if self.error is None:
                self.error = AlreadyClosedError(
                    f"this read of {self.topic} was closed before its end; start another read"
                )
            raise self.error
        self._is_over = True
        self.close()

    def reader(self) -> pa.RecordBatchReader:
        """Return the same read as a stream of pyarrow; raise AlreadyClosedError if its records were already read."""
        if self.is_closed:
            raise AlreadyClosedError(f"this read of {self.topic} was exhausted or closed before; start another read")
        return super().reader()

    def close(self) -> None:
        """End the read; running work ends by itself."""
        self.is_closed = True
        self._batches.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self.error is not None and isinstance(error, Exception) and not isinstance(error, TieredStoreError):
            raise self.error from None


def _weight(batch: pa.RecordBatch) -> int:
    return batch.nbytes
