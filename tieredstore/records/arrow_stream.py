"""Record batches as an Arrow stream, through which an error of ours is still its class and its sentence.

Whoever reads a stream of the C interface (https://arrow.apache.org/docs/format/CStreamInterface.html) gets no exception
but a text, which pyarrow makes of the exception: its sentence, and what Python would print of it. Errors of ours are
raised here so that there is no traceback to print.
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
    """A reader of ``batches``, which all have this schema; they are closed when it ends or is forgotten.

    An error of ours ends it without a traceback.
    """
    reader: pa.RecordBatchReader = pa.RecordBatchReader.from_batches(schema, chain.from_iterable(_each(batches)))
    return reader


class ArrowStream(Iterator[pa.RecordBatch]):
    """Batches of one ``schema`` that pyarrow, Polars, DuckDB, DataFusion and others take as they are, as Arrow streams.

    pandas takes the table that pyarrow makes of them: ``pyarrow.table(stream).to_pandas()``.
    """

    schema: pa.Schema

    def reader(self) -> pa.RecordBatchReader:
        """The same records as a stream of pyarrow's, which is this read: what one of them gives, the other does not."""
        return stream_reader(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """For whoever takes Arrow streams."""
        reader: Any = self.reader()
        return reader.__arrow_c_stream__(requested_schema)


def _each(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """The batches one by one, each as an iterator, and an error of ours as one that raises it when it is read."""
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
    """Raises ``error`` from C, so that no frame of Python's is on its way: a future's result is the one that can."""
    failed: asyncio.Future[pa.RecordBatch] = asyncio.Future(loop=cast("asyncio.AbstractEventLoop", _NoLoop()))
    # A copy has no traceback, and no cause with one.
    failed.set_exception(copy(error))
    return iter(failed.result, None)


class _NoLoop:
    """What a future asks of a loop that nothing ever runs on."""

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A stream that nobody read to its end."""
