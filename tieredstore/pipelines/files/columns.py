"""Formats with columns decoded from values, or added by a user's ``frame`` function on Spark. A struct column ``kafka``
then holds key, offset and other metadata of each record.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.config.named_class import import_named
from tieredstore.errors import ConfigError, InvalidValueError, SchemaNotFoundError, quote
from tieredstore.pipelines.filing.schemas import Schemas
from tieredstore.pipelines.writers import (
    DECODED,
    ENVELOPE,
    KAFKA,
    FileWriter,
    Format,
    GroupedFile,
    find_undatable,
    find_undatable_values,
)
from tieredstore.values.avro import Avro, SchemaLookup, arrow_type_of, is_framed, parse_schema, schema_id
from tieredstore.values.avro_bounds import AvroType
from tieredstore.values.avro_union import CannotUniteError, unite_schemas
from tieredstore.values.base import ValueType
from tieredstore.values.json_text import Json
from tieredstore.values.unmapped_json import UnmappedFields

REST: Final = "_rest"

_BESIDE: Final = ("offset", "partition", "timestamp", "key", "headers")
_BESIDE_FIELDS: Final = [ENVELOPE.field(name) for name in _BESIDE]
KAFKA_FIELD: Final = pa.field(KAFKA, pa.struct(_BESIDE_FIELDS))


Taken = tuple[tuple[str, str], ...]
"""Forbidden column names, each with the setting that defines the name. Readers such as Hive derive columns of these
names from directories such as ``dt=...``.
"""


def _place(row: int) -> str:
    return f"the value of row {row}"


@dataclass(frozen=True, slots=True)
class Columns(Format):
    """A format that writes columns other than those of ENVELOPE, into files of the format ``inner``.

    ``decode`` returns these columns as one column of structs. It returns None if their types are known only at the end
    of a file.
    """

    inner: Format
    name: ClassVar[str] = "columns"

    @property
    def ending(self) -> str:
        """The suffix of the inner format."""
        return self.inner.ending

    @property
    def writes_forward(self) -> bool:
        """True if the inner format's writer only appends to the file."""
        return self.inner.writes_forward

    def faults(self, records: pa.RecordBatch, column: pa.Array | None = None) -> dict[int, str]:
        """Return the rows whose timestamp, or a time in the decoded ``column``, is not a date, if the inner format
        writes rows of Python objects."""
        if self.inner.name not in ("avro", "json"):
            return {}
        return find_undatable(records) | ({} if column is None else find_undatable_values(column))


@dataclass(frozen=True, slots=True)
class OfOneSchema(Columns):
    """Columns of values that one schema per topic describes. The settings name the schemas."""

    schemas: Schemas
    kind: str
    taken: Taken = ()
    value_type: ValueType | None = None
    rest: UnmappedFields | None = None

    def for_window(self, topic: str) -> OfOneSchema:
        """Return the format with the topic's schema."""
        match self.kind:
            case "json":
                schema = self.schemas.ddl_of(topic)
                _check_names(schema, topic, self.taken)
                # A value with a field of a wrong type is a bad message. So ``null_whole`` makes the whole value null,
                # not only the field.
                value_type: ValueType = Json(schema, on_invalid="null", null_whole=True)
                return replace(self, value_type=value_type, rest=UnmappedFields(schema))
            case "protobuf":
                value_type = replace(self.schemas.protobuf_of(topic), on_invalid="null")
            case _:
                data = self.schemas.avro_of(topic)
                assert data.schema is not None
                value_type = Avro(data.schema, data.lookup, on_invalid="null")
        _check_names(_fields_of(value_type.arrow_type), topic, self.taken)
        return replace(self, value_type=value_type)

    def decode(self, records: pa.RecordBatch) -> tuple[pa.Array | None, dict[int, str]]:
        """Decode all values by the topic's schema."""
        assert self.value_type is not None
        values = records.column("value")
        column = self.value_type.convert(values, _place)
        faults = self.faults(records, column) | dict.fromkeys(
            _find_lost(values, column), f"its value does not match the topic's {_NAMES[self.kind]} schema"
        )
        if self.rest is None:
            return column, faults
        rest: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            text = None
            if value is not None and row not in faults:
                try:
                    text = self.rest.of(value.decode())
                except ValueError:
                    faults[row] = "its value is not a JSON object, or has a field twice"
            rest.append(text)
        kind = pa.struct([*_fields_of(column.type), pa.field(REST, pa.string())])
        assert isinstance(column, pa.StructArray)
        arrays = [*column.flatten(), pa.array(rest, pa.string())]
        return pa.StructArray.from_arrays(arrays, fields=list(kind)), faults

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  no sidecar
        """Return a writer that does not hold rows back, because their schema is known."""
        assert self.value_type is not None
        rest = [pa.field(REST, pa.string())] if self.rest is not None else []
        return ColumnsFile(self.inner, file, [*_fields_of(self.value_type.arrow_type), *rest])


