"""What the brokers say of the segments of a bucket: the records of their metadata topic, and what they come to."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tieredstore.catalog.metadata_topic import (
    SegmentRecord,
    SegmentState,
    SegmentUpdate,
    parse_metadata_record,
)
from tieredstore.errors import CorruptDataError
from tieredstore.model import RemoteLogSegmentId
from tieredstore.process.closing import Closing

if TYPE_CHECKING:
    from tieredstore.live import LiveReader

METADATA_TOPIC: Final = "__remote_log_metadata"

_AT_ONCE: Final = 500
"""How many segments of a listing are seen before the records are read on: not a round trip for each."""

_TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE segment (
    topic TEXT, topic_id BLOB, part INTEGER, id BLOB, start INTEGER, end INTEGER, size INTEGER, state INTEGER,
    seen INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, topic_id, part, id)
) WITHOUT ROWID;
"""
_SELECT: Final = "SELECT state, start, end, size FROM segment WHERE topic = ? AND topic_id = ? AND part = ? AND id = ?"
_MOVE_ALL_ON: Final = "UPDATE segment SET state = ?1 WHERE topic = ?2 AND topic_id = ?3 AND part = ?4"
_MOVE_ON: Final = f"{_MOVE_ALL_ON} AND id = ?5 AND state < ?1"


SeenT = TypeVar("SeenT")


class MetadataTopic:
    """Reads the brokers' metadata topic, all of it and then what has come since. Close it."""

    def __init__(self, reader: LiveReader, topic: str = METADATA_TOPIC) -> None:
        self._reader = reader
        self._topic = topic
        self._read_up_to: dict[tuple[str, int], int] | None = None

    def read_on(self) -> Iterator[tuple[int, int, bytes]]:
        """Partition, offset and value of each record that was not read before, up to the ends as they are now.

        ResourceNotFoundError where there is no such topic: the brokers have no tiered storage, or keep its metadata
        elsewhere.
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


class BrokersSegments:
    """What the records of the metadata topic come to. Kept in a file of its own, which goes with :meth:`close`: there
    may be millions of segments. For one thread."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="tieredstore-brokers-"))
            self.database = opened.enter_context(contextlib.closing(sqlite3.connect(Path(folder) / "segments")))
            self.database.executescript(_TABLES)
            self._opened = opened.pop_all()

    def take(self, value: bytes) -> None:
        """Take the value of the next record; CorruptDataError if it is none of Kafka's."""
        record = parse_metadata_record(value)
        if isinstance(record, SegmentRecord):
            metadata = record.metadata
            values = metadata.start_offset, metadata.end_offset, metadata.segment_size_in_bytes, record.state.value
            # Records may come twice.
            self.database.execute(
                "INSERT OR IGNORE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (*segment_key(metadata.remote_log_segment_id), *values),
            )
        elif isinstance(record, SegmentUpdate):
            # States only go forward.
            self.database.execute(_MOVE_ON, (record.state.value, *segment_key(record.segment_id)))
        else:
            # From the mark on nothing of the partition is to be read, and its topic's id does not come again.
            where, deleted = record.partition, SegmentState.DELETE_SEGMENT_FINISHED.value
            self.database.execute(_MOVE_ALL_ON, (deleted, where.topic, where.topic_id.bytes, where.partition))

    def row_of(self, segment_id: RemoteLogSegmentId) -> tuple[int, int, int, int] | None:
        """Its state's number, start and end offset, and size; None if no record was of it."""
        row: tuple[int, int, int, int] | None = self.database.execute(_SELECT, segment_key(segment_id)).fetchone()
        return row

    def close(self) -> None:
        """Forget all."""
        self._opened.close()


class BrokersView(Closing):
    """The brokers' records as a tool that deletes may trust them: read on after a segment was seen. Close it.

    A broker writes the record of a copy before it copies. So a segment whose manifest was seen, and of which no record
    is there when the topic is read on *after that*, is no broker's; of an older reading that says nothing.
    CorruptDataError where one of the records cannot be read: nobody knows then what is still listed.
    """

    def __init__(self, read_on: Callable[[], Iterable[tuple[int, int, bytes]]]) -> None:
        """``read_on`` gives what was not read before, as ``MetadataTopic`` does."""
        self._read_on = read_on
        self._segments = BrokersSegments()

    def read_behind(self, seen: Iterable[SeenT]) -> Iterator[SeenT]:
        """Yield what was ``seen`` in a store, each once the records that came before that moment are read."""
        seen = iter(seen)
        while piece := list(islice(seen, _AT_ONCE)):
            for partition, offset, value in self._read_on():
                self._take(partition, offset, value)
            yield from piece

    def state_of(self, segment_id: RemoteLogSegmentId) -> SegmentState | None:
        """Return the segment's state by the records that were read; None if none of them is of it."""
        row = self._segments.row_of(segment_id)
        return None if row is None else SegmentState(row[0])

    def close(self) -> None:
        """Forget all."""
        self._segments.close()

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        try:
            self._segments.take(value)
        except CorruptDataError as error:
            raise CorruptDataError(
                f"the brokers' record at offset {offset} of {METADATA_TOPIC}-{partition} cannot be read, so nobody "
                f"knows which segments they list ({error})"
            ) from error


def segment_key(segment_id: RemoteLogSegmentId) -> tuple[str, bytes, int, bytes]:
    """Topic, topic id, partition and id, as the table has them."""
    where = segment_id.topic_id_partition
    return where.topic, where.topic_id.bytes, where.partition, segment_id.id.bytes


@contextlib.contextmanager
def open_brokers(client: Mapping[str, str] | None) -> Generator[BrokersView | None]:
    """What the brokers that a client's properties name list; None where there is no client."""
    if client is None:
        yield None
        return
    from tieredstore.live import LiveReader  # noqa: PLC0415  needs the extra `kafka`

    with (
        LiveReader(client, isolation="read_uncommitted") as reader,
        BrokersView(MetadataTopic(reader).read_on) as brokers,
    ):
        yield brokers
