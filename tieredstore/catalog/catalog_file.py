"""The catalog file: a cache of the facts in manifests, so that the next run reads only new manifests.

The file is an Arrow IPC stream of uncompressed record batches, sorted by path. The schema's metadata has the version of
this layout, and the store and key prefix of the rows. After the end of the stream, 32 bytes follow: the SHA-256 of all
bytes before them. Readers of Arrow streams ignore these bytes.

If any check fails, the file is ignored, because everything in it can be read from the store again. A file that a later
release wrote is neither used nor replaced.

pyarrow is imported on first use.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.catalog.lineage import check_segment
from tieredstore.errors import CorruptDataError, NewerVersionError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.installation import Extra
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tieredstore.versions import CATALOG

if TYPE_CHECKING:
    import pyarrow as pa

_logger: Final = logging.getLogger(__name__)

_KEY: Final = "!tieredstore/catalog.arrows"
_MAX_SIZE: Final = 2**30  # enough for over four million segments; a larger object is not fetched
_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """The object that contains a catalog's rows. The object may be in the same store, or in another one such as a local
    folder.

    The catalog file is only a cache. A row counts only if the listing shows the segment's manifest with the same etag
    (or size and time). A file that is damaged, of another version, or of another store is rebuilt. Several processes
    may share one file.
    """

    store: ObjectStore
    key: str

    @classmethod
    def beside(cls, store: ObjectStore, prefix: str) -> CatalogFile:
        """Return the catalog file at its usual key in the store itself. The key contains ``!``, so no topic's listing
        includes it.
        """
        return cls(store, prefix + _KEY)

    def load(self, origin: Origin) -> LoadedRows:
        """Load the rows of this origin, if any. The call takes two requests, or one if there is no file."""
        try:
            # Get the etag first, because if the file is then replaced, the conditional save fails.
            info = self.store.head(self.key)
            raw = self.store.get(self.key) if info.size <= _MAX_SIZE else b""
        except ObjectNotFoundError:
            return LoadedRows(StoredRows(), None)
        try:
            rows = decode_rows(raw, origin, _name(self.key))
        except NewerVersionError as error:
            _logger.warning("%s; this release reads without the catalog file", error)
            return LoadedRows(StoredRows(), info.etag, is_newer=True)
        if rows is None:
            _logger.warning(
                "the catalog file %s is damaged, or not of this version or store: it is re-created", _name(self.key)
            )
        return LoadedRows(rows or StoredRows(), info.etag)

    def save(self, loaded: LoadedRows, origin: Origin, rows: Iterable[SegmentRow], gone: set[str]) -> bool:
        """Merge ``rows`` into the file, and remove the paths in ``gone``. Return True on success.

        The file is replaced only if it is still the loaded version. If another process replaced it first, load that
        file and merge again. Give up after several attempts, because the rows can be read from the store again.
        """
        fresh = list(rows)
        for _ in range(_ATTEMPTS):
            if loaded.is_newer:
                return False
            body = loaded.rows.merge(fresh, gone, origin)
            try:
                if loaded.etag is None:
                    self.store.put(self.key, body, if_absent=True)
                else:
                    self.store.replace(self.key, body, loaded.etag)
            # Another process has saved the file first. Merge our rows into that file, and retry.
            except PreconditionFailedError:
                loaded = self.load(origin)
            else:
                return True
        _logger.warning("the catalog file %s was replaced repeatedly: it is not updated", _name(self.key))
        return False


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The rows of a catalog file, and its etag (None without a file). If a later release wrote the file, there are no
    rows.
    """

    rows: StoredRows
    etag: str | None
    is_newer: bool = False


def _name(key: str) -> str:
    """Return the key as log messages show it: without its prefix, which may be confidential."""
    return key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Version of a manifest: its etag, or its size and time if listings have no etags."""

    size: int
    etag: str | None
    modified_ms: int | None

    @classmethod
    def of(cls, info: ObjectInfo) -> Stamp:
        """Return the version that a listing shows."""
        return cls(info.size, info.etag, info.modified_ms)

    def matches(self, listed: Stamp) -> bool:
        """Return True if ``listed`` is certainly this version. If etag and time are both missing, return False."""
        if self.etag is not None and listed.etag is not None:
            return self.etag == listed.etag and self.size == listed.size
        return self.modified_ms is not None and (self.modified_ms, self.size) == (listed.modified_ms, listed.size)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One valid segment.

    ``path`` is the main path of the segment's objects, as listed. ``history`` is the segment's leader-epoch index, read
    only for the ruling segment of a partition (see ``lineage``). ``is_proven`` is True if end offset and leader epochs
    were compared with the segment's contents.
    """

    path: str
    stamp: Stamp
    metadata: RemoteLogSegmentMetadata
    history: LeaderEpochs | None = None
    is_proven: bool = False


