"""Records out of a file of an output in its store, for whoever looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tieredstore.errors import ObjectNotFound
from tieredstore.pipelines.config.secor import delimiter_bytes
from tieredstore.pipelines.files.downloads import downloaded
from tieredstore.pipelines.format_table import FORMATS, read_output
from tieredstore.pipelines.run.recipes import naming_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline


def printed(pipeline: Pipeline, store: ObjectStore, key: str) -> Iterator[pa.RecordBatch]:
    """The records of the file, of whatever format; ObjectNotFound if it is not there."""
    delimiter = delimiter_bytes(pipeline.own.delimiter)
    with ExitStack() as stack:
        file = stack.enter_context(downloaded(store, key))
        sidecar = None
        beside = {kind.sidecar_of for kind in FORMATS.values()}
        if beside & {f".{part}" for part in key.rpartition("/")[2].split(".")[1:]}:
            try:
                sidecar = stack.enter_context(downloaded(store, naming_of(pipeline).sidecar_key(key)))
            except ObjectNotFound:
                # Secor's have none.
                sidecar = None
        yield from read_output(file, key, sidecar=sidecar, delimiter=delimiter)
