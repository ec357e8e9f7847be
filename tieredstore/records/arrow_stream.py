"""Record batches as an Arrow stream. Its consumer learns the class and the message of this project's errors.

A consumer of Arrow's C stream interface (https://arrow.apache.org/docs/format/CStreamInterface.html) gets no exception,
only a text. pyarrow makes the text from the error's message and traceback. So that the text is only the message, this
module raises errors of this project without a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import copy
from itertools import chain
from typing import cast

import pyarrow as pa

from tieredstore.errors import TieredStoreError


def stream_reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a pyarrow reader of ``batches``, which all have ``schema``. The iterator ``batches`` is closed when the
    reader ends or is garbage collected.

    If ``batches`` raises an error of this project, the reader raises that error without a traceback.
    """
    reader: pa.RecordBatchReader = pa.RecordBatchReader.from_batches(schema, chain.from_iterable(_each(batches)))
    return reader


class ArrowStream(Iterator[pa.RecordBatch]):
    """Batches of one ``schema`` that pyarrow, Polars, DuckDB, DataFusion and others accept as an Arrow stream.

    For pandas, convert the stream by pyarrow: ``pyarrow.table(stream).to_pandas()``.
    """

    schema: pa.Schema

    def reader(self) -> pa.RecordBatchReader:
        """Return the remaining batches as a pyarrow stream. Each batch is returned once: by this object or by the
        stream.
        """
        return stream_reader(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the batches to a consumer of Arrow streams."""
        return self.reader().__arrow_c_stream__(requested_schema)


def _each(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield an iterator for each batch. For an error of this project, yield an iterator that raises the error."""
    try:
        for batch in batches:
            yield iter((batch,))
    except TieredStoreError as error:
        yield _make_failing(error)
    finally:
        close: Callable[[], object] | None = getattr(batches, "close", None)
        if close is not None:
            close()


def _make_failing(error: TieredStoreError) -> Iterator[pa.RecordBatch]:
    """Return an iterator that raises ``error`` by C code (a future's ``result``), so that the traceback has no Python
    frame.
    """
    failed: asyncio.Future[pa.RecordBatch] = asyncio.Future(loop=cast("asyncio.AbstractEventLoop", _NoLoop()))
    # Raise a copy of the error, because a copy has neither a traceback nor a cause.
    failed.set_exception(copy(error))
    return iter(failed.result, None)


class _NoLoop:
    """The methods of an event loop that a future calls. The future needs a loop, but none runs."""

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """Ignore a future's report that its error was never read, because the consumer has not read the stream to its
        end.
        """
