"""Where the starting and ending offsets that the options name lie in the logs as they are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.spark.source.selections import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    PartitionTimestamps,
    SpecificOffsets,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tieredstore.spark.source.log_snapshot import LogSnapshot
    from tieredstore.spark.source.options import SourceOptions
    from tieredstore.spark.source.partition_log import PartitionLog

_log: Final = logging.getLogger(__name__)

_SHOWN: Final = 5


def starting_offsets(snapshot: LogSnapshot, options: SourceOptions) -> dict[TopicPartition, int]:
    """The first offset to read of each partition; one before the earliest is left as it is, for planning to judge.

    ConfigError if the options name other partitions than there are, or a time that a partition has no record of. An
    offset beyond the log's end is lost data: DataLoss, or by ``failOnDataLoss`` a warning and the end instead. Times
    cost requests.
    """
    _check_named(snapshot, options.starting, "startingOffsets")
    return {where: _start(log, options) for where, log in snapshot.logs.items()}


def ending_offsets(snapshot: LogSnapshot, options: SourceOptions) -> dict[TopicPartition, int]:
    """One more than the last offset to read of each partition: the log's end for a time of which there is no record.

    An offset beyond the log's end is left as it is, for planning to judge. ConfigError if the options name other
    partitions than there are. Times cost requests.
    """
    _check_named(snapshot, options.ending, "endingOffsets")
    ends = {where: _position(log, options.ending) for where, log in snapshot.logs.items()}
    return {where: snapshot.logs[where].end if end is None else end for where, end in ends.items()}


def offset_windows(snapshot: LogSnapshot, options: SourceOptions) -> dict[TopicPartition, tuple[int, int]]:
    """Starting and ending offset (half-open) of each partition; ConfigError if one starts after its end."""
    starts, ends = starting_offsets(snapshot, options), ending_offsets(snapshot, options)
    if not isinstance(options.ending, SpecificOffsets):
        _wait_for_decisions(snapshot, starts, ends)
    for (topic, partition), start in starts.items():
        if ends[topic, partition] < start:
            raise ConfigError(
                f"{topic}-{partition} would start at offset {start} and end before offset {ends[topic, partition]}: "
                "its starting and ending options contradict each other"
            )
    return {where: (start, ends[where]) for where, start in starts.items()}


def _wait_for_decisions(
    snapshot: LogSnapshot, starts: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
) -> None:
    """End before a transaction that only a segment to come decides; with a warning, for it is not the log's end."""
    for where, start in starts.items():
        end = snapshot.logs[where].end_from(start)
        if start <= end < ends[where]:
            _log.warning(
                "%s is read up to offset %d: the broker has deleted what follows, and in the bucket it is of a "
                "transaction that a segment to come decides",
                _name(where),
                end - 1,
            )
            ends[where] = end


def _start(log: PartitionLog, options: SourceOptions) -> int:
    start = _position(log, options.starting)
    if start is None:
        if options.timestamp_strategy == "error":
            raise ConfigError(
                f"{_name(log.where)} has no record of {_time(log, options.starting)} ms or later: start earlier, or "
                "set startingOffsetsByTimestampStrategy to latest to start such partitions at their end"
            )
        return log.end
    if start > log.end:
        sentence = f"the options start {_name(log.where)} at offset {start}, and its log ends before offset {log.end}"
        if options.fail_on_data_loss:
            raise DataLoss(f"{sentence}; start there, or set failOnDataLoss to false to start at the end")
        _log.warning("%s", sentence)
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


def _check_named(snapshot: LogSnapshot, spec: OffsetSpec, option: str) -> None:
    """As Spark's Kafka source: an option that names partitions names all of them, and no others."""
    match spec:
        case SpecificOffsets(offsets=named):
            hint = "-2 stands for the earliest offset and -1 for the latest"
        case PartitionTimestamps(timestamps=named):
            option, hint = f"{option}ByTimestamp", "each partition has a time of its own there"
        case _:
            return
    missing, surplus = snapshot.logs.keys() - named.keys(), named.keys() - snapshot.logs.keys()
    if missing:
        raise ConfigError(
            f"the option {option} leaves out {_names(missing)}: name all partitions that are read; {hint}"
        )
    if surplus:
        raise ConfigError(f"the option {option} names {_names(surplus)}: there is no such partition to read")


def _names(places: set[TopicPartition]) -> str:
    shown = [_name(where) for where in sorted(places)[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(shown) + more


def _name(where: TopicPartition) -> str:
    return f"{where[0]}-{where[1]}"
