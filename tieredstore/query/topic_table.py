"""A topic as a table. Each scan reads the topic as it is when the scan begins."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.timestamps import first_timestamp
from tieredstore.errors import AlreadyClosedError, EncryptionError, SegmentNotFoundError, TieredStoreError
from tieredstore.model import DEFAULT_ISOLATION, Isolation, Uuid
from tieredstore.ops.listing import load_stream
from tieredstore.process.interruption import Interrupted
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, topic_schema
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.query.topic_scan import begin_read
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import OnDataLoss

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.model import AtTime, RemoteLogSegmentMetadata, TopicIdPartition, TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

FIRST_TIMESTAMP: Final = "first_timestamp"
"""The only column of the table of segments that is read from the segments' logs."""

_FIRST_CHUNKS: Final = 8
"""Read the first chunks of so many segments in parallel. A chunk has 4 MiB by default, and takes twice its size in
memory.
"""

# pyarrow's type stubs of datasets and tables are incomplete.
_Dataset: Final[Any] = ds.Dataset


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of topics as tables. ``ReadPlan`` and ``LogQuery`` describe the fields."""

    types: ColumnTypes = field(default_factory=ColumnTypes)
    partitions: Sequence[int] | None = None
    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    client: Mapping[str, str] | None = None
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid])
    parallelism: int | None = None
    words: QueryWords = field(default_factory=QueryWords)


class TopicTable:
    """A topic that can be scanned repeatedly. Thread-safe.

    With ``keeps_snapshot``, all scans read the topic as it was at the first scan.
    """

    def __init__(
        self, source: RemoteStorageManager, topic: str, options: TableOptions, *, keeps_snapshot: bool = False
    ) -> None:
        self.topic = topic
        self.schema = topic_schema(types=options.types)
        self.reads: list[TopicRead] = []
        self._source = source
        self._options = options
        self._keeps_snapshot = keeps_snapshot
        self._kept: tuple[TopicReader, LogSnapshot] | None = None
        self._failure: TieredStoreError | None = None
        self._interruption: BaseException | None = None
        self.is_closed = False

    @property
    def error(self) -> TieredStoreError | None:
        """The first error that ended a scan."""
        return self._failure or next((read.error for read in self.reads if read.error is not None), None)

    def check_interruption(self) -> None:
        """If a signal interrupted a scan, raise the interruption again, because query engines replace it by their own
        errors.
        """
        for interruption in (self._interruption, *(read.interruption for read in self.reads)):
            if interruption is not None:
                raise interruption

    @contextlib.contextmanager
    def keep_error(self) -> Generator[None]:
        """Store an error or interruption that ends the block, because query engines replace it by their own errors."""
        try:
            yield
        except TieredStoreError as error:
            self._failure = error
            raise
        except (Interrupted, KeyboardInterrupt) as interruption:
            self._interruption = interruption
            raise

    def scan(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> TopicRead:
        """Scan the records for which the filter holds, with these columns."""
        plan = ReadPlan(
            self._options.start, self._options.stop,
            columns=TOPIC_COLUMNS if columns is None else tuple(columns), filter=filter, types=self._options.types,
            parallelism=self._options.parallelism,
        )  # fmt: skip
        with self.keep_error():
            reader, snapshot = self._look()
            try:
                read = begin_read(reader, snapshot, plan, owns_reader=not self._keeps_snapshot)
            except BaseException:
                if not self._keeps_snapshot:
                    reader.close()
                raise
        self.reads = [one for one in self.reads if not one.is_closed or one.error is not None]
        self.reads.append(read)
        return read

    def segments(self) -> SegmentDataset:
        """Return the segments with the topic's records. The call takes one listing, and a request for each manifest.

        Columns from the manifest are null for a segment that was deleted since the snapshot. To find the segments that
        a read uses, encrypted data must sometimes be decrypted. If the key is missing, log a warning and return all
        segments.
        """
        scope = Scope(self.topic, self._options.topic_ids.get(self.topic))
        found: list[RemoteLogSegmentMetadata] | None = None
        try:
            lineages = [log.lineage for _, log in sorted(self._logs().items())]
            found = [span.segment for lineage in lineages if lineage is not None for span in lineage.spans]
        except EncryptionError as error:
            _logger.warning("all segments of %s are listed, also those that no read uses: %s", self.topic, error)
        listed = list_segments(self._source.store, self._source.layout.prefix, scope)
        stored = {
            one.objects.segment_id: one.stored
            for one in load_stream(self._source.store, listed, rules=self._source.manifest_rules)
            if one.stored is not None
        }
        if found is None:
            partitions = self._options.partitions
            found = [one.metadata for one in stored.values() if not one.objects.missing]
            found = [one for one in found if partitions is None or _where(one).partition in partitions]
        rows = [
            {
                "topic": _where(one).topic, "topic_id": str(_where(one).topic_id), "partition": _where(one).partition,
                "base_offset": one.start_offset, "last_offset": one.end_offset,
                "size": one.segment_size_in_bytes,
                "max_timestamp": one.max_timestamp_ms if one.max_timestamp_ms >= 0 else None,
                "segment_id": str(one.remote_log_segment_id.id), "broker_id": one.broker_id,
                **_of_manifest(stored.get(one.remote_log_segment_id)),
            }
            for one in found
        ]  # fmt: skip
        segments = {str(one.remote_log_segment_id.id): one for one in found}
        return SegmentDataset(
            self, pa.Table.from_pylist(rows, schema=_SEGMENTS), lambda ids: self._first_times(map(segments.get, ids))
        )

    def _first_times(self, segments: Iterable[RemoteLogSegmentMetadata | None]) -> list[int | None]:
        """Return the timestamps of the segments' first records, with two requests for each segment.

        The timestamp is None for a segment whose encryption key is missing; log one warning. Raise CorruptDataError for
        a damaged batch.
        """
        with ThreadPool(self._options.parallelism or _FIRST_CHUNKS, "tieredstore-times") as pool:
            read = list(in_parallel(pool, self._first_time, segments, at_once=2 * _FIRST_CHUNKS))
        unknown = [one for one in read if isinstance(one, EncryptionError)]
        if unknown:
            _logger.warning(
                "%s of %d segments of %s is unknown: %s", FIRST_TIMESTAMP, len(unknown), self.topic, unknown[0]
            )
        return [None if isinstance(one, EncryptionError) else one for one in read]

    def _first_time(self, segment: RemoteLogSegmentMetadata | None) -> int | EncryptionError | None:
        try:
            return None if segment is None else first_timestamp(self._source, segment)
        except SegmentNotFoundError:  # deleted since the snapshot
            return None
        except EncryptionError as error:
            return error

    def partitions(self) -> pa.Table:
        """Return a table of the topic's partitions, with the log's first offset, the end of the bucket's part, and the
        log's end."""
        rows = [
            {
                "topic": log.topic, "topic_id": str(log.topic_id), "partition": log.partition,
                "earliest_offset": log.earliest, "bucket_end_offset": log.seam, "end_offset": log.end,
                "broker_earliest_offset": log.live_start,
            }
            for _, log in sorted(self._logs().items())
        ]  # fmt: skip
        table: pa.Table = pa.Table.from_pylist(rows, schema=_PARTITIONS)
        return table

    def close(self) -> None:
        """End all scans, and refuse new ones."""
        self.is_closed = True
        for read in self.reads:
            read.close()
        if self._kept is not None:
            self._kept[0].close()

    def _logs(self) -> Mapping[TopicPartition, PartitionLog]:
        reader, snapshot = self._look()
        if not self._keeps_snapshot:
            reader.close()
        return snapshot.logs

    def _look(self) -> tuple[TopicReader, LogSnapshot]:
        if self.is_closed:
            raise AlreadyClosedError(f"the table of {self.topic} was closed; attach the topic again")
        if self._kept is not None:
            return self._kept
        options = self._options
        query = LogQuery.of_topic(
            self.topic, options.partitions, isolation=options.isolation, on_data_loss=options.on_data_loss,
            client=options.client, topic_id=options.topic_ids.get(self.topic), words=options.words,
        )  # fmt: skip
        looked = TopicReader(lambda: self._source, query).begin()
        if self._keeps_snapshot:
            self._kept = looked
        return looked


