"""The position from which a run of ``restore produce`` begins or continues, and the checks of it.

A run and its ``--dry-run`` share these checks, so that a plan shows what a run would refuse. This module only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import Uuid, name_of
from tieredstore.restore.produce.offset_map import OffsetMapFile
from tieredstore.restore.produce.runs import RunPosition
from tieredstore.restore.produce.target import TIMESTAMP_TYPE

if TYPE_CHECKING:
    from tieredstore.live import LiveReader
    from tieredstore.model import TopicPartition
    from tieredstore.restore.produce.source import SourceTopics
    from tieredstore.restore.produce.target import TargetTopic

_logger: Final = logging.getLogger(__name__)


def map_file(source: SourceTopics) -> OffsetMapFile:
    """Return the offset map of the run in the bucket."""
    return OffsetMapFile(source.bucket.store, source.bucket.layout.prefix, source.options.run)


def check_new(source: SourceTopics) -> None:
    """Raise ConfigError if the bucket has an offset map of an earlier run of the same name."""
    if not map_file(source).is_new:
        raise ConfigError(
            f"the bucket has the offset map of an earlier run {source.options.run}, into another cluster or into "
            "topics that were created again: give this run another name (--run)"
        )


def first_position(source: SourceTopics, reader: LiveReader, targets: Sequence[TargetTopic]) -> RunPosition:
    """Return the position at which a new run begins. Raise ConfigError as :func:`check_new` does."""
    options, ranges = source.options, source.ranges()
    check_new(source)
    return RunPosition(
        topics=dict(options.topics),
        topic_ids=source.topic_ids,
        partitioner=options.partitioner,
        sources=ranges,
        ends=reader.cluster.earliest_offsets(_target_partitions(source, targets, ranges)),
        append_times={each.topic: each.own.get(TIMESTAMP_TYPE) for each in targets if each.has_append_times},
        target_ids={each.topic: str(each.topic_id) for each in targets},
    )


def check_same(source: SourceTopics, position: RunPosition, targets: Sequence[TargetTopic]) -> None:
    """Raise ConfigError if the run began with other topics or with another partitioner, or if a target topic was
    created again since then.
    """
    options, run = source.options, source.options.run
    if position.topics != dict(options.topics) or position.partitioner != options.partitioner:
        raise ConfigError(
            f"the run {run} began with other topics or another partitioner: give this run another name (--run)"
        )
    for topic, topic_id in position.topic_ids.items():
        if source.topic_ids.get(topic) == topic_id:
            continue
        if source.is_backup or Uuid.parse_canonical(topic_id) is None:  # only a bucket's topic has a Uuid
            raise ConfigError(
                f"the run {run} began with another bucket or backup: continue it with that one, or give this run "
                "another name (--run)"
            )
        raise ConfigError(
            f"the run {run} began with the topic id {topic_id} of {topic}, and the bucket's newest is "
            f"{source.topic_ids.get(topic)}: continue it with --topic-id {topic}={topic_id}, or give this run another "
            "name (--run)"
        )
    for target in targets:
        # An earlier release did not record the ids.
        if position.target_ids.get(target.topic, str(target.topic_id)) != str(target.topic_id):
            raise ConfigError(
                f"topic {target.topic} was created again after the run {run} began, so it lacks the run's records: "
                "restore by a run of another name (--run)"
            )


def check_stops(source: SourceTopics, position: RunPosition) -> None:
    """Log a warning if the source now ends at other offsets than when the run began. Raise ConfigError if the caller
    gave other ends (``--to``).
    """
    run, now = source.options.run, source.ranges()
    others = [
        (where, known, after.stop)
        for where, after in sorted(now.items())
        if (known := position.sources.get(where)) is None or known.stop != after.stop
    ]
    if not others:
        return
    where, known, stop = others[0]
    ends = f"the run {run} {'lacks' if known is None else f'ends at offset {known.stop} of'} {name_of(where)}"
    if source.cut is not None:
        raise ConfigError(
            f"{ends}, as when it began, but --to or --cut-file end at {stop}: continue it without them, or give this "
            "run another name (--run)"
        )
    more = f"; {len(others) - 1} more partitions differ" if len(others) > 1 else ""
    _logger.warning("%s, as when it began: the source now ends at offset %d%s", ends, stop, more)


def next_offsets(
    source: SourceTopics, reader: LiveReader, targets: Sequence[TargetTopic], position: RunPosition
) -> dict[TopicPartition, int]:
    """Return the next offset of each target partition. Raise ConfigError if a partition ends before the position, or
    has records of another producer, and BrokerUnavailableError if a transaction is open.

    Once the run has produced its last record, it only has to write the offset map. So other producers may then write to
    the targets, and partitions may be added.
    """
    if position.is_produced:
        return _ends(reader, position.ends)
    partitions, before = _target_partitions(source, targets, position.sources), position.ends
    if set(partitions) != set(before):
        raise ConfigError(
            f"the target of the run {source.options.run} has {len(partitions)} partitions, but had {len(before)} when "
            "the run began, so keys would go to other partitions: restore into a new topic by a run of another name "
            "(--run)"
        )
    return check_ends(reader, before)


def check_ends(reader: LiveReader, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition. Raise ConfigError if a partition ends before its offset in ``ends``, or
    has a committed record at or after this offset; the error names the record.

    Aborted records and transaction markers at or after these offsets are no error. Killed processes leave them behind.
    Raise BrokerUnavailableError if a transaction is open, because its records cannot be judged yet.
    """
    actual, begins = _ends(reader, ends), reader.cluster.earliest_offsets(ends)
    decided = reader.cluster.end_offsets(ends, "read_committed")
    for (topic, number), end in sorted(ends.items()):
        where, stop = (topic, number), min(actual[topic, number], decided[topic, number])
        start = max(end, begins[where])
        for batch in reader.read(topic, number, start, stop, columns=("offset",)) if start < stop else ():
            raise ConfigError(
                f"{topic}-{number} has a record at offset {int64_values(batch, 'offset')[0]} that this run has not "
                "written: restore into a topic that is empty and that nothing else writes to"
            )
    for (topic, number), end in sorted(actual.items()):
        if decided[topic, number] < end:
            raise BrokerUnavailableError(
                f"a transaction of another producer is open in {topic}-{number}, from offset {decided[topic, number]} "
                "on: end that producer, or wait until the transaction times out"
            )
    return actual


def _ends(reader: LiveReader, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    actual = reader.cluster.end_offsets(ends, "read_uncommitted")
    for (topic, number), end in sorted(ends.items()):
        if (stop := actual[topic, number]) < end:
            raise ConfigError(
                f"{topic}-{number} ends at offset {stop}, but the run has written up to {end}: the topic was created "
                "again; restore by a run of another name (--run)"
            )
    return actual


def _target_partitions(
    source: SourceTopics, targets: Sequence[TargetTopic], sources: Collection[TopicPartition]
) -> list[TopicPartition]:
    options = source.options
    return [
        (target.topic, each)
        for topic, target in zip(options.topics, targets, strict=True)
        for each in (
            sorted(number for name, number in sources if name == topic)
            if options.partitioner == "keep"
            else range(target.partition_count)
        )
    ]
