"""``restore offsets``: the new offsets of the records of a run of ``restore produce``.

This module is separate from ``groups``, which uses the same map to move groups, and needs a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.options import Json, Store
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ResourceNotFoundError
from tieredstore.limits import MAX_OFFSET

if TYPE_CHECKING:
    from tieredstore.restore.produce.offset_map import OffsetMap


@dataclass(frozen=True, slots=True)
class _Moved:
    """Offsets of a source partition, and the offsets of the same records in one target partition. All offsets are
    inclusive, and None if there are no records."""

    topic: str
    partition: int
    first_offset: int | None
    last_offset: int | None
    target_topic: str
    target_partition: int | None = None
    target_first_offset: int | None = None
    target_last_offset: int | None = None
    records: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The target offset of a source offset. ``where`` is ``first_unread`` if keys were hashed again."""

    topic: str
    partition: int
    offset: int
    target_topic: str
    target_partition: int
    target_offset: int
    where: str
    difference: int = 0


def offsets(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of the run; without it, list all runs.")
    ] = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="A topic of the bucket.")] = None,
    partition: Annotated[
        int | None,
        typer.Argument(metavar="PARTITION", min=0, help="Partition of the topic: show all its ranges of offsets."),
    ] = None,
    old_offsets: Annotated[
        list[int] | None, typer.Argument(metavar="OFFSET", min=0, max=MAX_OFFSET, help="Old offsets to translate.")
    ] = None,
    *,
    store: Store,
    output: Json,
) -> None:
    """Show the offsets that the bucket's records got in a run of restore produce.

    An offset without a record becomes the offset of the next record. An offset beyond the restored end becomes the end.
    If keys were hashed again, there are no exact offsets. Then the first offset to read is shown for each new
    partition.

    Example: tieredstore restore offsets orders -c store.properties orders 3 1200 1500
    """
    from tieredstore.restore.produce.offset_map import list_runs, load_map

    with store.open() as bucket:
        opened = bucket.opened()
        if run is None:
            names = list_runs(opened.store, opened.prefix)
            _NAME.show(names, as_json=output.as_json, empty="no runs found", summary={"runs": len(names)})
            return
        offset_map = load_map(opened.store, opened.prefix, run)
    if topic is not None and topic not in offset_map.topics:
        raise ResourceNotFoundError(f"the run {run} did not restore {topic}: see tieredstore restore offsets {run}")
    if topic is None or partition is None:
        names = [topic] if topic is not None else list(offset_map.topics)
        moved = [each for name in names for each in _partitions(offset_map, name)]
        _MOVED.show(moved, as_json=output.as_json, empty="no records yet", summary={"partitions": len(moved)})
        return
    if partition not in offset_map.partitions(topic):
        raise ResourceNotFoundError(f"the run {run} did not restore {topic}-{partition}")
    if not old_offsets:
        moved = list(_runs(offset_map, topic, partition))
        _MOVED.show(moved, as_json=output.as_json, empty="no records", summary={"runs": len(moved)})
        return
    answers = [answer for offset in old_offsets for answer in _answers(offset_map, topic, partition, offset)]
    _ANSWER.show(answers, as_json=output.as_json, empty="no records", summary={"offsets": len(old_offsets)})


def _partitions(offset_map: OffsetMap, topic: str) -> Iterator[_Moved]:
    """Yield a row with the restored offsets for each pair of a source partition and a target partition."""
    target = offset_map.topics[topic].target
    for partition, restored in offset_map.partitions(topic).items():
        first, last = (restored.start, restored.stop - 1) if restored else (None, None)
        moved = _Moved(topic, partition, first, last, target)
        by_target = groupby(_runs(offset_map, topic, partition), lambda run: run.target_partition)
        yield from [_sum(list(runs), first, last) for _, runs in by_target] or [moved]


def _sum(runs: Sequence[_Moved], first: int | None, last: int | None) -> _Moved:
    """Combine all offset runs of a source partition in one target partition into one row."""
    end, records = runs[-1].target_last_offset, sum(run.records for run in runs)
    return replace(runs[0], first_offset=first, last_offset=last, target_last_offset=end, records=records)


def _runs(offset_map: OffsetMap, topic: str, partition: int) -> Iterator[_Moved]:
    for run in offset_map.mapped_runs((topic, partition)):
        yield _Moved(
            topic, partition, run.start, run.end - 1, offset_map.topics[topic].target, run.target_partition,
            run.target_start, run.target_end - 1, run.length,
        )  # fmt: skip


def _answers(offset_map: OffsetMap, topic: str, partition: int, offset: int) -> Iterator[_Answer]:
    if not offset_map.topics[topic].is_rehashed:
        found = offset_map.translate((topic, partition), offset)
        there = (found.topic, found.partition, found.offset)
        yield _Answer(topic, partition, offset, *there, found.where, found.difference)
        return
    target, others = offset_map.topics[topic].target, dict.fromkeys(offset_map.partitions(topic), MAX_OFFSET)
    for number_there, first in offset_map.first_unread(topic, {**others, partition: offset}).items():
        yield _Answer(topic, partition, offset, target, number_there, first.offset, "first_unread")


_NAME: Final[Row[str]] = Row(field("run", lambda each: each, text("RUN")))
_MOVED: Final[Row[_Moved]] = Row(
    field("topic", lambda each: each.topic, text("TOPIC")),
    field("partition", lambda each: each.partition, number("PARTITION")),
    field("first_offset", lambda each: each.first_offset, number("FIRST")),
    field("last_offset", lambda each: each.last_offset, number("LAST")),
    field("target_topic", lambda each: each.target_topic, text("NEW TOPIC")),
    field("target_partition", lambda each: each.target_partition, number("PARTITION")),
    field("target_first_offset", lambda each: each.target_first_offset, number("FIRST")),
    field("target_last_offset", lambda each: each.target_last_offset, number("LAST")),
    field("records", lambda each: each.records, number("RECORDS")),
)
_ANSWER: Final[Row[_Answer]] = Row(
    field("topic", lambda each: each.topic, text("TOPIC")),
    field("partition", lambda each: each.partition, number("PARTITION")),
    field("offset", lambda each: each.offset, number("OFFSET")),
    field("target_topic", lambda each: each.target_topic, text("NEW TOPIC")),
    field("target_partition", lambda each: each.target_partition, number("PARTITION")),
    field("target_offset", lambda each: each.target_offset, number("OFFSET")),
    field("where", lambda each: each.where, text("IS")),
    field("difference", lambda each: each.difference, number("BY")),
)
