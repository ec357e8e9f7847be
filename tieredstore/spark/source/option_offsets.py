"""Where reading starts and ends, as the options say it; in the precedence of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.errors import ConfigError
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
from tieredstore.spark.source.option_values import OptionTexts, wrong

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA":{"0":1735689600000,"1":1735689600000}}'


def starting_spec(texts: OptionTexts, default: OffsetSpec, *, streaming: bool) -> OffsetSpec:
    """Where reading starts; ConfigError for a batch that would start at the end."""
    spec = _spec(texts, "starting", default)
    if streaming:
        return spec
    if isinstance(spec, Latest):
        raise ConfigError("the option startingOffsets is latest, where a batch has nothing to read; leave it out")
    _refuse_offset(spec, LATEST_OFFSET, "startingOffsets has -1, the latest offset,", "nothing to read there")
    return spec


def ending_spec(texts: OptionTexts) -> OffsetSpec:
    """Where a batch ends; ConfigError for one that would end where the log begins."""
    spec = _spec(texts, "ending", Latest())
    if isinstance(spec, Earliest):
        raise ConfigError("the option endingOffsets is earliest, before which there is nothing to read; leave it out")
    _refuse_offset(spec, EARLIEST_OFFSET, "endingOffsets has -2, the earliest offset,", "nothing to read before it")
    return spec


def check_pair(starting: OffsetSpec, ending: OffsetSpec) -> None:
    """ConfigError where both name partitions and these differ, or where one starts after its end."""
    match starting, ending:
        case SpecificOffsets(offsets=first), SpecificOffsets(offsets=last):
            _check_numbers(first, last, "startingOffsets", "endingOffsets")
        case PartitionTimestamps(timestamps=first), PartitionTimestamps(timestamps=last):
            _check_numbers(first, last, "startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
        case GlobalTimestamp(timestamp_ms=since), GlobalTimestamp(timestamp_ms=until) if since > until:
            raise ConfigError(f"startingTimestamp is {since}, after endingTimestamp, which is {until}")
        case _:
            pass


def _check_numbers(
    first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int], start_name: str, end_name: str
) -> None:
    if different := sorted(first.keys() ^ last.keys()):
        topic, partition = different[0]
        one, other = (start_name, end_name) if different[0] in first else (end_name, start_name)
        raise ConfigError(f"{one} names {topic}-{partition} and {other} does not: both must name the same partitions")
    for (topic, partition), start in first.items():
        # What -1 and -2 stand for only the log tells.
        if 0 <= last[topic, partition] < start:
            raise ConfigError(
                f"{topic}-{partition} would start at {start} ({start_name}), after its end at "
                f"{last[topic, partition]} ({end_name})"
            )


def _spec(texts: OptionTexts, side: str, default: OffsetSpec) -> OffsetSpec:
    # The first that is given counts, as in Spark's Kafka source; the others are not looked at.
    if (timestamp := texts.whole(f"{side}Timestamp", 0)) is not None:
        return GlobalTimestamp(timestamp)
    if (timestamps := texts.of_partitions(f"{side}OffsetsByTimestamp", 0, _TIMES_EXAMPLE)) is not None:
        return PartitionTimestamps(timestamps)
    name = f"{side}Offsets"
    text = texts.text(name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return Earliest() if text.lower() == "earliest" else Latest()
    if not text.startswith("{"):
        raise wrong(name, text, f"earliest, latest or JSON such as {_OFFSETS_EXAMPLE}")
    return SpecificOffsets(texts.of_partitions(name, EARLIEST_OFFSET, _OFFSETS_EXAMPLE) or {})


def _refuse_offset(spec: OffsetSpec, refused: int, what: str, why: str) -> None:
    partitions = (
        [where for where, offset in spec.offsets.items() if offset == refused]
        if isinstance(spec, SpecificOffsets)
        else []
    )
    if partitions:
        topic, partition = partitions[0]
        raise ConfigError(f"the option {what} for {topic}-{partition}: a batch has {why}")
