"""Where starting and ending offsets that are asked for lie in the logs as they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.model import TopicPartition
from tieredstore.partitions.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    PartitionTimestamps,
    SpecificOffsets,
)
from tieredstore.reading.losses import name_of

if TYPE_CHECKING:
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


def starting_offsets(
    snapshot: LogSnapshot, query: LogQuery, starting: OffsetSpec, *, if_too_late: Literal["error", "latest"] = "error"
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition; one before the earliest is left as it is, for planning to judge.

    ConfigError if ``starting`` names other partitions than there are, or a time that a partition has no record of,
    unless ``if_too_late`` has it start at its end. An offset beyond the log's end is lost data: DataLoss, or by the
    query's policy a warning and the end instead. Times cost requests.
    """
    _check_named(snapshot, starting, query.words.starting, query.words.starting_times)
    return {where: _start(log, query, starting, if_too_late) for where, log in snapshot.logs.items()}


def ending_offsets(snapshot: LogSnapshot, query: LogQuery, ending: OffsetSpec) -> dict[TopicPartition, int]:
    """One more than the last offset to read of each partition: the log's end for a time of which there is no record.

    An offset beyond the log's end is left as it is, for planning to judge. ConfigError if ``ending`` names other
    partitions than there are. Times cost requests.
    """
    _check_named(snapshot, ending, query.words.ending, query.words.ending_times)
    ends = {where: _position(log, ending) for where, log in snapshot.logs.items()}
    # If no record is so late, all of them are before that time.
    return {where: snapshot.logs[where].end if end is None else end for where, end in ends.items()}


def offset_windows(
    snapshot: LogSnapshot,
    query: LogQuery,
    starting: OffsetSpec,
    ending: OffsetSpec,
    *,
    if_too_late: Literal["error", "latest"] = "error",
) -> dict[TopicPartition, OffsetWindow]:
    """Starting and ending offset (half-open) of each partition; ConfigError if one starts after its end."""
    starts = starting_offsets(snapshot, query, starting, if_too_late=if_too_late)
    ends = ending_offsets(snapshot, query, ending)
    # An end that somebody names stays theirs, for planning to judge; one that was looked up may move.
    if not isinstance(ending, SpecificOffsets):
        _wait_for_decisions(snapshot, starts, ends)
    for where, start in starts.items():
        if ends[where] < start:
            raise ConfigError(
                f"{name_of(where)} would start at offset {start} and end before offset {ends[where]}: its starting and "
                "ending options contradict each other"
            )
    return {where: (start, ends[where]) for where, start in starts.items()}


def _wait_for_decisions(
    snapshot: LogSnapshot, starts: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
) -> None:
    """End before a transaction that only a segment to come decides; with a warning, for it is not the log's end."""
    for where, start in starts.items():
        end = snapshot.logs[where].end_from(start)
        if start <= end < ends[where]:
            _logger.warning(
                "%s is read up to offset %d: the broker has deleted what follows, and in the bucket it is of a "
                "transaction that a segment to come decides",
                name_of(where),
                end - 1,
            )
            ends[where] = end


def _start(log: PartitionLog, query: LogQuery, starting: OffsetSpec, if_too_late: Literal["error", "latest"]) -> int:
    start = _position(log, starting)
    if start is None:
        if if_too_late == "error":
            raise ConfigError(
                f"{name_of(log.where)} has no record of {_time(log, starting)} ms or later: start earlier, or "
                f"{query.words.start_late} to start such partitions at their end"
            )
        return log.end
    # Only an offset that was named can lie there. If it was right once, the log has been cut since.
    if start > log.end:
        sentence = (
            f"{query.words.starts} {name_of(log.where)} at offset {start}, and its log ends before offset {log.end}"
        )
        if query.fails_on_loss:
            raise DataLoss(f"{sentence}; start there, or {query.words.accept_loss} to start at the end")
        _logger.warning("%s", sentence)
        return log.end
    return start


def _position(log: PartitionLog, spec: OffsetSpec) -> int | None:
    """None where no record has the time that was asked for."""
    match spec:
        case Earliest():
            return log.earliest
        case Latest():
            return log.end
        case SpecificOffsets(offsets=offsets):
            # No offset is negative, so that the two stand-ins cannot be taken for one.
            return {EARLIEST_OFFSET: log.earliest, LATEST_OFFSET: log.end}.get(offsets[log.where], offsets[log.where])
        case GlobalTimestamp() | PartitionTimestamps():
            return log.offset_for_time(_time(log, spec))


def _time(log: PartitionLog, spec: OffsetSpec) -> int:
    match spec:
        case GlobalTimestamp(timestamp_ms=timestamp_ms):
            return timestamp_ms
        case PartitionTimestamps(timestamps=timestamps):
            return timestamps[log.where]
        case _:
            raise TypeError(f"{spec} names no time")


def _check_named(snapshot: LogSnapshot, spec: OffsetSpec, offsets_word: str, times_word: str) -> None:
    """As Spark's Kafka source: who names partitions names all of them, and no others."""
    match spec:
        case SpecificOffsets(offsets=named):
            word, hint = offsets_word, "-2 stands for the earliest offset and -1 for the latest"
        case PartitionTimestamps(timestamps=named):
            word, hint = times_word, "each partition has a time of its own there"
        case _:
            return
    missing, surplus = snapshot.logs.keys() - named.keys(), named.keys() - snapshot.logs.keys()
    if missing:
        raise ConfigError(f"{word} leaves out {_names(missing)}: name all partitions that are read; {hint}")
    if surplus:
        raise ConfigError(f"{word} names {_names(surplus)}: there is no such partition to read")


def _names(places: set[TopicPartition]) -> str:
    shown = [name_of(where) for where in sorted(places)[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(shown) + more
