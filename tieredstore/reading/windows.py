"""Converts requested places (an offset, a time, or a number of last records) to windows of offsets in the present logs.

Commands and queries clamp places. An end beyond the log, or a time without a later record, becomes the end of the log.
Spark's options are exact, as in Spark's Kafka source.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import AtTime, Earliest, Last, Latest, Place, Places, TopicPartition, check_offset, name_of
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading.losses import Loss, Losses, losses_between

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5

_END: Final = Latest()

OffsetAtTime: TypeAlias = Callable[["PartitionLog", int], int | None]
"""Returns the offset of a log's first record at or after a time (ms). Returns None if the log has no such record before
its end."""

StartOfLast: TypeAlias = Callable[["PartitionLog", int, int], int]
"""A function of a log, a number and an end offset. It returns the offset where the last ``number`` records before the
end begin."""

Windows: TypeAlias = "dict[TopicPartition, OffsetWindow]"
"""The offsets to read of each partition; the end is exclusive."""


def time_offset(
    source: RemoteStorageManager, cluster: LiveCluster | None, log: PartitionLog, timestamp_ms: int
) -> int | None:
    """Return the offset of the first record at or after ``timestamp_ms``. Return None if the log has no such record
    before its end.
    """
    if log.lineage is not None:
        record = offset_for_time(source, log.lineage, timestamp_ms)
        if record is not None and record.offset < log.seam:
            return record.offset
    if cluster is None or not log.on_broker:
        return None
    live_offset = cluster.offsets_for_times({log.where: timestamp_ms})[log.where]
    # The bucket is read up to the seam, and has no record at or after this time. If the broker's answer is below the
    # seam, return the seam.
    offset = log.end if live_offset is None else max(live_offset, log.seam)
    return offset if offset < log.end else None


def place_of(places: Places, where: TopicPartition, default: Place = _END) -> Place:
    """Return the requested place in a partition, or ``default``."""
    return places.get(where, default) if isinstance(places, Mapping) else places


def with_offsets(places: Places, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
    """Return the partitions whose requested place is an offset."""
    return frozenset(where for where in partitions if isinstance(place_of(places, where), int))


@dataclass(frozen=True, slots=True)
class PlaceLookup:
    """Finds the offsets of places (such as a time) in the logs of a snapshot. Looking up a time or the last records
    takes requests."""

    snapshot: LogSnapshot
    query: LogQuery
    offset_at: OffsetAtTime
    start_of_last: StartOfLast | None = None

    def clamp(self, starts: Places, stops: Places) -> Windows:
        """Return the offsets of each partition from ``starts`` up to ``stops``, clamped to its log. The mappings may
        omit partitions.

        Raise ConfigError for partitions that do not exist, and for offsets beyond the ends of all logs.
        """
        for places in (starts, stops):
            self._check_there(places)
            self._check_reached(places)
        logs = [log for _, log in sorted(self.snapshot.logs.items())]
        # Find times and last records in parallel.
        with ThreadPool(READERS, "tieredstore-windows") as pool:
            found = in_parallel(pool, lambda log: self._clamp(log, starts, stops), logs, at_once=2 * READERS)
            return {log.where: window for log, window in zip(logs, found, strict=True)}

    def find_starts(
        self, places: Places, *, if_too_late: Literal["error", "latest"] = "error"
    ) -> dict[TopicPartition, int]:
        """Return the first offset to read of each partition. A start before the log's first offset is kept; planning
        reports the missing offsets.

        Raise ConfigError if a mapping does not name exactly the existing partitions. If a partition has no record at or
        after the requested time, raise ConfigError. With ``if_too_late="latest"``, start at the log's end instead. The
        loss policy applies to an offset beyond the log's end. If the policy accepts the loss, start at the log's end.
        """
        words = self.query.words
        self._check_same(places, words.starting, words.starting_times)
        losses = Losses(self.query)
        return {where: self._start(log, places, if_too_late, losses) for where, log in self.snapshot.logs.items()}

    def find_ends(self, places: Places) -> dict[TopicPartition, int]:
        """Return the exclusive end of each partition. If no record is at or after a requested time, the end is the
        log's end.

        An end offset beyond the log's end is kept; planning reports the missing offsets. Raise ConfigError as
        :meth:`find_starts` does.
        """
        words = self.query.words
        self._check_same(places, words.ending, words.ending_times)
        ends = {where: self._offset(log, place_of(places, where)) for where, log in self.snapshot.logs.items()}
        # If no record is at or after the time, all records are before it. So use the log's end.
        return {where: self.snapshot.logs[where].end if end is None else end for where, end in ends.items()}

    def exact(self, starting: Places, ending: Places, *, if_too_late: Literal["error", "latest"] = "error") -> Windows:
        """Return the exact start and end offset of each partition. Raise ConfigError if a start is after its end."""
        starts = self.find_starts(starting, if_too_late=if_too_late)
        ends = self.find_ends(ending)
        named = with_offsets(ending, ends)
        for where, start in starts.items():
            # Keep an end that the caller named as an offset. Any other end may move to an earlier offset.
            if where not in named:
                ends[where] = self._end_before_undecided(where, start, ends[where])
            if ends[where] < start:
                raise ConfigError(
                    f"{name_of(where)} would start at offset {start} and end before offset {ends[where]}: its starting "
                    "and ending options contradict each other"
                )
        return {where: (start, ends[where]) for where, start in starts.items()}

    def check_readable(self, windows: Mapping[TopicPartition, OffsetWindow], starts: Places, stops: Places) -> None:
        """Apply the query's loss policy to unreadable segments that may have records of the windows, and to missing
        offsets right before a start that was given as a time."""
        # Check up to the requested end. A window is clamped to the end of its log, but the caller may have requested
        # more.
        asked = {
            where: (first, max(last, stop) if isinstance(stop := place_of(stops, where), int) else last)
            for where, (first, last) in windows.items()
        }
        # If the last N records begin after the log's first offset, all N were found. So an unreadable segment before
        # them is no loss.
        counted = {
            where
            for where, (first, _) in asked.items()
            if isinstance(place_of(starts, where), Last) and first > self.snapshot.logs[where].earliest
        }
        losses = Losses(self.query)
        losses.check_readable(
            self.snapshot, asked,
            starts_there=with_offsets(starts, asked) | counted, stops_there=with_offsets(stops, asked),
        )  # fmt: skip
        # The look-up of a time skips missing records, but some of them may be at or after this time.
        logs = {where: self.snapshot.logs[where] for where in asked if isinstance(place_of(starts, where), AtTime)}
        losses.accept_missing(
            lost
            for where, log in logs.items()
            for lost in losses_between(log, log.earliest, asked[where][0])
            if lost.stop == asked[where][0]
        )

    def _clamp(self, log: PartitionLog, starts: Places, stops: Places) -> OffsetWindow:
        start, stop = place_of(starts, log.where, Earliest()), place_of(stops, log.where)
        if isinstance(start, int) and isinstance(stop, int) and start > stop:
            raise ConfigError(f"there are no offsets from {start} up to {stop}: the window ends before it begins")
        last = self._reach(log, stop)
        if isinstance(start, Last) and self.start_of_last is not None:
            last = min(last, log.end_from(log.earliest))
            return self.start_of_last(log, start.count, last), last
        first = self._reach(log, start)
        # Clamp the end to the log's end. Also clamp the end to the start. Timestamps need not ascend with offsets, so
        # an end found by time may come before the start.
        return first, max(first, min(last, log.end_from(first)))

    def _start(self, log: PartitionLog, places: Places, if_too_late: Literal["error", "latest"], losses: Losses) -> int:
        place = place_of(places, log.where, Earliest())
        start = self._offset(log, place)
        if start is None:
            if if_too_late == "error":
                time = place.timestamp_ms if isinstance(place, AtTime) else place
                raise ConfigError(
                    f"{name_of(log.where)} has no record of {time} ms or later: start earlier, or "
                    f"{self.query.words.start_late} to start such partitions at their end"
                )
            return log.end
        # The caller named this offset. If it existed once, the log has been truncated since. So a start beyond the end
        # counts as a loss.
        if start > log.end:
            starts = f"{self.query.words.starts} {name_of(log.where)} at offset {start}"
            way_out = "; start earlier, or {} to start at the end"
            losses.accept(Loss(f"{starts}, but its log ends before offset {log.end}", way_out))
        return min(start, log.end)

    def _end_before_undecided(self, where: TopicPartition, start: int, stop: int) -> int:
        """If the window contains a transaction without an outcome, return the transaction's first offset as the end,
        and log a warning.
        """
        end = self.snapshot.logs[where].end_from(start)
        if not start <= end < stop:
            return stop
        _logger.warning(
            "%s is read up to offset %d: later records are deleted from the broker, and in the bucket they belong to a "
            "transaction whose outcome is in no segment yet",
            name_of(where),
            end - 1,
        )
        return end

    def _reach(self, log: PartitionLog, place: Place) -> int:
        offset = self._offset(log, place)
        return log.end if offset is None else offset

    def _offset(self, log: PartitionLog, place: Place) -> int | None:
        """Convert a place to an offset. Return None if no record is at or after the requested time."""
        match place:
            case Earliest():
                return log.earliest
            case Latest():
                return log.end
            case AtTime(timestamp_ms=timestamp_ms):
                return self.offset_at(log, timestamp_ms)
            case Last(count=count):
                raise ConfigError(f"-{count} counts records from the end, so it can be a start but not an end")
            case _:
                return _check_offset(place)

    def _check_there(self, places: Places) -> None:
        missing = [where for where in places if where not in self.snapshot.logs] if isinstance(places, Mapping) else []
        if missing:
            topic, number = missing[0]
            raise ConfigError(f"the read has no partition {number} of {topic}")

    def _check_reached(self, places: Places) -> None:
        """Raise ConfigError for an offset that no log reaches."""
        ends: dict[int, dict[str, int]] = {}
        for where, log in sorted(self.snapshot.logs.items()):
            place = place_of(places, where)
            if isinstance(place, int):
                # An unreadable segment after the log's end may have the offset, so leave it to the loss policy.
                hides = any(
                    problem.start_offset >= log.end and problem.segment_id.topic_id_partition == log.stored_partition
                    for problem in self.snapshot.unreadable
                )
                ends.setdefault(place, {})[name_of(where)] = MAX_OFFSET if hides else log.end
        for offset, logs in ends.items():
            check_offset(offset, logs)

    def _check_same(self, places: Places, offsets_word: str, times_word: str) -> None:
        """Raise ConfigError if a mapping does not name exactly the partitions that are read, as Spark's Kafka source
        requires.
        """
        if not isinstance(places, Mapping):
            return
        word, hint = offsets_word, "-2 stands for the earliest offset and -1 for the latest"
        if any(isinstance(place, AtTime) for place in places.values()):
            word, hint = times_word, "give each partition its own time"
        missing, surplus = self.snapshot.logs.keys() - places.keys(), places.keys() - self.snapshot.logs.keys()
        if missing:
            raise ConfigError(f"{word} leaves out {_names(missing)}: name all partitions that are read; {hint}")
        if surplus:
            raise ConfigError(f"{word} names {_names(surplus)}: there is no such partition to read")


def _check_offset(place: int) -> int:
    try:
        is_offset = 0 <= operator.index(place) <= MAX_OFFSET
    except TypeError:
        is_offset = False
    if not is_offset:
        raise ConfigError(f"{place} is not an offset: offsets are from 0 to {MAX_OFFSET}")
    return place


def _names(partitions: set[TopicPartition]) -> str:
    shown = [name_of(where) for where in sorted(partitions)[:_SHOWN]]
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return ", ".join(shown) + more
