"""A topic's log at one moment, and what is read of it."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import Isolation, Uuid, check_offset
from tieredstore.partitions.log import OffsetWindow, PartitionLog
from tieredstore.partitions.selections import Assign, Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import losses_between, report_losses
from tieredstore.reading.query import LogQuery, QueryWords, timeout_of
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.unreadable import check_readable
from tieredstore.records.settings import OnDataLoss
from tieredstore.records.topic_records import AtTime, Place

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.remote.source import SegmentSource

Places: TypeAlias = "Place | Mapping[int, Place] | None"
"""Where a read begins or ends: in each partition, or by the partition's number."""

_WORDS: Final = QueryWords()
_MOST_READERS: Final = 8


def default_parallelism() -> int:
    """As many as this process has cores, eight at most."""
    return max(1, min(_MOST_READERS, len(os.sched_getaffinity(0))))


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The partitions of one topic, or some of them, as bucket and broker had them. Close it."""

    reader: TopicReader
    topic: str
    snapshot: LogSnapshot

    @property
    def query(self) -> LogQuery:
        """What is read, and how."""
        return self.reader.query

    @classmethod
    def take(
        cls,
        source: SegmentSource,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        isolation: Isolation = "read_committed",
        on_data_loss: OnDataLoss = "fail",
        client: Mapping[str, str] | None = None,
        topic_id: Uuid | None = None,
        words: QueryWords = _WORDS,
    ) -> Self:
        """List the bucket, and ask the broker if there is a ``client``. ResourceNotFound for what is not there."""
        query = LogQuery(
            Subscribe((topic,)) if partitions is None else Assign(tuple((topic, number) for number in partitions)),
            isolation=isolation,
            on_data_loss=on_data_loss,
            topic_ids={} if topic_id is None else {topic: topic_id},
            client=client,
            timeout_s=timeout_of(client or {}),
            words=words,
        )
        reader = TopicReader(lambda: source, query)
        try:
            return cls(reader, topic, reader.snapshot())
        except BaseException:
            reader.close()
            raise

    def close(self) -> None:
        """Close the connections to the broker, if there are any."""
        self.reader.close()

    def windows(self, starts: Places, stops: Places) -> dict[TopicPartition, OffsetWindow]:
        """The offsets (half-open) of each partition from ``starts`` up to ``stops``, as :func:`read_topic` has them."""
        self._check_named(starts)
        self._check_named(stops)
        for places in (starts, stops):
            self._check_reached(places)
        windows: dict[TopicPartition, OffsetWindow] = {}
        for where, log in sorted(self.snapshot.logs.items()):
            start, stop = _place_of(starts, where), _place_of(stops, where)
            if isinstance(start, int) and isinstance(stop, int) and start > stop:
                raise ConfigError(f"there are no offsets from {start} up to {stop}: the window ends before it begins")
            first = log.earliest if start is None else _offset(log, start)
            end = log.end_from(first)
            last = end if stop is None else min(end, _offset(log, stop))
            # An offset beyond the end of this log is not there yet, and times need not ascend with offsets.
            windows[where] = first, max(first, last)
        return windows

    def _check_named(self, places: Places) -> None:
        if isinstance(places, Mapping):
            missing = [number for number in places if (self.topic, number) not in self.snapshot.logs]
            if missing:
                raise ConfigError(f"there is no partition {missing[0]} of {self.topic} among those that are read")

    def _check_reached(self, places: Places) -> None:
        """Refuse an offset that no log reaches for which it was given."""
        ends: dict[int, dict[str, int]] = {}
        for where, log in sorted(self.snapshot.logs.items()):
            place = _place_of(places, where)
            if isinstance(place, int):
                ends.setdefault(place, {})[f"{log.topic}-{log.partition}"] = log.end
        for offset, logs in ends.items():
            check_offset(offset, logs)

    def judge(self, windows: Mapping[TopicPartition, Sequence[OffsetWindow]], starts: Places, stops: Places) -> None:
        """DataLoss for what of the windows nobody has. By the other policy it is told of as each piece is planned."""
        reach = {where: (of_log[0][0], of_log[-1][1]) for where, of_log in windows.items() if of_log}
        check_readable(
            self.snapshot, self.query, reach,
            starts_there=[where for where in reach if isinstance(_place_of(starts, where), int)],
            stops_there=[where for where in reach if isinstance(_place_of(stops, where), int)],
        )  # fmt: skip
        if self.query.fails_on_loss:
            report_losses(
                (
                    loss
                    for where, of_log in windows.items()
                    for window in of_log
                    for loss in losses_between(self.snapshot.logs[where], *window)
                ),
                self.query,
            )


def _place_of(places: Places, where: TopicPartition) -> Place | None:
    return places.get(where[1]) if isinstance(places, Mapping) else places


def _offset(log: PartitionLog, place: Place) -> int:
    if isinstance(place, AtTime):
        offset = log.offset_for_time(place.timestamp_ms)
        return log.end if offset is None else offset
    try:
        is_offset = 0 <= operator.index(place) <= MAX_OFFSET
    except TypeError:
        is_offset = False
    if not is_offset:
        raise ConfigError(f"{place} is not an offset: those are from 0 to {MAX_OFFSET}")
    return place