_NAMES: Final = {"json": "JSON", "protobuf": "Protocol Buffers", "avro": "Avro"}


def _find_lost(values: pa.Array, column: pa.Array) -> list[int]:
    """Return the indices of rows whose value is not null but could not be decoded."""
    rows = pc.indices_nonzero(pc.and_(column.is_null(), values.is_valid()))
    return rows.to_pylist()


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    if not pa.types.is_struct(kind):
        raise ConfigError("the schema is not a record, so it has no columns")
    return [kind.field(number) for number in range(kind.num_fields)]


def _check_names(fields: Iterable[pa.Field], topic: str, taken: Taken) -> None:
    directories = dict(taken)
    for name in (one.name for one in fields):
        if name in (KAFKA, REST):
            raise ConfigError(f"the schema of {topic} has a column {quote(name)}, a name that pipelines use themselves")
        if (setting := directories.get(name.lower())) is not None:
            raise ConfigError(
                f"the schema of {topic} has a column {quote(name)}, and a directory level has the same name: "
                f"set {setting} to another name"
            )


class ColumnsFile(FileWriter):
    """Writer of files with decoded columns and the struct column ``kafka``."""

    def __init__(self, inner: Format, file: BinaryIO, fields: Iterable[pa.Field]) -> None:
        """``fields`` are the decoded columns."""
        self._schema = pa.schema([*fields, KAFKA_FIELD])
        self._inner = inner.open_columns(file, self._schema)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows. The size of keys and values decides where row groups end."""
        beside = pa.StructArray.from_arrays([rows.column(name) for name in _BESIDE], fields=_BESIDE_FIELDS)
        arrays = [*cast("pa.StructArray", rows.column(DECODED)).flatten(), beside]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        try:
            if isinstance(self._inner, GroupedFile):
                self._inner.append(batch, rows)
            else:
                self._inner.write(batch)
        except NotImplementedError as error:
            raise ConfigError(f"this file format cannot hold a column of the schema: {error}") from None

    def close(self) -> None:
        """Write the end of the file."""
        self._inner.close()


@dataclass(frozen=True, slots=True)
class OfRegistry(Columns):
    """Columns of Avro values with schemas from a registry. A file has the columns of all its records' schemas."""

    lookup: SchemaLookup
    taken: Taken = ()
    local_path: str | None = None
    seen: _Seen | None = field(default=None, compare=False)
    """Schemas found so far in an offset window, merged in the order of its records."""

    def for_window(self, topic: str) -> OfRegistry:
        """Return a format without any schemas, so that files depend only on the current offset window, not on earlier
        windows.
        """
        return replace(self, seen=_Seen(self.lookup, topic, self.taken))

    def decode(self, records: pa.RecordBatch) -> tuple[pa.Array | None, dict[int, str]]:
        """Return None as the column, because the columns are known only at the end of a file. Also return the faults of
        values that do not match their schema.
        """
        assert self.seen is not None
        values = records.column("value")
        faults = self.faults(records)
        rows_of: dict[int, list[int]] = {}
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            if not is_framed(value):
                faults[row] = "its value does not begin with a schema id of the registry"
            elif (reason := self.seen.reason_against(number := schema_id(value))) is not None:
                faults[row] = reason
            else:
                rows_of.setdefault(number, []).append(row)
        for number, rows in rows_of.items():
            taken = values.take(pa.array(rows, pa.int64()))
            lost = _find_lost(taken, self.seen.readers[number].convert(taken, _place))
            faults |= dict.fromkeys((rows[one] for one in lost), "its value does not match its Avro schema")
        return None, dict(sorted(faults.items()))

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  no sidecar
        """Return a writer that holds all rows until the file ends."""
        return _UnitedFile(file, self.inner, self.lookup, self.local_path)


class _Seen:
    """The schemas found so far in an offset window, in the order of its records."""

    def __init__(self, lookup: SchemaLookup, topic: str, taken: Taken) -> None:
        self._lookup, self._topic, self._taken = lookup, topic, taken
        self.reason_against: Callable[[int], str | None] = functools.cache(self._judge)
        """Function that returns the reason why values of a schema are bad, or None if they are good."""
        self.readers: dict[int, Avro] = {}
        """Decoders of the good schemas."""
        self._united: AvroType | None = None

    def _judge(self, number: int) -> str | None:
        try:
            schema = self._lookup(number)
            parsed = parse_schema(schema)
            _check_names(_fields_of(arrow_type_of(parsed)), self._topic, self._taken)
            self.readers[number] = Avro(schema, self._lookup, on_invalid="null")
            whole = parsed if self._united is None else parse_schema(unite_schemas(self._united, parsed))
            arrow_type_of(whole)
        except (SchemaNotFoundError, LookupError):
            return "the registry does not have its schema"
        except ConfigError as error:
            return f"its schema {number} cannot be used: {error}"
        except CannotUniteError as error:
            return f"its schema {number} cannot be merged with earlier schemas: {error}"
        self._united = whole
        return None


_NOTHING: Final = {"type": "record", "name": "Nothing", "fields": list[object]()}


