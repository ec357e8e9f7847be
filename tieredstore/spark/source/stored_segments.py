"""Segments of a store, named one by one in a DataFrame, into rows, for a task of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tieredstore.catalog.completion import describe_segment
from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import ConfigError, ObjectNotFound, SegmentNotFound
from tieredstore.format.keys import ObjectKey, Suffix, main_path, object_key, parse_key
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import ReadSettings
from tieredstore.spark.source.rows import RowShape

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

PATH: Final = "segment"
"""The column with the path of a segment's objects."""

PARTS: Final = ("topic", "topic_id", "partition", "base_offset", "segment_id")
"""The columns that name a segment instead, as ``tieredstore ls --json`` does."""

_PATH_PARTS: Final = 3
_LINEAGES: Final = 16


def segment_keys(batches: Iterable[pa.RecordBatch], by_path: bool, prefix: str = "") -> Iterator[ObjectKey]:
    """What the rows name; ConfigError for one that names no segment. ``prefix`` is that of the store's keys."""
    for batch in batches:
        untyped: Any = batch
        if by_path:
            yield from (key_of_path(path, prefix) for path in untyped.column(PATH).to_pylist())
        else:
            columns = [untyped.column(name).to_pylist() for name in PARTS]
            yield from (_key_of_parts(parts) for parts in zip(*columns, strict=True))


def key_of_path(path: str | None, prefix: str = "") -> ObjectKey:
    """The segment of a path ``<topic>-<topicId>/<partition>/<start offset>-<segmentId>``, with or without a suffix.

    Folders may stand before it: then it is that of an object, with the key ``prefix``.
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
            f"{path!r} in the column {PATH} is no segment: <topic>-<topicId>/<partition>/<start offset, 20 digits>-"
            "<segmentId> is expected"
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
    main_path(segment_id, start_offset)  # says what cannot be
    return ObjectKey(segment_id, start_offset, Suffix.MANIFEST)


class StoredSegments:
    """Reads single segments. For one thread.

    With ``read_uncommitted`` a segment's records are all in its log: requests for its manifest and its chunks. With
    ``read_committed`` the outcome of its transactions may be in later segments: its partition is listed, once for the
    segments of a partition that follow each other.
    """

    def __init__(self, source: SegmentSource, settings: ReadSettings) -> None:
        self._source = source
        self._settings = settings
        self._lineage = lru_cache(_LINEAGES)(self._load_lineage)

    def rows(self, keys: Iterable[ObjectKey], shape: RowShape) -> Iterator[pa.RecordBatch]:
        """The rows of the segments, one after the other; errors name the segment."""
        for key in keys:
            where = key.segment_id.topic_id_partition
            with self.read(key) as read:
                for records in read:
                    yield shape.convert(records, where.topic, where.partition)

    def read(self, key: ObjectKey) -> PartitionRead:
        """The records of one segment. SegmentNotFound if it has no manifest.

        With ``read_committed`` the read ends where the first undecided transaction begins, as a consumer's would;
        ConfigError for a segment with offsets of a leader epoch that the log left behind, since nothing tells what
        became of their transactions.
        """
        segment = self._load(key)
        stop = segment.end_offset + 1
        spans: tuple[Span, ...] = (Span(segment, segment.start_offset, stop),)
        if self._settings.isolation == "read_committed":
            spans += self._following(segment)
        log = Lineage(segment.topic_id_partition, (), spans)
        return PartitionRead(self._source, log, segment.start_offset, stop, self._settings)

    def _load(self, key: ObjectKey) -> RemoteLogSegmentMetadata:
        store, path = self._source.store, key.main_path
        try:
            manifest = store.head(object_key(self._source.layout.prefix, path, Suffix.MANIFEST))
        except ObjectNotFound:
            raise SegmentNotFound(f"there is no segment {path}: the store holds no manifest of it") from None
        objects = SegmentObjects(key.segment_id, key.start_offset, ((Suffix.MANIFEST, manifest),), path)
        return describe_segment(self._source, load_segment(store, objects, self._source.manifest_rules))

    def _following(self, segment: RemoteLogSegmentMetadata) -> tuple[Span, ...]:
        lineage = self._lineage(segment.topic_id_partition)
        for cut in lineage.cuts:
            if cut.segment.remote_log_segment_id == segment.remote_log_segment_id:
                raise ConfigError(f"{cut}: leave the segment out, or read it with isolation='read_uncommitted'")
        return lineage.spans_between(segment.end_offset + 1, MAX_OFFSET)

    def _load_lineage(self, where: TopicIdPartition) -> Lineage:
        catalog = load_catalog(
            self._source, topic=where.topic, topic_id=where.topic_id, partition=where.partition
        )  # fmt: skip
        return catalog.lineage(where.topic, where.partition, where.topic_id)
