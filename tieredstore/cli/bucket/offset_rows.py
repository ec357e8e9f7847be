"""What ``tieredstore offsets`` prints: a row for each partition."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.catalog import Lineage
from tieredstore.cli.terminal.output import JsonValue, human_time, print_json, print_table
from tieredstore.cli.terminal.tables import moment, number, text
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.ops.offsets import PartitionOffsets


def show_offsets(
    partitions: Sequence[PartitionOffsets], topic: str, topic_id: Uuid, *, as_json: bool, broker: bool
) -> None:
    """JSON or a table; with the broker's offsets where ``broker`` tells that one was asked."""
    if as_json:
        print_json([_row(known, topic, topic_id, broker=broker) for known in partitions])
        return
    columns = [number("PARTITION"), number("EARLIEST"), number("END"), number("SEGMENTS", rank=3)]
    columns += [number("BROKER FROM"), number("BROKER END")] if broker else []
    rows = [_cells(known, broker=broker) for known in partitions]
    print_table([*columns, moment("LAST RECORD", rank=1), text("LOST OFFSETS")], rows)


def _row(known: PartitionOffsets, topic: str, topic_id: Uuid, *, broker: bool) -> dict[str, JsonValue]:
    lineage = known.lineage
    row: dict[str, JsonValue] = {
        "topic": topic,
        "topic_id": str(topic_id),
        "partition": known.partition,
        "earliest_offset": None if lineage is None else lineage.earliest_offset,
        "end_offset": None if lineage is None else lineage.end_offset,
        "segments": len(_segments(lineage)),
        "max_timestamp_ms": None if lineage is None else _latest_time(lineage),
        "lost": [{"start": start, "stop": stop} for start, stop in known.lost],
    }
    if broker:
        earliest, end = known.broker or (None, None)
        row |= {"broker_earliest_offset": earliest, "broker_end_offset": end}
    return row


def _cells(known: PartitionOffsets, *, broker: bool) -> list[str]:
    lineage = known.lineage
    stored = (None, None) if lineage is None else (lineage.earliest_offset, lineage.end_offset)
    numbers = [known.partition, *stored, len(_segments(lineage)), *((known.broker or (None, None)) if broker else ())]
    latest = None if lineage is None else _latest_time(lineage)
    lost = ", ".join(f"{start}-{stop - 1}" for start, stop in known.lost)
    return [*("-" if n is None else str(n) for n in numbers), human_time(latest), lost or "none"]


def _segments(lineage: Lineage | None) -> set[RemoteLogSegmentMetadata]:
    return set() if lineage is None else {span.segment for span in lineage.spans}


def _latest_time(lineage: Lineage) -> int | None:
    times = [span.segment.max_timestamp_ms for span in lineage.spans]
    return max(times) if min(times) >= 0 else None
