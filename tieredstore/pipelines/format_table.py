"""The table of file formats. A row has the functions that write and read the format, its codecs and columns, and
Secor's names for the format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
import zstandard

from tieredstore.config.named_class import import_class
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.pipelines.config.secor import WRITERS, delimiter_bytes
from tieredstore.pipelines.files.columns import OfOneSchema, OfRegistry
from tieredstore.pipelines.files.formats import AvroContainer, Orc, Parquet, Text
from tieredstore.pipelines.files.reading import (
    avro_records,
    orc_records,
    parquet_records,
    sequence_records,
    text_records,
)
from tieredstore.pipelines.files.sequencefile import MAGIC as SEQUENCE_FILE
from tieredstore.pipelines.files.sequencefile import SequenceFile
from tieredstore.pipelines.parser_table import partition_names
from tieredstore.pipelines.writers import ENVELOPE, Format, JsonLines

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import PipelineSettings
    from tieredstore.pipelines.filing.schemas import Schemas

SIDECARS_OF: Final = {Text.suffix, SequenceFile.suffix}
"""Suffixes of formats with a sidecar (a second file for fields that the format cannot hold)."""


@dataclass(frozen=True, slots=True)
class FormatKind:
    """A kind of file format: a row of ``FORMATS``."""

    make: Callable[[PipelineSettings], Format]
    codecs: tuple[str, ...]
    """Codecs that files of the format can have."""
    magic: bytes = b""
    """Bytes with which every file of this format begins, or empty if the format has no such bytes."""
    read: Callable[[BinaryIO, BinaryIO | None], Iterator[pa.RecordBatch]] | None = None
    """Function that reads records from a file and its sidecar. It is None for text, because ``read_output`` reads any
    file without a known ``magic`` as text.
    """
    fields: tuple[str, ...] = tuple(ENVELOPE.names)
    """Columns that readers of the files see."""
    holds_columns: bool = True
    secor: Mapping[str, str] = field(default_factory=dict[str, str])
    """Secor's factory classes for the format. Each maps to the encoding of the values that the class decodes into
    columns."""


def _sequence_files(factory: str, *, messagepack: bool = False) -> FormatKind:
    return FormatKind(
        lambda own: SequenceFile(own.codec, messagepack),
        ("none", "gzip", "zstd", "snappy", "deflate", "lz4", "bzip2"),
        SEQUENCE_FILE,
        sequence_records,
        fields=(),
        holds_columns=False,
        secor={factory: "none"},
    )


FORMATS: Final[Mapping[str, FormatKind]] = {
    "parquet": FormatKind(
        lambda own: Parquet(own.codec),
        ("none", "gzip", "zstd", "snappy"),
        b"PAR1",
        parquet_records,
        secor={"AvroParquetFile": "avro", "ProtobufParquetFile": "protobuf"},
    ),
    "orc": FormatKind(
        lambda own: Orc(own.codec),
        ("none", "gzip", "zstd", "snappy", "deflate", "lz4"),
        b"ORC",
        orc_records,
        secor={"JsonORCFile": "json"},
    ),
    "avro": FormatKind(
        lambda own: AvroContainer(own.codec),
        ("none", "gzip", "snappy", "deflate", "bzip2"),
        b"Obj\x01",
        avro_records,
        secor={"AvroFile": "avro"},
    ),
    "json": FormatKind(lambda own: JsonLines(own.codec), ("none", "gzip", "zstd")),
    "text": FormatKind(
        lambda own: Text(own.codec, delimiter_bytes(own.delimiter)),
        ("none", "gzip", "zstd"),
        fields=("value",),
        holds_columns=False,
        secor={"DelimitedTextFile": "none", "FlexibleDelimitedFile": "none"},
    ),
    "sequencefile": _sequence_files("SequenceFile"),
    "messagepack-sequencefile": _sequence_files("MessagePackSequenceFile", messagepack=True),
}

FACTORIES: Final[Mapping[str, tuple[str, str]]] = {
    f"{WRITERS}{name}ReaderWriterFactory": (short, columns)
    for short, kind in FORMATS.items()
    for name, columns in kind.secor.items()
}
"""Secor's factory classes. Each maps to tieredstore's name of the format, and to the encoding of the values that the
class decodes into columns."""


def format_of(own: PipelineSettings, schemas: Schemas | None = None) -> Format:
    """Return the format that the settings name. Without ``schemas``, the format can name files but not write them."""
    if ":" in own.format:
        words = "which is not a Format, named as module:Class"
        inner: Format = import_class("secor.file.reader.writer.factory", own.format, Format, words)(own.codec)
    else:
        inner = FORMATS[own.format].make(own)
    if own.columns == "none" or schemas is None:
        return inner
    taken = tuple(partition_names(own).items())
    if own.columns == "avro" and not schemas.avro and schemas.registry is not None:
        return OfRegistry(inner, schemas.registry, taken, own.local_path or None)
    return OfOneSchema(inner, schemas, own.columns, taken)


def read_output(
    file: BinaryIO, name: str, *, sidecar: BinaryIO | None = None, delimiter: bytes = b"\n"
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file that a pipeline wrote, in any format. Error texts contain ``name``.

    A text file without its ``sidecar`` gives only the values. Without both sidecar and delimiter, the whole file is
    read as one value. Raises CorruptDataError for a truncated file or an unknown format.
    """
    start = file.read(4)
    file.seek(0)
    known = (kind.read for kind in FORMATS.values() if kind.magic and start.startswith(kind.magic))
    read = next(known, None)
    try:
        yield from text_records(file, sidecar, delimiter) if read is None else read(file, sidecar)
    except ConfigError:
        raise
    except (pa.ArrowInvalid, OSError, EOFError, zstandard.ZstdError, StopIteration, ValueError, KeyError) as error:
        raise CorruptDataError(f"{name} is damaged, or no pipeline wrote it") from error
