"""``restore verify``: compare the records that a restore has put into a cluster with its source.

This module is separate from the other commands of ``restore``, because this command changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.options import BACKUP, Cluster, FromTo, Json, Store
from tieredstore.cli.terminal.output import JsonValue, human_count, print_lines, quantity
from tieredstore.cli.terminal.progress import counting
from tieredstore.cli.terminal.rows import Row, attributes, field
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ConfigError, CorruptDataError, DataLossError
from tieredstore.restore.cli.produce import open_backup, parse_topics

if TYPE_CHECKING:
    from tieredstore.restore.comparison import ComparedPartition


def verify(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Name of a run of restore produce; with --same-offsets, TOPIC[=NEW]..."),
    ],
    same_offsets: Annotated[
        bool, typer.Option("--same-offsets", help="For restored log directories: compare topics by their old offsets.")
    ] = False,
    backup: Annotated[Path | None, BACKUP] = None,
    *,
    window: FromTo,
    store: Store,
    cluster: Cluster,
    output: Json,
) -> None:
    """Compare the records of a restore with the bucket, or the backup, one by one: offset, time, key, value, headers.

    The output has a digest of each side per partition. If the digests differ, the output names the first different
    record, and the exit code is 4. Offsets that the source has lost are listed and not compared, and the exit code is
    3.

    Offsets left out by a run's cut, and records missing in a backup, are listed too. --from and --to are offsets or
    times in the bucket, for --same-offsets.

    Example: tieredstore restore verify orders -c store.properties --bootstrap-server broker1:9092
    """
    from tieredstore.restore.comparison import Comparison
    from tieredstore.restore.produce.offset_map import load_map

    client = cluster.require()
    window.check_order()
    if not same_offsets and (len(names) > 1 or window.first is not None or window.end is not None):
        raise ConfigError("several topics, --from and --to need --same-offsets; a run is compared whole")
    if same_offsets and backup is not None:
        raise ConfigError("--same-offsets is for log directories, which come from a bucket: leave out --backup")
    compared: list[ComparedPartition] = []
    lacks: Sequence[str] = ()
    with ExitStack() as stack:
        bucket, advance = stack.enter_context(store.open()), stack.enter_context(counting("comparing", "partition"))
        comparison = Comparison(bucket.manager, client)
        if same_offsets:
            partitions = comparison.same_offsets(parse_topics(names), window.first, window.end)
        else:
            opened = bucket.opened()
            offsets, kept = load_map(opened.store, opened.prefix, names[0]), None
            if backup is not None:
                kept = stack.enter_context(open_backup(backup, list(offsets.topics)))
                lacks = kept.lacks
            partitions = comparison.run(offsets, kept)
        for each in partitions:
            compared.append(each)
            advance()
    _report(compared, lacks, as_json=output.as_json)


def _report(compared: Sequence[ComparedPartition], lacks: Sequence[str], *, as_json: bool) -> None:
    different, lost = [one for one in compared if one.difference], [one for one in compared if one.lost]
    summary: Mapping[str, JsonValue] = {
        "partitions": len(compared), "records": sum(one.records for one in compared), "different": len(different),
        "with_losses": len(lost), "not_compared": [*lacks],
    }  # fmt: skip
    _COMPARED.show(compared, as_json=as_json, summary=summary)
    if not as_json:
        print_lines(map(_show_difference, different))
        print_lines(_show_spans(one, "the source has lost the offsets", one.lost) for one in lost)
        cut = [one for one in compared if one.left_out]
        print_lines(_show_spans(one, "the run's cut left out the offsets", one.left_out) for one in cut)
        print_lines(f"not compared: {sentence}" for sentence in lacks)
        counts = Counter("different" if one.difference else "equal" for one in compared)
        print_lines(
            [f"{quantity(len(compared), 'partition')}: {counts['equal']} equal, {counts['different']} different"]
        )
    if different:
        raise typer.Exit(CorruptDataError.exit_code)
    if lost:
        raise typer.Exit(DataLossError.exit_code)


_MEANINGS: Final = {
    "missing": "the record is missing in the target",
    "extra": "the target has a record that the source does not have",
    "not_restored": "the run did not restore the record",
}


def _show_difference(one: ComparedPartition) -> str:
    assert one.difference is not None
    what, old, new = one.difference.what, one.difference.offset, one.difference.target_offset
    meaning, partition = _MEANINGS.get(what, f"another {what}"), one.difference.target_partition
    there = "the target" if partition is None else f"{one.target_topic}-{partition}"
    places = [f"offset {old}"] * (old is not None) + [f"offset {new} of {there}"] * (new is not None)
    more = f" ({human_count(one.not_restored)} of these)" if what == "not_restored" else ""
    return f"{one.topic}-{one.partition}: first difference at {', '.join(places)}: {meaning}{more}"


def _show_spans(one: ComparedPartition, who: str, spans: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{first} to {last}" for first, last in spans[:_MOST_SPANS])
    more = f" and {len(spans) - _MOST_SPANS} spans more" if len(spans) > _MOST_SPANS else ""
    return f"{one.topic}-{one.partition}: {who} {shown}{more}: they were not compared"


_MOST_SPANS: Final = 10
_COMPARED: Final[Row[ComparedPartition]] = Row(
    field("topic", lambda one: one.topic, text("TOPIC")),
    field("partition", lambda one: one.partition, number("PARTITION")),
    field("target_topic", lambda one: one.target_topic, text("NEW TOPIC")),
    field("target_partition", lambda one: one.target_partition, number("PARTITION", rank=1)),
    field("first_offset", lambda one: one.first_offset, number("FIRST", rank=1)),
    field("last_offset", lambda one: one.last_offset, number("LAST", rank=1)),
    field("records", lambda one: one.records, number("RECORDS"), human_count),
    field("target_records", lambda one: one.target_records, number("THERE"), human_count),
    attributes("not_restored", "digest", "target_digest"),
    field("lost", lambda one: [[*span] for span in one.lost]),
    field("left_out", lambda one: [[*span] for span in one.left_out]),
    field("difference", lambda one: one.difference and one.difference.what, text("DIFFERENCE")),
    field("difference_offset", lambda one: one.difference and one.difference.offset),
    field("difference_target_offset", lambda one: one.difference and one.difference.target_offset),
    field("difference_target_partition", lambda one: one.difference and one.difference.target_partition),
)
