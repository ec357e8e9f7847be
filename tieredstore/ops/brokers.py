"""The brokers' view of a bucket's segments, read from the topic of tiered storage metadata."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tieredstore.catalog.metadata_topic import (
    SegmentRecord,
    SegmentState,
    SegmentUpdate,
    parse_metadata_record,
)
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition
from tieredstore.process.closing import Closing

if TYPE_CHECKING:
    from tieredstore.live import LiveReader

METADATA_TOPIC: Final = "__remote_log_metadata"

_AT_ONCE: Final = 500
"""The number of listed segments after which the topic is read again. A smaller number would cost more round trips."""

_TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE segment (
    topic TEXT, topic_id BLOB, part INTEGER, id BLOB, start INTEGER, end INTEGER, size INTEGER, state INTEGER,
    seen INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, topic_id, part, id)
) WITHOUT ROWID;
"""
_SELECT: Final = "SELECT state, start, end, size FROM segment WHERE topic = ? AND topic_id = ? AND part = ? AND id = ?"
_SELECT_ANY: Final = "SELECT 1 FROM segment WHERE topic = ? AND topic_id = ? LIMIT 1"
_MOVE_ALL_ON: Final = "UPDATE segment SET state = ?1 WHERE topic = ?2 AND topic_id = ?3 AND part = ?4"
_MOVE_ON: Final = f"{_MOVE_ALL_ON} AND id = ?5 AND state < ?1"


SeenT = TypeVar("SeenT")


class MetadataTopic:
    """A reader of the brokers' metadata topic. Each call of :meth:`read_on` reads the unread records. The caller closes
    the reader."""

    def __init__(self, reader: LiveReader, topic: str = METADATA_TOPIC) -> None:
        self._reader = reader
        self._topic = topic
        self._read_up_to: dict[tuple[str, int], int] | None = None

    def read_on(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield partition, offset and value of each unread record, up to the present end of each partition.

        Raise ResourceNotFoundError if the topic does not exist. The brokers then have no tiered storage, or keep its
        metadata elsewhere.
        """
        cluster = self._reader.cluster
        places = [(self._topic, number) for number in cluster.topic(self._topic).partitions]
        starts = cluster.earliest_offsets(places) if self._read_up_to is None else self._read_up_to
        ends = cluster.end_offsets(places)
        for place in places:
            start = starts.get(place, 0)
            for batch in self._reader.read(*place, start, max(start, ends[place]), columns=("offset", "value")):
                rows: list[dict[str, object]] = batch.to_pylist()
                for row in rows:
                    offset, value = row["offset"], row["value"]
                    if isinstance(offset, int) and isinstance(value, bytes):
                        yield place[1], offset, value
        self._read_up_to = ends


class _TemporaryDatabase(sqlite3.Connection):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except sqlite3.OperationalError as error:
            sentence = f"the brokers' records do not fit into a temporary file ({error})"
            raise ConfigError(f"{sentence}: free space, or set TMPDIR to a folder with more") from error


class BrokersSegments(Closing):
    """The state of each segment, from the records of the metadata topic. Not thread-safe.

    There may be millions, so SQLite writes them to a temporary file when they no longer fit in its cache. It removes
    the file itself.
    """

    def __init__(self) -> None:
        self.database = sqlite3.connect("", factory=_TemporaryDatabase)
        self.database.executescript(_TABLES)

    def apply(self, value: bytes) -> None:
        """Apply the value of the next record. Raise CorruptDataError if the value is not a metadata record of Kafka."""
        record = parse_metadata_record(value)
        if isinstance(record, SegmentRecord):
            metadata = record.metadata
            values = metadata.start_offset, metadata.end_offset, metadata.segment_size_in_bytes, record.state.value
            # Ignore repeated records.
            self.database.execute(
                "INSERT OR IGNORE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (*segment_key(metadata.remote_log_segment_id), *values),
            )
        elif isinstance(record, SegmentUpdate):
            # Never set a segment back to an earlier state, because the topic may contain a record twice.
            self.database.execute(_MOVE_ON, (record.state.value, *segment_key(record.segment_id)))
        else:
            # Count all segments of a deleted partition as deleted, because its topic id is never used again.
            where, deleted = record.partition, SegmentState.DELETE_SEGMENT_FINISHED.value
            self.database.execute(_MOVE_ALL_ON, (deleted, where.topic, where.topic_id.bytes, where.partition))

    def row_of(self, segment_id: RemoteLogSegmentId) -> tuple[int, int, int, int] | None:
        """Return the segment's state (as a number), start and end offset, and size; None without a record."""
        row: tuple[int, int, int, int] | None = self.database.execute(_SELECT, segment_key(segment_id)).fetchone()
        return row

    def knows_topic(self, where: TopicIdPartition) -> bool:
        """Return True if there is a record of any segment of the topic with this id."""
        found = self.database.execute(_SELECT_ANY, (where.topic, where.topic_id.bytes)).fetchone()
        return found is not None

    def close(self) -> None:
        """Close the temporary database."""
        self.database.close()


class BrokersView(BrokersSegments):
    """The brokers' metadata records, for tools that delete segments. Look up a segment's record only after the segment
    was seen in the store.

    A broker writes a segment's record before it uploads the segment. So the metadata topic must be read after the
    manifest was seen. If it then has no record of the segment, no broker owns the segment. If the topic was read
    earlier, a missing record proves nothing.

    Raise CorruptDataError for an unreadable record, because then it is unknown which segments the brokers list.
    """

    def __init__(self, read_on: Callable[[], Iterable[tuple[int, int, bytes]]], *, at_once: int = _AT_ONCE) -> None:
        """Create the view. ``read_on`` returns new records, as ``MetadataTopic.read_on`` does, and is called for each
        ``at_once`` items of a listing."""
        super().__init__()
        self._read_on, self._at_once = read_on, at_once

    def read_behind(self, seen: Iterable[SeenT]) -> Iterator[SeenT]:
        """Yield the items of ``seen``, which come from a listing of the store.

        Before yielding an item, read all records that the brokers wrote before the item was seen.
        """
        seen = iter(seen)
        while piece := list(islice(seen, self._at_once)):
            for partition, offset, value in self._read_on():
                try:
                    self.apply(value)
                except CorruptDataError as error:
                    raise CorruptDataError(
                        f"the brokers' record at offset {offset} of {METADATA_TOPIC}-{partition} cannot be read, so it "
                        f"is unknown which segments the brokers list ({error})"
                    ) from error
            yield from piece

    def state_of(self, segment_id: RemoteLogSegmentId) -> SegmentState | None:
        """Return the segment's state according to the records read so far; None without a record."""
        row = self.row_of(segment_id)
        return None if row is None else SegmentState(row[0])


def segment_key(segment_id: RemoteLogSegmentId) -> tuple[str, bytes, int, bytes]:
    """Return topic, topic id, partition and segment id, as columns of the table."""
    where = segment_id.topic_id_partition
    return where.topic, where.topic_id.bytes, where.partition, segment_id.id.bytes


@contextlib.contextmanager
def open_brokers(client: Mapping[str, str] | None) -> Generator[BrokersView | None]:
    """Open a view of the cluster that the client properties ``client`` name; yield None without properties."""
    if client is None:
        yield None
        return
    from tieredstore.live import LiveReader  # noqa: PLC0415  needs the extra `kafka`

    with (
        LiveReader(client, isolation="read_uncommitted") as reader,
        BrokersView(MetadataTopic(reader).read_on) as brokers,
    ):
        yield brokers
