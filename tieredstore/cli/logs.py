"""What ``tieredstore cat`` shows of bucket and broker as one log, once or for as long as it grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tieredstore.cli.output import complain
from tieredstore.cli.record_rows import SHOWN, arrow_module
from tieredstore.errors import ConfigError
from tieredstore.model import TopicPartition, Uuid

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.partitions import LogQuery, LogSnapshot, PartitionLog
    from tieredstore.remote.source import SegmentSource

WindowEdge: TypeAlias = int | datetime
"""Where the records to show begin or end: an offset or a time."""

_POLL_S: Final = 1.0

ACCEPT_LOSS: Final = "use --data-loss report"
"""What a person does who puts up with losses."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What is to be shown: of a topic, or of one of its partitions, from one offset or time up to another."""

    topic: str
    partition: int | None
    start: WindowEdge | None
    stop: WindowEdge | None
    isolation: Any
    data_loss: Any
    topic_id: str | None
    client: Mapping[str, str] | None

    def query(self) -> LogQuery:
        """The same, as the logs are asked; ConfigError names the extra that is missing."""
        partitions = arrow_module("tieredstore.partitions")
        log_query = arrow_module("tieredstore.partitions.log_query")
        one = self.partition is not None
        query: LogQuery = partitions.LogQuery(
            partitions.Assign(((self.topic, self.partition),)) if one else partitions.Subscribe((self.topic,)),
            isolation=self.isolation,
            on_data_loss=self.data_loss,
            topic_ids={} if self.topic_id is None else {self.topic: Uuid.parse(self.topic_id)},
            client=self.client,
            timeout_s=log_query.timeout_of(self.client or {}),
            words=partitions.QueryWords(accept_loss=ACCEPT_LOSS, topic_ids="--topic-id", choose_topic_id="--topic-id"),
        )
        return query


def records_across_seam(source: SegmentSource, request: LogRequest) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Record batches with their partitions, one partition after the other, up to where the logs end now."""
    partitions = arrow_module("tieredstore.partitions")
    settings = arrow_module("tieredstore.records.settings").ReadSettings(columns=SHOWN)
    query = request.query()
    snapshot = _snapshot(source, query)
    with nullcontext() if query.client is None else partitions.open_reader(query) as reader:
        windows = {log.where: _window(log, request) for log in _logs(snapshot)}
        _check_readable(snapshot, query, request, windows)
        for log in _logs(snapshot):
            start, stop = windows[log.where]
            batches = partitions.read_window(
                log, start, stop, source=source, query=query, settings=settings, reader=reader
            )
            with closing(batches):
                for records in batches:
                    yield log.partition, records


def records_as_they_come(source: SegmentSource, request: LogRequest) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Record batches with their partitions, first those that there are and then those that come, without an end."""
    if request.stop is not None:
        raise ConfigError("--follow has no end: leave --to out, or --follow")
    partitions = arrow_module("tieredstore.partitions")
    settings = arrow_module("tieredstore.records.settings").ReadSettings(columns=SHOWN)
    query = request.query()
    snapshot = _snapshot(source, query)
    starts: dict[TopicPartition, int] = {log.where: _window(log, request)[0] for log in _logs(snapshot)}
    _check_readable(snapshot, query, request, {where: (start, start) for where, start in starts.items()})
    with partitions.LogTail(source, query, starts, settings=settings) as tail:
        while True:
            tail_records = tail.poll(_POLL_S)
            if tail_records is not None:
                yield tail_records.where[1], tail_records.records


def _snapshot(source: SegmentSource, query: LogQuery) -> LogSnapshot:
    """The logs as they are now; what does not count or does not belong together is told of on stderr."""
    snapshot: LogSnapshot = arrow_module("tieredstore.partitions").LogSnapshot.take(source, query)
    for problem in snapshot.problems:
        complain(problem)
    snapshot.check_selected(query, source)
    return snapshot


def _check_readable(
    snapshot: LogSnapshot, query: LogQuery, request: LogRequest, windows: Mapping[TopicPartition, tuple[int, int]]
) -> None:
    """DataLoss by the policy for what is asked for and cannot be read."""
    stop = request.stop
    # The windows end where the logs do; what was asked for may lie behind that.
    asked = {
        where: (first, max(last, stop) if isinstance(stop, int) else last) for where, (first, last) in windows.items()
    }
    arrow_module("tieredstore.partitions").check_readable(
        snapshot, query, asked,
        starts_there=asked if isinstance(request.start, int) else (),
        stops_there=asked if isinstance(stop, int) else (),
    )  # fmt: skip


def _logs(snapshot: LogSnapshot) -> list[PartitionLog]:
    return [log for _, log in sorted(snapshot.logs.items())]


def _window(log: PartitionLog, request: LogRequest) -> tuple[int, int]:
    """The offsets to show; an end behind the log's is not there yet, and nobody's loss."""
    start, stop = request.start, request.stop
    if isinstance(start, int) and isinstance(stop, int) and start > stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop}: the window ends before it begins")
    first = log.earliest if start is None else _offset(log, start)
    end = log.end_from(first)
    last = end if stop is None else min(_offset(log, stop), end)
    return first, max(first, last) if first <= end else first


def _offset(log: PartitionLog, edge: WindowEdge) -> int:
    if isinstance(edge, int):
        return edge
    timestamp_ms: int = arrow_module("tieredstore.records").AtTime.of(edge).timestamp_ms
    offset = log.offset_for_time(timestamp_ms)
    return log.end if offset is None else offset
