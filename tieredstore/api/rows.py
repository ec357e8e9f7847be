"""Rows that a bucket returns: topics, partitions, segments, usage, keys. A :class:`Table` of them converts to pyarrow
and pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar, cast

from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import ConfigError, CorruptDataError, ObjectArchivedError, SegmentNotFoundError
from tieredstore.installation import Extra
from tieredstore.limits import MAX_INT64
from tieredstore.model import EPOCH, IndexType, RemoteLogSegmentMetadata, Uuid
from tieredstore.ops.offsets import BrokerLog, lost_between, without
from tieredstore.process.whole_files import whole_file
from tieredstore.query.arguments import wrong_kind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from tieredstore.api.bucket import Bucket
    from tieredstore.ops.cost.usage import MonthlyCost
    from tieredstore.ops.listing import ListedSegment
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.remote.fetch.stream import SegmentStream

RowT = TypeVar("RowT")

_PIECE: Final = 1 << 20
_SHOWN: Final = 20
"""A notebook shows at most this many rows, and the number of the remaining rows."""


def tell_each(items: Iterable[RowT], tell: Callable[[RowT], object]) -> Iterator[RowT]:
    """Call ``tell`` with each item, then yield the item."""
    for one in items:
        tell(one)
        yield one


class Table(list[RowT]):
    """A list of rows of one kind. Each row is a frozen value."""

    def to_arrow(self) -> pa.Table:
        """Return the rows as a pyarrow table."""
        with Extra("to_arrow", "arrow"):
            import pyarrow as pa  # noqa: PLC0415

        return pa.Table.from_pylist([_plain_row(row) for row in self])

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        with Extra("to_pandas"):
            import pandas as pd  # noqa: PLC0415

        return pd.DataFrame([_plain_row(row) for row in self])

    def _repr_html_(self) -> str:
        """Return the first rows for a notebook."""
        if not self:
            return "<p>no rows</p>"
        rows = [_plain_row(row) for row in self[:_SHOWN]]
        lines = [_line("th", rows[0]), *(_line("td", row.values()) for row in rows)]
        more = f"<p>{len(self) - _SHOWN} rows more</p>" if len(self) > _SHOWN else ""
        return f"<table>{''.join(lines)}</table>{more}"


def _line(kind: str, cells: Iterable[object]) -> str:
    import html  # noqa: PLC0415  only notebooks need it

    texts = ("" if cell is None else html.escape(str(cell)) for cell in cells)
    return f"<tr>{''.join(f'<{kind}>{text}</{kind}>' for text in texts)}</tr>"


def _plain_row(row: object) -> dict[str, object]:
    if not is_dataclass(row):
        return {"value": _plain(row)}
    return {one.name: _plain(getattr(row, one.name)) for one in fields(row) if one.repr}


def _plain(value: object) -> object:
    """Convert ids and errors to text for a library's table; keep times and days."""
    if value is None or isinstance(value, str | int | float | bool | bytes | date):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[object]", value)]
    return str(value) if isinstance(value, Uuid) or not is_dataclass(value) else _plain_row(value)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in the bucket, with offsets from ``earliest_offset`` up to ``end_offset`` (exclusive).

    ``earliest_offset`` and ``end_offset`` are None if the bucket has no offsets of the partition. ``gaps`` are
    half-open ranges of offsets that lie after one segment and before the next. The sums cover complete segments.
    ``incomplete`` counts all other segments, and ``damaged`` those with an unreadable manifest. ``broker`` is None
    without a broker, or if the broker lacks the partition.

    From its first offset on, the bucket has all records before the time ``complete_up_to``. If the bucket has all
    records up to the log's end, ``complete_up_to`` is the time of the request to the broker. ``complete_up_to`` is None
    if it is unknown, or if even the first record is missing.
    """

    number: int
    earliest_offset: int | None
    end_offset: int | None
    gaps: tuple[tuple[int, int], ...] = ()
    last_time: datetime | None = None
    broker: BrokerLog | None = None
    first_time: datetime | None = None
    segments: int = 0
    size: int = 0
    stored_size: int = 0
    incomplete: int = 0
    damaged: int = 0
    complete_up_to: datetime | None = None
    why_missing: tuple[str, ...] = ()
    """One sentence for each cause of the missing offsets in ``missing_until``."""

    @property
    def stored(self) -> tuple[tuple[int, int], ...]:
        """The ranges of offsets that are in the bucket, without its gaps."""
        if self.earliest_offset is None or self.end_offset is None:
            return ()
        starts = [self.earliest_offset, *(stop for _, stop in self.gaps)]
        return tuple(zip(starts, [*(start for start, _ in self.gaps), self.end_offset], strict=True))

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """The ranges of offsets that neither the bucket nor the broker has, between ranges that one of them has."""
        return lost_between((*self.stored, *(() if self.broker is None else (self.broker.span,))))

    @property
    def not_stored(self) -> tuple[tuple[int, int], ...]:
        """The ranges of offsets that are only at the broker."""
        return () if self.broker is None else tuple(without(self.stored, self.broker.span))

    @property
    def missing_until(self) -> tuple[tuple[int, int], ...] | None:
        """The ranges of offsets before ``until`` that the bucket lacks; () if the bucket has all offsets before
        ``until``.

        ``missing_until`` is None without a requested time, and if the broker lacks the partition.
        """
        return None if self.broker is None or self.broker.until is None else self.missing_before(self.broker.until)

    def missing_before(self, offset: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges of offsets before ``offset`` that the bucket lacks, from the first offset of bucket or
        broker on."""
        held = (*self.stored, *(() if self.broker is None else (self.broker.span,)))
        return tuple(without(self.stored, (min((first for first, _ in held), default=offset), offset)))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and the number, log bytes and stored bytes of its complete segments.

    Example::

        for topic in bucket.topics():
            print(topic.name, [(each.number, each.end_offset) for each in topic.partitions])
    """

    name: str
    topic_id: Uuid
    partitions: tuple[Partition, ...]
    segments: int
    size: int
    stored_size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in the store. The segment is complete unless objects are ``missing``, or ``damage`` describes a fault.

    Offsets are inclusive. ``last_offset``, ``size``, ``compressed`` and ``last_time`` are None without a readable
    manifest.

    Example::

        for segment in bucket.segments("orders", 0):
            if segment.is_whole:
                with segment.open() as log:
                    first_batch = log.read(61)
    """

    topic: str
    topic_id: Uuid
    partition: int
    base_offset: int
    last_offset: int | None
    segment_id: Uuid
    size: int | None
    stored_size: int
    last_time: datetime | None
    leader_epochs: tuple[tuple[int, int], ...]
    key_id: str | None
    compressed: bool | None
    missing: tuple[str, ...]
    damage: str | None
    metadata: RemoteLogSegmentMetadata | None = field(default=None, repr=False)
    """The segment's metadata, for calls of a ``RemoteStorageManager``; None if the manifest cannot be read."""
    stored: StoredSegment | None = field(default=None, repr=False, compare=False)
    """The segment's manifest and objects if ``inspect`` returned the segment; None after a listing."""
    _bucket: Bucket | None = field(default=None, repr=False, compare=False)
    _is_archived: bool = field(default=False, repr=False, compare=False)

    def open(self) -> SegmentStream:
        """Open the whole log as a seekable, read-only file. Raises SegmentNotFoundError, SegmentCorruptError or
        KeyRingError.
        """
        manager, metadata = self._of_bucket()
        return manager.open(metadata)

    def index(self, kind: str) -> BinaryIO:
        """Open one index: offset, timestamp, producer-snapshot, transaction or leader-epoch.

        The suffixes of Kafka's files are accepted too: index, timeindex, snapshot, txnindex, leader-epoch-checkpoint.
        Raises SegmentNotFoundError if the segment was copied without the index.
        """
        wanted = index_type("kind", kind)
        manager, metadata = self._of_bucket()
        return manager.fetch_index(metadata, wanted)

    def read_first_time(self) -> datetime | None:
        """Return the time of the first record; None if the segment has no record, or its first record has no time.

        Manifests lack the first time, so this method reads the log's first chunk. The read needs
        ``tieredstore[arrow]``, and the private key of an encrypted segment.

        Raises the errors of :meth:`open`, and BatchCorruptError for a damaged batch.
        """
        from tieredstore.catalog.timestamps import first_timestamp  # noqa: PLC0415  few calls need it

        manager, metadata = self._of_bucket()
        return time_of(first_timestamp(manager, metadata))

    def fetch(self, path: str | Path, *, range: slice | None = None, index: str | None = None) -> Path:
        """Write the log, a ``range`` of its bytes, or one ``index`` into a new file, complete or not at all."""
        if not isinstance(cast("object", range), slice | None):
            raise wrong_kind("range", range, "a slice, such as slice(0, 100)")
        start, stop, step = (range or slice(None)).indices(self.size or 0)
        if index is not None and range is not None:
            raise ConfigError("range and index exclude each other: an index is always read whole")
        if step != 1:
            raise ConfigError("range has a step: give slice(start, stop)")
        with self.open() if index is None else self.index(index) as source, whole_file(Path(path)) as file:
            if index is None:
                source.seek(start)
            left = max(0, stop - start) if index is None else MAX_INT64
            while piece := source.read(min(left, _PIECE)):
                file.write(piece)
                left -= len(piece)
        return Path(path)

    def _of_bucket(self) -> tuple[RemoteStorageManager, RemoteLogSegmentMetadata]:
        if self.metadata is None:
            why = self.damage or f"its objects {', '.join(self.missing)} are missing"
            fault = SegmentNotFoundError if self.damage is None else CorruptDataError
            raise (ObjectArchivedError if self._is_archived else fault)(f"{self} cannot be read: {why}")
        if self._bucket is None:
            raise ConfigError("a segment that was pickled has no bucket: get the segment from a bucket again")
        return self._bucket.manager, self.metadata

    @property
    def is_whole(self) -> bool:
        """True if nothing of the segment is missing or damaged."""
        return not self.missing and self.damage is None

    def __str__(self) -> str:
        return f"the segment {self.segment_id} of {self.topic}-{self.partition} at offset {self.base_offset}"

    def __reduce__(self) -> tuple[type[Segment], tuple[object, ...]]:
        return Segment, (
            self.topic, self.topic_id, self.partition, self.base_offset, self.last_offset, self.segment_id, self.size,
            self.stored_size, self.last_time, self.leader_epochs, self.key_id, self.compressed, self.missing,
            self.damage, self.metadata, None, None, self._is_archived,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums of stored bytes, segments and objects. A field is None if the sums are not grouped by it.

    ``no_manifest`` counts segments without a manifest, ``damaged`` counts segments with an unreadable one. Such
    segments add only to ``stored_size``, not to the other sums. ``ratio`` is log bytes per stored byte.
    """

    topic: str | None
    topic_id: Uuid | None
    partition: int | None
    day: date | None
    segments: int
    objects: int
    no_manifest: int
    damaged: int
    size: int
    stored_size: int
    ratio: float | None
    cost: MonthlyCost | None = field(default=None, repr=False)
    """The cost per month, if prices were given."""
    sized_stored: int = field(default=0, repr=False)
    """The stored bytes of segments whose manifests were read."""
    undated: int = field(default=0, repr=False)
    """The number of segments without a time, or with a time in the future. Such segments do not count for growth."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The data that a key pair encrypts. If ``key_id`` is None, the row counts data that is not encrypted.

    ``may_need`` counts other objects that may need the requested pair: unreadable manifests, and unfinished copies,
    which a writer may still commit. ``may_need`` is None if all pairs were requested.
    """

    key_id: str | None
    segments: int
    size: int
    stored_size: int
    oldest_time: datetime | None
    newest_time: datetime | None
    may_need: int | None = None


_KAFKAS_NAMES: Final = {
    "index": IndexType.OFFSET,
    "timeindex": IndexType.TIMESTAMP,
    "snapshot": IndexType.PRODUCER_SNAPSHOT,
    "leader-epoch-checkpoint": IndexType.LEADER_EPOCH,
    "txnindex": IndexType.TRANSACTION,
}


def index_type(argument: str, name: str) -> IndexType:
    """Return the index type for one of our names or Kafka's file suffixes; raise ConfigError, which names
    ``argument``."""
    known = {**{kind.value: kind for kind in IndexType}, **_KAFKAS_NAMES}
    kind = known.get(str(name).removeprefix("."))
    if kind is None:
        raise ConfigError(f"{argument} is {name!r:.60}; it must be one of {', '.join(known)}")
    return kind


def segment_of(listed: ListedSegment, bucket: Bucket | None, *, whole: bool = False) -> Segment:
    """Return the row of a listed segment. With ``whole``, the row's field ``stored`` has the manifest and objects."""
    stored = listed.stored
    where, encryption = listed.partition, None if stored is None else stored.manifest.encryption
    return Segment(
        where.topic,
        where.topic_id,
        where.partition,
        listed.objects.start_offset,
        None if stored is None else stored.last_offset,
        listed.objects.segment_id.id,
        None if stored is None else stored.metadata.segment_size_in_bytes,
        listed.objects.stored_size,
        time_of(listed.max_timestamp_ms),
        _epochs(stored),
        None if encryption is None else encryption.key_id,
        None if stored is None else stored.manifest.compression,
        tuple(suffix.value for suffix in listed.objects.missing),
        None if listed.damage is None else str(listed.damage),
        None if stored is None else stored.metadata,
        stored if whole else None,
        bucket,
        isinstance(listed.damage, ObjectArchivedError),
    )


def time_of(timestamp_ms: int | None) -> datetime | None:
    """Return a Kafka timestamp as a UTC datetime; None if it is unknown, or outside the calendar."""
    try:
        return None if timestamp_ms is None else EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def _epochs(stored: StoredSegment | None) -> tuple[tuple[int, int], ...]:
    metadata = None if stored is None else stored.manifest.metadata
    return () if metadata is None else tuple(metadata.segment_leader_epochs)
