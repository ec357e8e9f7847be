"""What ``tieredstore cat`` reads of bucket and broker as one log, once or for as long as it grows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tieredstore.cli.records.record_places import LastRecords, RecordPlace
from tieredstore.cli.records.record_rows import SHOWN
from tieredstore.cli.records.uncommitted import LeftOut
from tieredstore.cli.terminal.output import complain
from tieredstore.errors import ConfigError
from tieredstore.model import TopicPartition, Uuid, check_offset, hint_of_number
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords
    from tieredstore.live import LiveReader
    from tieredstore.partitions import PartitionLog
    from tieredstore.reading import LogQuery, LogSnapshot
    from tieredstore.remote.source import SegmentSource

_POLL_S: Final = 1.0

ACCEPT_LOSS: Final = "use --data-loss report"
"""What a person does who puts up with losses."""

Window: TypeAlias = tuple[int, int]
"""Offsets, half-open."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What is to be shown: of a topic, or of some of its partitions, from one place up to another."""

    topic: str
    partitions: tuple[int, ...] | None = None
    start: RecordPlace | None = None
    stop: RecordPlace | None = None
    isolation: Any = "read_committed"
    data_loss: Any = "fail"
    topic_id: str | None = None
    client: Mapping[str, str] | None = None
    columns: Sequence[str] = SHOWN

    def query(self) -> LogQuery:
        """The same, as the logs are asked; ConfigError names the extra that is missing."""
        from tieredstore import reading
        from tieredstore.partitions.selections import Assign, Subscribe
        from tieredstore.reading import query as log_query

        places = None if self.partitions is None else tuple((self.topic, number) for number in self.partitions)
        return reading.LogQuery(
            Subscribe((self.topic,)) if places is None else Assign(places),
            isolation=self.isolation,
            on_data_loss=self.data_loss,
            topic_ids={} if self.topic_id is None else {self.topic: Uuid.parse(self.topic_id)},
            client=self.client,
            timeout_s=log_query.timeout_of(self.client or {}),
            words=reading.QueryWords(accept_loss=ACCEPT_LOSS, topic_ids="--topic-id", choose_topic_id="--topic-id"),
        )


@contextmanager
def open_logs(source: SegmentSource, request: LogRequest) -> Generator[LogReading]:
    """The logs that are asked for, as they are now; what of them does not count is told of on stderr."""
    from tieredstore import reading

    query = request.query()
    snapshot = reading.LogSnapshot.take(source, query)
    for problem in snapshot.problems:
        complain(problem)
    reading.check_readable(snapshot, query, {})
    snapshot.check_selected(query, source)
    with nullcontext() if query.client is None else reading.open_reader(query) as reader:
        yield LogReading(source, request, query, snapshot, reader)


