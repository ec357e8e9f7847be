"""Decoding for those who bring their own bytes, or know which segments they want."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from tieredstore.errors import ConfigError
from tieredstore.model import Isolation
from tieredstore.records.settings import ReadSettings
from tieredstore.spark.source.batch_arrays import BatchArrays, OnCorrupt
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.mapped_rows import MappedRows, RecordFunction, rows_given, schema_of
from tieredstore.spark.source.raw_logs import CONTENT, rows_of_logs
from tieredstore.spark.source.rows import COLUMNS, RowShape
from tieredstore.spark.source.sentences import each_in_one_sentence
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.stored_segments import PARTS, PATH, StoredSegments, segment_keys

# What its type stubs say of Arrow's functions is partial.
_functions: Any = functions
arrow: Any = pa

RECORD_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("topic", "partition"))
"""What record batches tell of a record by themselves, but for its headers."""

_Batches: TypeAlias = Iterator[pa.RecordBatch]


def decode_segments(
    df: DataFrame,
    *,
    settings: StoreSource | Mapping[str, str] | str | None = None,
    columns: Sequence[str] = COLUMNS,
    isolation: Isolation | None = None,
    function: RecordFunction | None = None,
    schema: StructType | pa.Schema | str | None = None,
) -> DataFrame:
    """A row for each record of the segments in ``df``, with ``columns`` (``headers`` may be one of them).

    With a ``function`` it is what that makes of the records, as a DataFrame of ``schema``, as in ``map_records``: it
    runs in the task that decodes, and the JVM meets its rows alone.

    ``df`` has either the bytes of logs in a binary column ``content``, as ``spark.read.format("binaryFile")`` gives
    them; topic and partition are told by a column ``path`` that ends as a broker's does
    (``<topic>-<partition>/<base offset>.log``), and null without. Or it names segments of the store that ``settings``
    (a file's name, or properties) open: in a text column ``segment`` by the path of their objects, or in ``topic``,
    ``topic_id``, ``partition``, ``base_offset`` and ``segment_id``, as ``tieredstore ls --json`` gives them.

    ``isolation`` is ``read_committed`` by default for segments of a store. A log alone does not tell which of its
    transactions were aborted, so that its bytes can be read by ``read_uncommitted`` only. A task holds one batch of
    ``df`` and a few MiB; each log or segment is decoded by one task, so have as many partitions as tasks are wanted.
    ConfigError for what cannot be; tasks fail with BatchCorrupt, SegmentNotFound or what else is wrong with a segment,
    which they name. Rows are in the order of ``df``, those of a segment by offset.
    """
    shape = RowShape(columns)
    mapped = _mapped(function, schema)
    result = shape.schema if mapped is None else mapped.schema
    if _has(df.schema, CONTENT, BinaryType()):
        if isolation not in (None, "read_uncommitted"):
            raise ConfigError(
                "the bytes of a log do not tell which of its transactions were aborted: read them with "
                "isolation='read_uncommitted', or name segments of a store instead"
            )
        return df.mapInArrow(_log_task(shape.columns, mapped), result)
    by_path = _has(df.schema, PATH, StringType())
    if not by_path and not set(PARTS) <= set(df.columns):
        raise ConfigError(
            f"decode_segments needs a binary column {CONTENT}, a text column {PATH}, or the columns "
            f"{', '.join(PARTS)}; there are {', '.join(df.columns)}"
        )
    source = store_source(settings)
    source.load()  # what is wrong with it is better said here than by a task
    reading = ReadSettings(columns=shape.decoder_columns, isolation=isolation or "read_committed")
    return df.mapInArrow(_segment_task(source, shape.columns, reading, by_path, mapped), result)


def decode_batches(
    col: Column | str, *, columns: Sequence[str] = RECORD_COLUMNS, on_corrupt: OnCorrupt = "fail"
) -> Column:
    """An array of the records in ``col``, a binary column of whole record batches one after the other.

    Each record is a struct of ``columns`` (``headers`` may be one of them), in the order of the log: control records
    are left out, those of aborted transactions are not. Null stays null, no bytes are an empty array. A damaged batch
    fails the task with BatchCorrupt, or with ``on_corrupt="null"`` its row has null. Offsets ascend within a value.
    """
    if on_corrupt not in ("fail", "null"):
        raise ConfigError(f"on_corrupt is {on_corrupt!r}; it must be fail or null")
    unknown = [name for name in columns if name in ("topic", "partition")]
    if unknown:
        raise ConfigError(f"record batches do not tell their {' and '.join(unknown)}: leave that out of columns")
    shape = RowShape(columns)
    task: Any = _functions.arrow_udf(_array_task(shape.columns, on_corrupt), ArrayType(shape.schema))
    decoded: Column = task(col)
    return decoded


def _mapped(function: RecordFunction | None, schema: StructType | pa.Schema | str | None) -> MappedRows | None:
    if (function is None) != (schema is None):
        raise ConfigError("function and schema belong together: give both, or none")
    return None if function is None or schema is None else MappedRows(function, schema_of(schema))


def _log_task(columns: tuple[str, ...], mapped: MappedRows | None) -> Callable[[_Batches], _Batches]:
    def decode_segments(batches: _Batches) -> _Batches:
        return rows_given(rows_of_logs(batches, RowShape(columns)), mapped)

    return decode_segments


def _segment_task(
    source: StoreSource, columns: tuple[str, ...], reading: ReadSettings, by_path: bool, mapped: MappedRows | None
) -> Callable[[_Batches], _Batches]:
    def rows(batches: _Batches) -> _Batches:
        manager = manager_of(source)
        keys = segment_keys(batches, by_path, manager.layout.prefix)
        yield from StoredSegments(manager, reading).rows(keys, RowShape(columns))

    def decode_segments(batches: _Batches) -> _Batches:
        return rows_given(rows(batches), mapped)

    return decode_segments


def _array_task(columns: tuple[str, ...], on_corrupt: OnCorrupt) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def decode_batches(arrays: Iterator[Any]) -> Iterator[Any]:
        return each_in_one_sentence(BatchArrays(RowShape(columns), on_corrupt, _place).convert(arrays))

    # Spark tells by them what kind of function it is.
    decode_batches.__annotations__.update({"arrays": Iterator[arrow.Array], "return": Iterator[arrow.Array]})
    return decode_batches


def _place(row: int) -> str:
    task = TaskContext.get()
    return f"value {row}" if task is None else f"value {row} of partition {task.partitionId()}"


def _has(schema: StructType, name: str, kind: object) -> bool:
    return name in schema.names and schema[name].dataType == kind


def store_source(settings: StoreSource | Mapping[str, str] | str | None) -> StoreSource:
    """Where the settings come from; ConfigError without any."""
    match settings:
        case None:
            raise ConfigError("segments of a store need its settings: a file's name, or properties")
        case StoreSource():
            return settings
        case str():
            return StoreSource(settings, ())
        case _:
            return StoreSource(None, tuple(sorted(settings.items())))