_VERSION_NAME: Final = b"tieredstore.catalog.version"
_STORE_NAME: Final = b"tieredstore.catalog.store"
_PREFIX_NAME: Final = b"tieredstore.catalog.prefix"
_DIGEST_SIZE: Final = 32
_BATCH_ROWS: Final = 4096

_Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of rows: the store's identity and the key prefix."""

    store: str
    prefix: str


class StoredRows:
    """Rows of a catalog file, sorted by path, decoded batch by batch on access."""

    def __init__(self, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def paths(self) -> Iterator[str]:
        """Yield the main paths of all rows."""
        for batch in self._batches:
            yield from batch.column("path").to_pylist()

    def cursor(self) -> RowCursor:
        """Return a cursor, which finds rows in ascending order of paths."""
        return RowCursor(self._batches)

    def merge(self, rows: Iterable[SegmentRow], gone: set[str], origin: Origin) -> bytes:
        """Return the bytes of a new catalog file.

        The new file has the rows of this file, updated by ``rows``, without the paths in ``gone``."""
        pa, pc = _arrow(), importlib.import_module("pyarrow.compute")
        from tieredstore.kafka.arrow_values import array_of  # noqa: PLC0415  needs pyarrow

        columns = _columns(rows)
        new = pa.Table.from_arrays([array_of(columns[field.name], field.type) for field in _schema()], schema=_schema())
        old = pa.Table.from_batches([_bare(batch) for batch in self._batches], schema=_schema())
        replaced = pa.concat_arrays([*new.column("path").chunks, array_of(sorted(gone), pa.string())])
        kept = old.filter(pc.invert(pc.is_in(old.column("path"), value_set=replaced)))
        return _encode(pa.concat_tables([kept, new]).sort_by("path"), origin)


class RowCursor:
    """Cursor that finds rows by ascending paths, in one pass. Not thread-safe."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rows: _Values = {"path": []}
        self._at = 0

    def find(self, path: str, segment_id: RemoteLogSegmentId, start_offset: int) -> SegmentRow | None:
        """Return the row of a segment; None if the file has no such row, or if the row contradicts itself."""
        while not self._rows["path"] or self._rows["path"][-1] < path:
            batch = next(self._batches, None)
            if batch is None:
                return None
            # Skip batches of other topics without decoding them.
            if batch.num_rows and batch.column("path")[-1].as_py() >= path:
                self._rows, self._at = batch.to_pydict(), 0
        paths = self._rows["path"]
        while paths[self._at] < path:
            self._at += 1
        return self._row(segment_id, start_offset) if paths[self._at] == path else None

    def _row(self, segment_id: RemoteLogSegmentId, start_offset: int) -> SegmentRow | None:
        values = {name: column[self._at] for name, column in self._rows.items()}
        metadata = RemoteLogSegmentMetadata(
            segment_id,
            start_offset,
            values["end_offset"],
            values["segment_size"],
            values["max_timestamp_ms"],
            values["broker_id"],
            values["event_timestamp_ms"],
            _pairs(values["leader_epochs"]) or (),
            values["txn_index_empty"],
        )
        history = _pairs(values["history"])
        try:
            check_segment(metadata)
        except CorruptDataError:
            return None
        if metadata.segment_size_in_bytes < 0 or not _ascends(history or ()):
            return None
        stamp = Stamp(values["manifest_size"], values["manifest_etag"], values["manifest_modified_ms"])
        return SegmentRow(values["path"], stamp, metadata, history, values["proven"])


def decode_rows(raw: bytes, origin: Origin, name: str = "it") -> StoredRows | None:
    """Decode the rows of a catalog file; None if it is damaged or of another origin.

    Raise NewerVersionError for the file of a later release.
    """
    pa = _arrow()
    with memoryview(raw) as view, view[:-_DIGEST_SIZE] as content:
        if hashlib.sha256(content).digest() != raw[-_DIGEST_SIZE:]:
            return None
    try:
        with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
            CATALOG.refuse_newer(_version_of(reader.schema), name)
            if reader.schema.metadata != _origin_fields(origin) or not reader.schema.equals(_schema()):
                return None
            batches = [batch for batch in reader if _is_sound(batch)]
    except (pa.ArrowException, OSError, MemoryError):
        return None
    ends = [batch.column("path")[at].as_py() for batch in batches if batch.num_rows for at in (0, -1)]
    return StoredRows(batches) if ends == sorted(ends) else None


CATALOG_HEAD_BYTES: Final = 1 << 16
"""The number of bytes at the start of a catalog file that are enough to find its version."""


def catalog_version(head: bytes) -> int | None:
    """Return the version of the catalog file that begins with these bytes; None if it is damaged."""
    pa = _arrow()
    try:
        return _version_of(pa.ipc.read_schema(pa.py_buffer(head)))
    except (pa.ArrowException, OSError, MemoryError):
        return None


def _version_of(schema: pa.Schema) -> int:
    fields: dict[bytes, bytes] = schema.metadata or {}
    text = fields.get(_VERSION_NAME, b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _encode(table: pa.Table, origin: Origin) -> bytes:
    pa = _arrow()
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(_origin_fields(origin))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)
    content = sink.getvalue()
    return b"".join((content, hashlib.sha256(content).digest()))


def _is_sound(batch: pa.RecordBatch) -> bool:
    """Return True for a valid batch. Raise ArrowInvalid for contradictory buffers, or nulls in a column that allows
    none."""
    batch.validate(full=True)
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if column.null_count and not field.nullable:
            raise _arrow().ArrowInvalid(f"{field.name} is null")
    return True


def _columns(rows: Iterable[SegmentRow]) -> _Values:
    columns: _Values = {name: [] for name in _schema().names}
    for row in rows:
        metadata, stamp = row.metadata, row.stamp
        values: Mapping[str, object] = {
            "path": row.path,
            "manifest_size": stamp.size,
            "manifest_etag": stamp.etag,
            "manifest_modified_ms": stamp.modified_ms,
            "end_offset": metadata.end_offset,
            "segment_size": metadata.segment_size_in_bytes,
            "max_timestamp_ms": metadata.max_timestamp_ms,
            "broker_id": metadata.broker_id,
            "event_timestamp_ms": metadata.event_timestamp_ms,
            "leader_epochs": metadata.segment_leader_epochs,
            "txn_index_empty": metadata.txn_idx_empty,
            "history": row.history,
            "proven": row.is_proven,
        }
        for name, value in values.items():
            columns[name].append(value)
    return columns


def _pairs(epochs: list[tuple[int, int]] | None) -> LeaderEpochs | None:
    return None if epochs is None else tuple(epochs)


def _ascends(epochs: LeaderEpochs) -> bool:
    return all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(epochs))


def _bare(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.replace_schema_metadata(None)


def _origin_fields(origin: Origin) -> dict[bytes, bytes]:
    return {
        _VERSION_NAME: str(CATALOG.version).encode(),
        _STORE_NAME: origin.store.encode(),
        _PREFIX_NAME: origin.prefix.encode(),
    }


@cache
def _schema() -> Any:
    pa = _arrow()
    epochs = pa.map_(pa.int32(), pa.int64())
    return pa.schema(
        [
            pa.field("path", pa.string(), nullable=False),
            pa.field("manifest_size", pa.int64(), nullable=False),
            pa.field("manifest_etag", pa.string()),
            pa.field("manifest_modified_ms", pa.int64()),
            pa.field("end_offset", pa.int64(), nullable=False),
            pa.field("segment_size", pa.int64(), nullable=False),
            pa.field("max_timestamp_ms", pa.int64(), nullable=False),
            pa.field("broker_id", pa.int32(), nullable=False),
            pa.field("event_timestamp_ms", pa.int64(), nullable=False),
            pa.field("leader_epochs", epochs, nullable=False),
            pa.field("txn_index_empty", pa.bool_()),
            pa.field("history", epochs),
            pa.field("proven", pa.bool_(), nullable=False),
        ]
    )


def _arrow() -> Any:
    with Extra("a catalog file", "arrow"):
        return importlib.import_module("pyarrow")
