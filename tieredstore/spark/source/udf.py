"""Spark functions that decode records.

The input is a column of a DataFrame with log files or record batches, or segments of a store that the rows name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from tieredstore.catalog.completion import describe_segment
from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import BatchCorruptError, ConfigError, ObjectNotFoundError, SegmentNotFoundError
from tieredstore.format.keys import ObjectKey, Suffix, main_path, object_key, parse_key
from tieredstore.kafka.records import RecordDecoder
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import (
    DEFAULT_ISOLATION,
    Isolation,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
)
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import ReadSettings
from tieredstore.spark.source.rows import COLUMNS, MappedRows, RecordFunction, RowShape, apply_function, schema_of
from tieredstore.spark.source.store_source import StoreSource, manager_of, store_source
from tieredstore.spark.source.workers import each_in_one_sentence

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.remote.stores import StoreLike

# Look ``arrow_udf`` up by name, because Spark declares no types for it.
_arrow_udf: Final[Callable[..., Callable[[Column | str], Column]]] = getattr(functions, "arrow_udf")  # noqa: B009  it has no type hints

RECORD_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("topic", "partition"))
"""The default columns of ``decode_batches``: all that a record batch contains, except headers."""

_Batches: TypeAlias = Iterator[pa.RecordBatch]


def decode_segments(
    df: DataFrame,
    source: StoreLike | StoreSource = None,
    *,
    columns: Sequence[str] = COLUMNS,
    isolation: Isolation | None = None,
    function: RecordFunction | None = None,
    schema: StructType | pa.Schema | str | None = None,
) -> DataFrame:
    """Return a row for each record of the segments in ``df``, with ``columns`` (``headers`` may be one of them).

    With ``function`` and ``schema``, return the function's results instead, as ``map_records`` does. The function runs
    in the task that decodes the records, and only its results reach the JVM.

    ``df`` has one of these:

    - a binary column ``content`` with whole logs, as from ``spark.read.format("binaryFile")``. Topic and partition come
      from a column ``path`` with a broker's paths, which end in ``<topic>-<partition>/<base offset>.log``. Without this
      column, topic and partition are null.
    - a text column ``segment`` with paths of segment objects in the store of ``source``
    - columns ``topic``, ``topic_id``, ``partition``, ``base_offset`` and ``segment_id``, which name segments in the
      store of ``source`` as ``tieredstore ls -p all --json`` does

    ``isolation`` is ``read_committed`` by default for segments of a store. A log alone does not show which of its
    transactions were aborted, so ``content`` can only be read with ``read_uncommitted``.

    Each log or segment is decoded by one task, so ``df`` needs as many partitions as there should be tasks. A task
    holds one batch of ``df`` and a few MiB. Rows are in the order of ``df``, and by offset within a segment.

    Raises ConfigError for invalid arguments. Tasks fail with BatchCorruptError, SegmentNotFoundError or another error
    that names the segment.
    """
    shape = RowShape(columns)
    mapped = _map_with(function, schema)
    result = shape.schema if mapped is None else mapped.schema
    if _has(df.schema, CONTENT, BinaryType()):
        if isolation not in (None, "read_uncommitted"):
            raise ConfigError(
                "a log alone does not show which of its transactions were aborted: read it with "
                "isolation='read_uncommitted', or name segments of a store instead"
            )
        return df.mapInArrow(_log_task(shape.columns, mapped), result)
    by_path = _has(df.schema, PATH, StringType())
    if not by_path and not set(PARTS) <= set(df.columns):
        raise ConfigError(
            f"decode_segments needs a binary column {CONTENT}, a text column {PATH}, or all the columns "
            f"{', '.join(PARTS)}; the DataFrame has {', '.join(df.columns)}"
        )
    store = store_source(source)
    store.load()  # load the settings here, so that wrong settings fail on the driver and not in a task
    reading = ReadSettings(columns=shape.decoder_columns, isolation=isolation or DEFAULT_ISOLATION)
    return df.mapInArrow(_segment_task(store, shape.columns, reading, by_path, mapped), result)


def decode_batches(
    col: Column | str, *, columns: Sequence[str] = RECORD_COLUMNS, on_corrupt: OnCorrupt = "fail"
) -> Column:
    """Return an array of the records in ``col``, a binary column of consecutive whole record batches.

    Each record is a struct of ``columns`` (``headers`` may be one of them), in the order of the log. Control records
    are left out, but not records of aborted transactions. Null stays null, and empty bytes are an empty array. The
    offsets within a value must ascend. A corrupt batch fails the task with BatchCorruptError. With
    ``on_corrupt="null"``, the row is null instead.
    """
    if on_corrupt not in ("fail", "null"):
        raise ConfigError(f"on_corrupt is {on_corrupt!r}; it must be fail or null")
    unknown = [name for name in columns if name in ("topic", "partition")]
    if unknown:
        raise ConfigError(f"record batches do not contain {' and '.join(unknown)}: correct the argument columns")
    shape = RowShape(columns)
    return _arrow_udf(_array_task(shape.columns, on_corrupt), ArrayType(shape.schema))(col)


def _map_with(function: RecordFunction | None, schema: StructType | pa.Schema | str | None) -> MappedRows | None:
    if (function is None) != (schema is None):
        raise ConfigError("function and schema belong together: give both or none")
    return None if function is None or schema is None else MappedRows(function, schema_of(schema))


def _log_task(columns: tuple[str, ...], mapped: MappedRows | None) -> Callable[[_Batches], _Batches]:
    def decode_segments(batches: _Batches) -> _Batches:
        return apply_function(rows_of_logs(batches, RowShape(columns)), mapped)

    return decode_segments


def _segment_task(
    source: StoreSource, columns: tuple[str, ...], reading: ReadSettings, by_path: bool, mapped: MappedRows | None
) -> Callable[[_Batches], _Batches]:
    def rows(batches: _Batches) -> _Batches:
        manager = manager_of(source)
        keys = segment_keys(batches, by_path, manager.layout.prefix)
        yield from StoredSegments(manager, reading).rows(keys, RowShape(columns))

    def decode_segments(batches: _Batches) -> _Batches:
        return apply_function(rows(batches), mapped)

    return decode_segments


def _array_task(columns: tuple[str, ...], on_corrupt: OnCorrupt) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    def decode_batches(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return each_in_one_sentence(BatchArrays(RowShape(columns), on_corrupt, _place).convert(arrays))

    # Set the annotations here, because Spark derives the kind of the function from them.
    decode_batches.__annotations__.update({"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]})
    return decode_batches


def _place(row: int) -> str:
    task = TaskContext.get()
    return f"value {row}" if task is None else f"value {row} of partition {task.partitionId()}"


def _has(schema: StructType, name: str, kind: object) -> bool:
    return name in schema.names and schema[name].dataType == kind


OnCorrupt: TypeAlias = Literal["fail", "null"]

_ENOUGH_BYTES: Final = 4 * 1024 * 1024
"""Number of decoded bytes after which results are passed to Spark."""


class BatchArrays:
    """Decodes Arrow arrays of record batches to arrays of lists of records. A null stays null. Not thread-safe.

    ``place`` names a row for errors.
    """

    most_bytes: ClassVar[int] = 1024 * 1024 * 1024
    """Maximum bytes of one decoded value, which Spark holds in one piece of at most 2 GiB."""

    def __init__(self, shape: RowShape, on_corrupt: OnCorrupt, place: Callable[[int], str]) -> None:
        self._shape = shape
        self._on_corrupt = on_corrupt
        self._place = place
        self._decoder = RecordDecoder(shape.decoder_columns)
        self._row = 0

    def convert(self, arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
        """Yield the decoded lists in arrays of a few MiB. An array is larger only if a single value decodes to more."""
        for array in arrays:
            decoded: list[pa.RecordBatch] = []
            counts: list[int | None] = []
            size = 0
            for value in array:
                batches = self._decode(value)
                counts.append(None if batches is None else sum(batch.num_rows for batch in batches))
                decoded += batches or ()
                size += _size(batches or ())
                if size >= _ENOUGH_BYTES:
                    yield self._lists(decoded, counts)
                    decoded, counts, size = [], [], 0
            if counts:
                yield self._lists(decoded, counts)

    def _decode(self, value: pa.Scalar) -> list[pa.RecordBatch] | None:
        row, self._row = self._row, self._row + 1
        content = value.as_buffer() if isinstance(value, pa.BinaryScalar) else None
        if content is None:
            return None
        try:
            return self._collect(row, memoryview(content))
        except BatchCorruptError as error:
            if self._on_corrupt == "null":
                return None
            raise BatchCorruptError(f"{self._place(row)}: {error}") from error

    def _collect(self, row: int, content: memoryview) -> list[pa.RecordBatch]:
        collected: list[pa.RecordBatch] = []
        left = self.most_bytes
        for batch in self._decoder.decode([content]):
            # Count the decoded bytes while decoding, because a few compressed bytes may expand to very many.
            left -= _size([batch])
            if left < 0:
                raise ConfigError(
                    f"{self._place(row)} decodes to over {self.most_bytes} bytes, too many for one value: use "
                    "decode_segments, which gives a row for each record"
                )
            collected.append(batch)
        return collected

    def _lists(self, decoded: Sequence[pa.RecordBatch], counts: Sequence[int | None]) -> pa.Array:
        joined = pa.concat_batches(decoded) if decoded else pa.RecordBatch.from_pylist([], self._decoder.schema)
        records = self._shape.convert(joined, None, None)
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + (count or 0))
        nulls = pa.array([count is None for count in counts], pa.bool_())
        structs = pa.StructArray.from_arrays(records.columns, fields=list(self._shape.arrow_schema))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs, mask=nulls)


def _size(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.get_total_buffer_size() for batch in batches)


CONTENT: Final = "content"
"""The column with a log's bytes, named as in Spark's ``binaryFile``."""

LOG_PATH: Final = "path"

_PATH_OF_BROKER: Final = re.compile(r"(?:^|/)([A-Za-z0-9._-]{1,249})-(\d{1,10})/(\d{20})\.log$", re.ASCII)
_BASE_OFFSET_SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class LogName:
    """The path of a log, and the parts of the path. The parts are None for a path that does not end in
    ``<topic>-<partition>/<base offset>.log``.
    """

    path: str | None = None
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None

    @classmethod
    def of(cls, path: str | None) -> LogName:
        """Parse the path of a broker's log file."""
        name = None if path is None else _PATH_OF_BROKER.search(path)
        if name is None or int(name[2]) > MAX_INT32:
            return cls(path)
        return cls(path, name[1], int(name[2]), int(name[3]))

    def __str__(self) -> str:
        return "a log without a path" if self.path is None else self.path


