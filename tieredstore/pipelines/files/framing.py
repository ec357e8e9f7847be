"""What a user's own function makes of a pipeline's records as a DataFrame: its name, and the files of its columns."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa

from tieredstore.errors import ConfigError, InvalidValue
from tieredstore.pipelines.files.columns import KAFKA_FIELD, ColumnsFile
from tieredstore.pipelines.writers import ENVELOPE, KAFKA, FileWriter, Format

NEEDS_SPARK: Final = (
    "frame passes records through Spark, which is not here: run the pipeline without --once, or by "
    "tieredstore.spark.start_pipelines; backfill, redrive and --take-over do not know it"
)


def frame_function(name: str) -> Callable[[Any], Any]:
    """The function that ``frame=module:function`` names; ConfigError for what is none."""
    module, _, attribute = name.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"frame is {name!r:.120}, which names no module:function: {error}") from error
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"frame is {name!r:.120}, which is no function")
    return cast("Callable[[Any], Any]", function)


def as_records(rows: Any) -> Any:
    """Rows of Spark's with Kafka's columns in the types of records; InvalidValue for what is none."""
    check_columns(rows.schema)
    kept = [rows.column(field.name).cast(field.type) for field in ENVELOPE]
    own = [field for field in rows.schema if field.name not in ENVELOPE.names]
    arrays = [*kept, *(rows.column(field.name) for field in own)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*ENVELOPE, *own]))


def check_columns(schema: Any) -> None:
    """InvalidValue for rows that lack a column of Kafka's, or have one of another type or twice."""
    for field in ENVELOPE:
        if field.name not in schema.names:
            raise InvalidValue(
                f"the rows of frame have no column {field.name}: keep all of {', '.join(ENVELOPE.names)}"
            )
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice or KAFKA in schema.names:
        raise InvalidValue(f"the rows of frame have a column {twice[0] if twice else KAFKA} more than they may")
    for name in ("topic", "partition", "offset"):
        if schema.field(name).type != ENVELOPE.field(name).type:
            raise InvalidValue(f"the column {name} of the rows of frame is of another type than it was")


def of_rows(inner: Format, schema: Any) -> Format:
    """The format of rows with this schema: that of the settings where they are records as they came."""
    own = [field for field in schema if field.name not in ENVELOPE.names]
    return FrameColumns(inner, pa.schema(own)) if own else inner


@dataclass(frozen=True, slots=True)
class FrameColumns(Format):
    """Files of another format with the columns that a frame has beside Kafka's."""

    inner: Format
    own: pa.Schema
    name: ClassVar[str] = "frame"

    @property
    def ending(self) -> str:
        """That of the files themselves."""
        return self.inner.ending

    @property
    def writes_forward(self) -> bool:
        """As those of the files themselves."""
        return self.inner.writes_forward

    def decoded(self, records: pa.RecordBatch) -> tuple[Any, dict[int, str]]:
        """The columns, as one of structs."""
        untyped: Any = records
        fields: list[Any] = list(self.own)
        arrays = [untyped.column(field.name) for field in fields]
        return pa.StructArray.from_arrays(arrays, fields=fields), {}

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  it needs none
        """A writer of the columns beside the struct ``kafka``."""
        schema = pa.schema([*self.own, KAFKA_FIELD])
        return ColumnsFile(self.inner.open_columns(file, schema), schema)
