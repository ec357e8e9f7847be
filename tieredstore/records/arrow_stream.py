"""Record batches as an Arrow stream that preserves the class and sentence of our errors.

A reader of the C stream interface (https://arrow.apache.org/docs/format/CStreamInterface.html) gets no exception, only
a text that pyarrow makes of it: its sentence, and its traceback. Errors of ours are raised here without a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import copy
from itertools import chain
from typing import Any, cast

import pyarrow as pa

from tieredstore.errors import TieredStoreError


def stream_reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader of ``batches``, which all have this schema; they are closed when it ends or is dropped.

    An error of ours ends it without a traceback.
    """
    reader: pa.RecordBatchReader = pa.RecordBatchReader.from_batches(schema, chain.from_iterable(_each(batches)))
    return reader


class ArrowStream(Iterator[pa.RecordBatch]):
    """Batches of one ``schema`` that pyarrow, Polars, DuckDB, DataFusion and others accept as an Arrow stream.

    pandas takes the table that pyarrow makes of them: ``pyarrow.table(stream).to_pandas()``.
    """

    schema: pa.Schema

    def reader(self) -> pa.RecordBatchReader:
        """Return the same read as a stream of pyarrow: each record comes from one of the two, not both."""
        return stream_reader(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the read to a consumer of Arrow streams."""
        reader: Any = self.reader()
        return reader.__arrow_c_stream__(requested_schema)


def _each(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield each batch as an iterator, and an error of ours as an iterator that raises it."""
    try:
        for batch in batches:
            yield iter((batch,))
    except TieredStoreError as error:
        yield _raising(error)
    finally:
        close: Callable[[], object] | None = getattr(batches, "close", None)
        if close is not None:
            close()


def _raising(error: TieredStoreError) -> Iterator[pa.RecordBatch]:
    """Raise ``error`` from C, without a Python frame in between: a future's result can do that."""
    failed: asyncio.Future[pa.RecordBatch] = asyncio.Future(loop=cast("asyncio.AbstractEventLoop", _NoLoop()))
    # A copy has no traceback, and no cause with one.
    failed.set_exception(copy(error))
    return iter(failed.result, None)


class _NoLoop:
    """The methods of an event loop that a future calls; no loop ever runs."""

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore a stream that was not read to its end."""