def rows_of_logs(batches: Iterable[pa.RecordBatch], shape: RowShape) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of the logs, and no rows for a null. Raise a BatchCorruptError that names the path of
    a corrupt log."""
    decoder = RecordDecoder(shape.decoder_columns)
    for batch in batches:
        for content, name in _logs(batch):
            try:
                _check_beginning(name, content)
                for records in decoder.decode([content]):
                    yield shape.convert(records, name.topic, name.partition)
            except BatchCorruptError as error:
                raise BatchCorruptError(f"{name}: {error}") from error


def _logs(batch: pa.RecordBatch) -> Iterator[tuple[memoryview, LogName]]:
    """Yield the logs of one batch without copying them."""
    contents = batch.column(CONTENT)
    paths = batch.column(LOG_PATH) if LOG_PATH in batch.schema.names else [None] * len(contents)
    for content, path in zip(contents, paths, strict=True):
        raw = content.as_buffer() if isinstance(content, pa.BinaryScalar) else None
        if raw is not None:
            yield memoryview(raw), LogName.of(None if path is None else path.as_py())


def _check_beginning(name: LogName, content: memoryview) -> None:
    """Raise BatchCorruptError if a log begins before the offset in its file's name, because then the name is wrong, and
    so is the partition."""
    if name.base_offset is None or len(content) < _BASE_OFFSET_SIZE:
        return
    first = int.from_bytes(content[:_BASE_OFFSET_SIZE], "big", signed=True)
    # Refuse a log only if it begins before the offset in its name. A compacted log may begin after that offset, because
    # compaction keeps the file's name.
    if first < name.base_offset:
        raise BatchCorruptError(
            f"its first record batch begins at offset {first}, but its name says {name.base_offset}"
        )


PATH: Final = "segment"
"""The column with the path of a segment's objects."""

