"""Decoding of batches to Arrow: whole objects or single Messages, with selected columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa

from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.batches import Buffer, CompressionType
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.kafka.records.codecs import Decompressor
from tieredstore.kafka.records.columns import array_over, buffer_of, header_keys
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format._reading import RecordReader
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.messages import Compression, MessageHeader, MessagePlace, check_crc, parse_message_header

if TYPE_CHECKING:
    from tieredstore.pubsub.format._reading import Taken

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: Final = (  # in the order of the bits of ``wanted`` in ``_reading``
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(_HEADER)),
    pa.field("message_id", pa.binary()),
    pa.field("timestamp", pa.int64()),
    pa.field("message", pa.int32()),
    pa.field("record", pa.int32()),
)

COLUMNS: Final[tuple[str, ...]] = tuple(field.name for field in _FIELDS)
"""The names of all columns of a record. ``message`` and ``record`` are its place in the batch. An empty ``key``,
``headers`` or ``message_id`` becomes null, since the format does not distinguish empty from null. ``timestamp`` is null
if absent."""


def _build_rows(schema: pa.Schema, taken: Taken) -> pa.RecordBatch:
    """Return a record batch that uses the decoder's slabs of memory without copying. A slab is recycled only after the
    batch is freed.
    """
    rows, (key_nulls, id_nulls, timestamp_nulls, headers_nulls), headers, names_ascii, slabs = taken
    buffers = [buffer_of(slab) for slab in slabs]
    arrays: list[pa.Array] = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        match name:
            case "key":
                arrays.append(array_over(kind, rows, buffers[0:3], key_nulls))
            case "value":
                arrays.append(array_over(kind, rows, [None, *buffers[3:5]], 0))
            case "message_id":
                arrays.append(array_over(kind, rows, buffers[5:8], id_nulls))
            case "timestamp":
                arrays.append(array_over(kind, rows, buffers[8:10], timestamp_nulls))
            case "headers":
                names = _names(headers, buffers[12:14], are_ascii=names_ascii)
                values = array_over(pa.binary(), headers, [None, *buffers[14:16]], 0)
                items = pa.Array.from_buffers(_HEADER, headers, [None], 0, children=[names, values])
                valid = buffers[10] if headers_nulls else None
                arrays.append(pa.Array.from_buffers(kind, rows, [valid, buffers[11]], headers_nulls, children=[items]))
            case _:
                arrays.append(array_over(kind, rows, [None, buffers[16 if name == "message" else 17]], 0))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names(count: int, buffers: list[pa.Buffer], *, are_ascii: bool) -> pa.Array:
    try:
        return header_keys(count, buffers, ascii_keys=are_ascii)  # MemQ's Java client replaces malformed bytes too
    except BatchCorruptError:
        raise MessageCorruptError("the headers of a batch have more than 2 GiB of names that are not UTF-8") from None


OnCorrupt: TypeAlias = Literal["fail", "skip"]

_MOST_ROWS: Final = 131_072
_LENT_SHARE: Final = 8
"""A decompressed body of at least ``target_bytes`` divided by this number becomes a separate record batch, without a
copy. Most bodies are that large.
"""
_CODECS: Final = {Compression.GZIP: CompressionType.GZIP, Compression.ZSTD: CompressionType.ZSTD}
# Faults of a damaged record. The compiled reader returns a fault's number in this list, counted from 1.
_FAULTS: Final = (
    "record {record} has a field that ends after the body",
    "record {record} has a field of a negative length",
    "record {record} has a length that does not agree with its message id and headers",
    "record {record} has headers that do not fill their length",
    "the body ends after {record} of {count} records",
    "bytes are left after the last of {count} records",
)


class BatchDecoder:
    """Decodes batches into Arrow record batches with ``columns``, in their order.

    With ``on_corrupt="fail"`` a damaged Message raises MessageCorruptError after the records before it. With ``skip``
    only that Message is left out and reported in :attr:`skipped`. A damaged index always raises the error, because
    without it the Messages cannot be found.

    A record batch holds about ``target_bytes`` of records, and at most 131,072 records. ``max_expanded_bytes`` limits
    the size of a Message's body after decompression, because the format does not state this size. A decoder takes at
    most a small multiple of the two limits in memory.

    A decoder is for one thread. Several decoders run in parallel, because decoding releases the interpreter's lock.
    """

    def __init__(
        self,
        columns: Sequence[str] = COLUMNS,
        *,
        on_corrupt: OnCorrupt = "fail",
        max_expanded_bytes: int = 256 * 1024 * 1024,
        target_bytes: int = 4 * 1024 * 1024,
        pool: SlabPool | None = None,
    ) -> None:
        """``pool`` is the memory for record batches; several decoders can share a pool."""
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown or not columns or len(set(columns)) < len(columns):
            raise ConfigError(f"invalid columns {list(columns)}: choose from {', '.join(COLUMNS)}, each once")
        self.schema: pa.Schema = pa.schema([_FIELDS[COLUMNS.index(name)] for name in columns])
        self._wanted = sum(1 << COLUMNS.index(name) for name in columns)
        self._on_corrupt = on_corrupt
        self._max_expanded_bytes = max_expanded_bytes
        self._target_bytes = target_bytes
        self._pool = pool or SlabPool()
        self._decompressor = Decompressor(self._pool, max_expanded_bytes, limit="max.expanded.bytes")
        self._skipped: list[str] = []

    @property
    def skipped(self) -> Sequence[str]:
        """The damaged Messages skipped by the last decoding, one sentence each."""
        return self._skipped

    def decode(
        self, batch: Buffer, name: str = "the batch", checksums: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a whole object; errors call the object ``name``.

        ``checksums`` are the CRC-32 of each Message's body, if they were computed before by
        :func:`~tieredstore.pubsub.format.batches.split_checksums`."""
        return self.decode_messages(BatchIndex(batch, name, len(batch)).messages(batch), checksums)

    def decode_message(self, message: Buffer, place: MessagePlace) -> Iterator[pa.RecordBatch]:
        """Yield the records of one Message at ``place``. The Message begins with its header."""
        return self.decode_messages([(place, memoryview(message))])

    def decode_messages(
        self, messages: Iterable[tuple[MessagePlace, memoryview]], checksums: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of these Messages of an object. ``checksums`` holds a checksum for every Message of the
        object."""
        self._skipped = []
        reader = RecordReader(self._wanted)
        for place, message in messages:
            try:
                is_lent = self._add(reader, message, place, checksums[place.number] if checksums else None)
            except MessageCorruptError as error:
                if self._on_corrupt == "fail":
                    yield from self._take(reader)
                    raise
                self._skipped.append(str(error))
                continue
            if is_lent or reader.pending_bytes >= self._target_bytes:
                yield from self._take(reader)
        yield from self._take(reader)

    def _add(self, reader: RecordReader, message: memoryview, place: MessagePlace, crc: int | None) -> bool:
        """Check a Message and add it to the reader. Return True if the Message's records must be taken from the reader
        before the next Message is added."""
        header = parse_message_header(message, place)
        stored = message[header.size :]
        check_crc(header, stored, place, crc)
        body = self._expand(header, stored, place)
        # Copy a small body, because the next Message is decompressed into the same memory.
        is_expanded = header.compression is not Compression.NONE
        is_lent = is_expanded and len(body) >= self._target_bytes // _LENT_SHARE
        fault = reader.add(bytes(body) if is_expanded and not is_lent else body, header.record_count, place.number)
        if fault is not None:
            kind, byte, record = fault
            where = "" if header.compression is Compression.NONE else f", byte {byte} when expanded"
            why = _FAULTS[kind - 1].format(record=record, count=header.record_count)
            raise place.corrupt(header.size + (0 if where else byte), why + where)
        return is_lent

    def _expand(self, header: MessageHeader, stored: memoryview, place: MessagePlace) -> Buffer:
        if header.compression is Compression.NONE:
            if len(stored) > self._max_expanded_bytes:
                raise place.corrupt(header.size, f"is larger than max.expanded.bytes {self._max_expanded_bytes} allows")
            return stored
        try:
            return self._decompressor.decompress(_CODECS[header.compression], 2, stored)
        except BatchCorruptError as error:
            raise place.corrupt(header.size, str(error)) from error

    def _take(self, reader: RecordReader) -> Iterator[pa.RecordBatch]:
        # Allow up to twice the target size, because splitting slightly more than the target would leave a tiny record
        # batch.
        while (taken := reader.take(self._pool, _MOST_ROWS, 2 * self._target_bytes)) is not None:
            yield _build_rows(self.schema, taken)