def _where(segment: RemoteLogSegmentMetadata) -> TopicIdPartition:
    return segment.remote_log_segment_id.topic_id_partition


def _of_manifest(stored: StoredSegment | None) -> dict[str, object]:
    if stored is None:
        return {}
    encryption = stored.manifest.encryption
    return {"stored_size": stored.objects.stored_size, "key_id": None if encryption is None else encryption.key_id}


_SEGMENTS: Final = pa.schema(
    [
        ("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32()),
        ("base_offset", pa.int64()), ("last_offset", pa.int64()), ("size", pa.int64()),
        ("max_timestamp", pa.timestamp("ms", "UTC")), ("segment_id", pa.string()),
        ("broker_id", pa.int32()), ("stored_size", pa.int64()), ("key_id", pa.string()),
        (FIRST_TIMESTAMP, pa.timestamp("ms", "UTC")),
    ]
)  # fmt: skip
_PARTITIONS: Final = pa.schema(
    [
        ("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32()),
        ("earliest_offset", pa.int64()), ("bucket_end_offset", pa.int64()), ("end_offset", pa.int64()),
        ("broker_earliest_offset", pa.int64()),
    ]
)  # fmt: skip


class ScannedTable(Protocol):
    """A table that query engines can scan."""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        ...

    def scan(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> Scan:
        """Scan the records for which the filter holds, with these columns."""
        ...


class Scan(Protocol):
    """One scan, which begins when its records are requested."""

    def reader(self) -> pa.RecordBatchReader:
        """Return the records as a stream."""
        ...


class TopicDataset(_Dataset):  # type: ignore[misc]  # pyarrow's class, of which its stubs say nothing here
    """A topic in the form of a pyarrow dataset, of which DuckDB uses only ``schema`` and ``scanner``."""

    def __init__(self, table: ScannedTable) -> None:
        # pyarrow's constructor always raises, so do not call it. The methods below do not need its attributes.
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """The topic's columns."""
        return self._table.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> TopicScanner | ds.Scanner:
        """Return a scanner with these columns, of the records for which the filter holds."""
        return TopicScanner(self._table, columns, filter)


class SegmentDataset(TopicDataset):
    """A topic's segments as rows. Only scans that request the column ``first_timestamp`` read it from the segments."""

    def __init__(
        self, table: TopicTable, rows: pa.Table, read_first_times: Callable[[Sequence[str]], list[int | None]]
    ) -> None:
        """Make the dataset of ``rows``. ``read_first_times`` returns the first timestamp of each segment, by segment
        ids."""
        super().__init__(table)
        self._topic = table
        self._rows = rows
        self._read_first_times = read_first_times

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table of segments."""
        return _SEGMENTS

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> ds.Scanner:
        """Return a scanner with these columns, of the segments for which the filter holds."""
        rows, in_filter = self._rows, FIRST_TIMESTAMP in str(filter)
        if in_filter or columns is None or FIRST_TIMESTAMP in columns:
            # Reading a segment's first timestamp takes a chunk, so first drop the segments that the filter excludes.
            # This is impossible if the filter itself uses this column.
            rows = rows if in_filter or filter is None else rows.filter(filter)
            with self._topic.keep_error():
                times = self._read_first_times(rows.column("segment_id").to_pylist())
            place = _SEGMENTS.get_field_index(FIRST_TIMESTAMP)
            rows = rows.set_column(place, _SEGMENTS.field(place), pa.array(times, _SEGMENTS.field(place).type))
        return ds.dataset(rows).scanner(columns=None if columns is None else list(columns), filter=filter)


class TopicScanner:
    """One scan of a topic, which begins when its records are requested."""

    def __init__(self, table: ScannedTable, columns: Sequence[str] | None, filter: ds.Expression | None) -> None:
        self._table = table
        self._columns = columns
        self._filter = filter

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records as a stream."""
        # An engine that requests no columns only counts rows. Return one column, because batches without columns have
        # no rows.
        columns = self._columns if self._columns is None or len(self._columns) else ["offset"]
        return self._table.scan(columns, self._filter).reader()