PARTS: Final = ("topic", "topic_id", "partition", "base_offset", "segment_id")
"""The columns that together name a segment, as in ``tieredstore ls -p all --json``."""

_PATH_PARTS: Final = 3
_LINEAGES: Final = 16


def segment_keys(batches: Iterable[pa.RecordBatch], by_path: bool, prefix: str = "") -> Iterator[ObjectKey]:
    """Yield the keys of the segments that the rows name. Raise ConfigError for a row that names no segment. ``prefix``
    is the store's key prefix.
    """
    for batch in batches:
        if by_path:
            yield from (key_of_path(path, prefix) for path in batch.column(PATH).to_pylist())
        else:
            columns = [batch.column(name).to_pylist() for name in PARTS]
            yield from (_key_of_parts(parts) for parts in zip(*columns, strict=True))


def key_of_path(path: str | None, prefix: str = "") -> ObjectKey:
    """Parse a path ``<topic>-<topicId>/<partition>/<start offset>-<segmentId>``, with or without a suffix.

    ``path`` may also be a whole object key, which begins with the store's key prefix.
    """
    parts = (path or "").split("/")
    if len(parts) > _PATH_PARTS:
        parts = ["/".join(parts[-_PATH_PARTS:]).removeprefix(prefix.rpartition("/")[2])]
    last = "/".join(parts)
    for suffix in Suffix:
        last = last.removesuffix(f".{suffix.value}")
    key = parse_key("", object_key("", last, Suffix.MANIFEST))
    if key is None:
        raise ConfigError(
            f"{path!r} in the column {PATH} is not a segment; expected <topic>-<topicId>/<partition>/<start offset, 20 "
            "digits>-<segmentId>"
        )
    return key