class _UnitedFile(FileWriter):
    """Writer that collects the rows of a file in a temporary file until all schemas are known."""

    def __init__(self, file: BinaryIO, inner: Format, lookup: SchemaLookup, local_path: str | None) -> None:
        self._file, self._inner, self._lookup = file, inner, lookup
        self._numbers: dict[int, None] = {}
        self._aside = tempfile.TemporaryFile(dir=local_path)  # noqa: SIM115  ``close`` and ``abandon`` close it
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._rows = pa.ipc.new_stream(self._aside, ENVELOPE, options=options)

    def write(self, rows: pa.RecordBatch) -> None:
        """Store rows in the temporary file, and note their schemas."""
        for value in rows.column("value").to_pylist():
            if value is not None:
                self._numbers[schema_id(value)] = None
        self._rows.write_batch(rows)

    def close(self) -> None:
        """Decode all values by the union of their schemas, and write the rows."""
        self._rows.close()
        try:
            self._write_out()
        finally:
            self._aside.close()

    def abandon(self) -> None:
        """Discard the collected rows without decoding them, because decoding may need a schema registry that is
        unreachable."""
        self._rows.close()
        self._aside.close()

    def _write_out(self) -> None:
        # If all values are null, no schema is known, so write only the column ``kafka``.
        avro = Avro(self._schema(list(self._numbers)) if self._numbers else _NOTHING, self._lookup)
        writer = ColumnsFile(self._inner, self._file, _fields_of(avro.arrow_type))
        self._aside.seek(0)
        for batch in pa.ipc.open_stream(self._aside):
            column = avro.convert(batch.column("value"), _place)
            writer.write(batch.append_column(DECODED, column))
        writer.close()

    def _schema(self, numbers: Sequence[int]) -> AvroType:
        parsed = [parse_schema(self._lookup(number)) for number in numbers]
        whole = parsed[0]
        for other in parsed[1:]:
            whole = parse_schema(unite_schemas(whole, other))
        return whole


NEEDS_SPARK: Final = (
    "frame needs Spark: run the pipeline without --once, or by tieredstore.spark.start_pipelines; backfill, redrive "
    "and --take-over do not support frame"
)


def frame_function(name: str) -> Callable[[Any], Any]:
    """Return the function that ``frame=module:function`` names; raise ConfigError if it does not exist."""
    function = import_named("frame", name, "which cannot be imported as module:function")
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"frame is {name!r:.120}, which is not a function")
    return cast("Callable[[Any], Any]", function)


def as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Cast the columns of ENVELOPE in rows from Spark to their types in ENVELOPE; keep other columns. Raise
    InvalidValueError if ``check_columns`` refuses the rows.
    """
    check_columns(rows.schema)
    kept = [rows.column(field.name).cast(field.type) for field in ENVELOPE]
    own = [field for field in rows.schema if field.name not in ENVELOPE.names]
    arrays = [*kept, *(rows.column(field.name) for field in own)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*ENVELOPE, *own]))


def check_columns(schema: pa.Schema) -> None:
    """Raise InvalidValueError if a column of ENVELOPE is missing, a column occurs twice, or a column is named
    ``kafka``. Raise it also if ``topic``, ``partition`` or ``offset`` has another type than in ENVELOPE.
    """
    absent = next((name for name in ENVELOPE.names if name not in schema.names), None)
    if absent is not None:
        raise InvalidValueError(f"the frame's rows have no column {absent}: keep all of {', '.join(ENVELOPE.names)}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice or KAFKA in schema.names:
        fault = f"column {twice[0]} twice" if twice else f"column {KAFKA}, a name that pipelines use themselves"
        raise InvalidValueError(f"the frame's rows have a {fault}")
    for name in ("topic", "partition", "offset"):
        if schema.field(name).type != ENVELOPE.field(name).type:
            raise InvalidValueError(f"the frame function changed the type of the column {name}: leave it unchanged")


def of_rows(inner: Format, schema: pa.Schema) -> Format:
    """Return the format for rows from a user's ``frame`` function. If the function added no columns, return
    ``inner``."""
    own = [field for field in schema if field.name not in ENVELOPE.names]
    return FrameColumns(inner, pa.schema(own)) if own else inner


@dataclass(frozen=True, slots=True)
class FrameColumns(Columns):
    """A format whose files have the columns that a user's ``frame`` function added, and the struct ``kafka``."""

    own: pa.Schema
    name: ClassVar[str] = "frame"

    def decode(self, records: pa.RecordBatch) -> tuple[pa.Array | None, dict[int, str]]:
        """Return the columns that the ``frame`` function added, as one column of structs."""
        fields = list(self.own)
        arrays = [records.column(field.name) for field in fields]
        column = pa.StructArray.from_arrays(arrays, fields=fields)
        return column, self.faults(records, column)

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  no sidecar
        """Return a writer of the added columns and the struct ``kafka``."""
        return ColumnsFile(self.inner, file, self.own)
