"""``tieredstore du``: how much lies where."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Final

import typer

from tieredstore.catalog.listing import list_in_scope
from tieredstore.cli.app.arguments import (
    Json,
    OnlyPartition,
    OnlyTopic,
    Parallel,
    SettingsPath,
    StoreUrl,
    TopicId,
    Wide,
    choose_scope,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.terminal.output import complain, print_json_line, print_table, ratio_of
from tieredstore.cli.terminal.progress import counting, each_counted
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import WIDE, number, text, word
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.usage import Usage, UsageBy, UsageKey, usage_of
from tieredstore.ops.listing import ListedSegment, load_stream
from tieredstore.process.parallel import READERS


class Sort(enum.StrEnum):
    """What rows are sorted by: the greatest first, names and days from the first on."""

    STORED = "stored"
    SIZE = "size"
    SEGMENTS = "segments"
    OBJECTS = "objects"
    NAME = "name"


_SUMS: Final[Row[Usage]] = Row(
    field("stored_size", lambda sums: sums.stored_size, number("STORED"), human_bytes),
    field("size", lambda sums: sums.size),
    column(number("SIZE", rank=2), lambda sums: human_bytes(sums.size) if sums.sized_stored else "-"),
    field("ratio", lambda sums: ratio_of(sums.size, sums.sized_stored), number("RATIO", rank=3), "{:.2f}".format),
    field("segments", lambda sums: sums.segments, number("SEGMENTS", rank=1)),
    field("objects", lambda sums: sums.objects, number("OBJECTS", rank=4)),
    field("no_manifest", lambda sums: sums.leftovers, number("NO MANIFEST", rank=2)),
)


def du(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    by: Annotated[
        UsageBy, typer.Option("--by", help="What a row is of; a day is that of a segment's newest record.")
    ] = UsageBy.TOPIC,
    sort: Annotated[Sort, typer.Option("--sort", help="What the rows are sorted by.")] = Sort.STORED,
    listing: Annotated[
        bool, typer.Option("--listing", help="Read no manifests: quick, without sizes before compression.")
    ] = False,
    parallel: Parallel = READERS,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Say how many bytes, segments and objects lie in the bucket, by topic, partition or day, and how well they shrank.

    Reads the manifest of every segment unless --listing is given, and needs no key.

    Example: tieredstore du -c store.properties --by partition
    """
    scope = choose_scope(topic, topic_id, partition)
    if listing and by is UsageBy.DAY:
        raise ConfigError("--by day needs the manifests: leave --listing out")
    with open_chosen_bucket(settings, store) as bucket, counting("reading", "segments") as advance:
        objects = list_in_scope(bucket.store, bucket.prefix, scope)
        loaded = (
            (ListedSegment(one, None) for one in objects)
            if listing
            else load_stream(bucket.store, objects, rules=bucket.manifest_rules, parallel=parallel)
        )
        sums = usage_of(each_counted(loaded, advance), by)
    rows = sorted(sums.items(), key=lambda row: (_rank(row[1], sort), order_of(row[0])))
    total = Usage()
    for _, usage in rows:
        total.merge(usage)
    name = Row(
        key_row(by, sums),
        field("day", lambda key: key.day),
        column(word("DAY") if by is UsageBy.DAY else None, lambda key: str(key.day or "(not known)")),
    )
    if as_json:
        for key, usage in rows:
            print_json_line(name.json(key) | _SUMS.json(usage))
        print_json_line({"summary": _SUMS.json(total)})
    elif not rows:
        complain("no segments found")
    else:
        cells = [[*name.cells(key), *_SUMS.cells(usage)] for key, usage in rows]
        cells.append(["total", *[""] * (len(name.columns) - 1), *_SUMS.cells(total)])
        print_table([*name.columns, *_SUMS.columns], cells, total=True, wide=wide)


def _rank(usage: Usage, sort: Sort) -> int:
    ranks = {
        Sort.STORED: usage.stored_size,
        Sort.SIZE: usage.size,
        Sort.SEGMENTS: usage.segments,
        Sort.OBJECTS: usage.objects,
        Sort.NAME: 0,
    }
    return -ranks[sort]


def order_of(key: UsageKey) -> tuple[str, str, int, str]:
    """Rows by name and day."""
    return (key.topic or "", str(key.topic_id or ""), key.partition or 0, str(key.day or ""))


def key_row(by: UsageBy, keys: Iterable[UsageKey]) -> Row[UsageKey]:
    """Declare what names a row; what is null of ``keys`` has no column."""
    keys = list(keys)
    is_id_needed = len({key.topic for key in keys}) < len(keys)
    id_column = word("TOPIC ID", rank=0 if is_id_needed else WIDE) if by is UsageBy.TOPIC else None
    return Row(
        field("topic", lambda key: key.topic, None if by is UsageBy.DAY else text("TOPIC")),
        field("topic_id", lambda key: key.topic_id, id_column),
        field("partition", lambda key: key.partition, number("PART") if by is UsageBy.PARTITION else None),
    )