def _key_of_parts(parts: Sequence[Any]) -> ObjectKey:
    named = dict(zip(PARTS, parts, strict=True))
    missing = [name for name, value in named.items() if value is None]
    if missing:
        raise ConfigError(f"a segment has no {', '.join(missing)}: {named}")
    where = TopicIdPartition(Uuid.parse(named["topic_id"]), named["topic"], int(named["partition"]))
    segment_id = RemoteLogSegmentId(where, Uuid.parse(named["segment_id"]))
    start_offset = int(named["base_offset"])
    main_path(segment_id, start_offset)  # checks the segment id: raises an error if it is invalid
    return ObjectKey(segment_id, start_offset, Suffix.MANIFEST)


class StoredSegments:
    """Reads single segments. Not thread-safe.

    With ``read_uncommitted``, reading a segment fetches only its manifest and chunks. With ``read_committed``, reading
    also lists the partition, because later segments may contain the outcome of the segment's transactions. Adjacent
    segments of a partition share a listing.
    """

    def __init__(self, source: RemoteStorageManager, settings: ReadSettings) -> None:
        self._source = source
        self._settings = settings
        self._lineage = lru_cache(_LINEAGES)(self._load_lineage)

    def rows(self, keys: Iterable[ObjectKey], shape: RowShape) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the segments, one after the other. Errors name the segment."""
        for key in keys:
            where = key.segment_id.topic_id_partition
            with self.read(key) as read:
                for records in read:
                    yield shape.convert(records, where.topic, where.partition)

    def read(self, key: ObjectKey) -> PartitionRead:
        """Read one segment. Raise SegmentNotFoundError if the store has no manifest of the segment.

        With ``read_committed``, reading ends at the first open transaction, like a Kafka consumer. Raises ConfigError
        for a segment with offsets of an abandoned leader epoch, because the outcome of its transactions is unknown.
        """
        segment = self._load(key)
        stop = segment.end_offset + 1
        spans: tuple[Span, ...] = (Span(segment, segment.start_offset, stop),)
        if self._settings.isolation == "read_committed":
            spans += self._find_later_spans(segment)
        log = Lineage(segment.topic_id_partition, (), spans)
        return PartitionRead(self._source, log, segment.start_offset, stop, self._settings)

    def _load(self, key: ObjectKey) -> RemoteLogSegmentMetadata:
        store, path = self._source.store, key.main_path
        try:
            manifest = store.head(object_key(self._source.layout.prefix, path, Suffix.MANIFEST))
        except ObjectNotFoundError:
            raise SegmentNotFoundError(f"segment {path} does not exist: the store has no manifest of it") from None
        objects = SegmentObjects(key.segment_id, key.start_offset, ((Suffix.MANIFEST, manifest),), path)
        return describe_segment(self._source, load_segment(store, objects, self._source.manifest_rules))

    def _find_later_spans(self, segment: RemoteLogSegmentMetadata) -> tuple[Span, ...]:
        lineage = self._lineage(segment.topic_id_partition)
        for part in lineage.superseded:
            if part.segment.remote_log_segment_id == segment.remote_log_segment_id:
                raise ConfigError(f"{part}: leave the segment out, or read it with isolation='read_uncommitted'")
        return lineage.spans_between(segment.end_offset + 1, MAX_OFFSET)

    def _load_lineage(self, where: TopicIdPartition) -> Lineage:
        catalog = load_catalog(
            self._source, topic=where.topic, topic_id=where.topic_id, partition=where.partition
        )  # fmt: skip
        return catalog.lineage(where.topic, where.partition, where.topic_id)