class LogReading:
    """Gives the records of a snapshot's logs. ``left_out`` says what was not given, once they were given."""

    def __init__(
        self,
        source: SegmentSource,
        request: LogRequest,
        query: LogQuery,
        snapshot: LogSnapshot,
        reader: LiveReader | None,
    ) -> None:
        self._source = source
        self._request = request
        self._query = query
        self._snapshot = snapshot
        self._reader = reader
        self._logs: list[PartitionLog] = [log for _, log in sorted(snapshot.logs.items())]
        # Offsets tell how far was read, whatever is shown.
        columns = tuple(dict.fromkeys((*request.columns, "offset")))
        from tieredstore.records.settings import ReadSettings

        self._settings = ReadSettings(columns=columns)
        self.left_out = LeftOut(query, reader)

    @property
    def offset_width(self) -> int:
        """How many digits the greatest offset has."""
        return max(len(str(max(log.end - 1, 0))) for log in self._logs)

    def records_till_end(self) -> Generator[PartitionRecords, None, None]:
        """One partition after the other, up to where the logs end now."""
        from tieredstore.reading import read_window

        windows = self._windows()
        for log in self._logs:
            start, stop = windows[log.where]
            aborted = self.left_out.begin(log, start, stop)
            batches = read_window(
                log, start, stop,
                source=self._source, query=self._query, settings=self._settings, reader=self._reader, aborted=aborted,
            )  # fmt: skip
            with closing(batches):
                for records in batches:
                    yield log.partition, records
            self.left_out.reached(log.partition, stop)

    def records_as_they_come(self) -> Generator[PartitionRecords, None, None]:
        """First those that there are and then those that come, without an end."""
        windows = self._windows(stops_at_start=True)
        starts = {log.where: log.position(windows[log.where][0]) for log in self._logs}
        from tieredstore.reading import LogTail

        with LogTail(self._source, self._query, starts, settings=self._settings) as tail:
            try:
                while True:
                    tail_records = tail.poll(_POLL_S)
                    if tail_records is not None:
                        yield tail_records.where[1], tail_records.records
            finally:
                tail.close()
                self.left_out.aborted_in_tail = tail.aborted

    def _windows(self, *, stops_at_start: bool = False) -> dict[TopicPartition, Window]:
        """What to read of each partition; ConfigError for numbers beyond the logs, DataLoss by the policy for what
        cannot be read."""
        for option, place in (("--from", self._request.start), ("--to", self._request.stop)):
            if isinstance(place, int):
                _check_number(option, place, self._logs)
        # Times and the last records are looked up in the logs, several at once.
        with ThreadPool(READERS, "tieredstore-windows") as pool:
            looked_up = in_parallel(pool, self._window, self._logs, at_once=2 * READERS)
            windows = {log.where: window for log, window in zip(self._logs, looked_up, strict=True)}
        if stops_at_start:
            windows = {where: (start, start) for where, (start, _) in windows.items()}
        self._check_readable(windows)
        return windows

    def _window(self, log: PartitionLog) -> Window:
        """The offsets to show; an end behind the log's is not there yet, and nobody's loss."""
        start, stop = self._request.start, self._request.stop
        if isinstance(start, LastRecords):
            last = min(self._offset(log, stop), log.end_from(log.earliest))
            from tieredstore.reading import start_of_last

            first = start_of_last(
                log, start.count, last,
                source=self._source, query=self._query, settings=self._settings, reader=self._reader,
            )  # fmt: skip
            return first, last
        first = log.earliest if start is None else self._offset(log, start)
        end = log.end_from(first)
        last = end if stop is None else min(self._offset(log, stop), end)
        return first, max(first, last) if first <= end else first

    def _offset(self, log: PartitionLog, place: RecordPlace | None) -> int:
        if place is None or isinstance(place, LastRecords):
            return log.end
        if isinstance(place, int):
            return place
        from tieredstore.records import AtTime

        offset = log.offset_for_time(AtTime.of(place).timestamp_ms)
        return log.end if offset is None else offset

    def _check_readable(self, windows: Mapping[TopicPartition, Window]) -> None:
        start, stop = self._request.start, self._request.stop
        # The windows end where the logs do; what was asked for may lie behind that.
        asked = {
            where: (first, max(last, stop) if isinstance(stop, int) else last)
            for where, (first, last) in windows.items()
        }
        from tieredstore.reading import check_readable

        check_readable(
            self._snapshot, self._query, asked,
            starts_there=asked if isinstance(start, int) else (),
            stops_there=asked if isinstance(stop, int) else (),
        )  # fmt: skip


def check_followed(request: LogRequest) -> None:
    """ConfigError for a request that cannot be followed."""
    if request.stop is not None:
        raise ConfigError("--follow has no end: leave --to out, or --follow")


def _check_number(option: str, offset: int, logs: Iterable[PartitionLog]) -> None:
    """Refuse a number that lies beyond the logs; tell on stderr of one within them that looks like a time."""
    check_offset(offset, {f"{log.topic}-{log.partition}": log.end for log in logs})
    hint = hint_of_number(offset)
    if hint is not None:
        complain(f"{option} {offset} is taken for an offset; {hint}")
