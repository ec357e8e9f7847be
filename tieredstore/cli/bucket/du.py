"""``tieredstore du``: how much lies where."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer

from tieredstore.catalog.listing import SegmentObjects, list_in_scope
from tieredstore.cli.app.arguments import (
    Json,
    OnlyPartition,
    OnlyTopic,
    Parallel,
    SettingsPath,
    StoreUrl,
    TopicId,
    Wide,
    chosen_scope,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.terminal.output import JsonValue, complain, human_ratio, print_json_line, print_table, ratio_of
from tieredstore.cli.terminal.progress import counting, each_counted
from tieredstore.cli.terminal.tables import WIDE, Column, number, text, word
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


_SUMS: Final = (
    number("STORED"),
    number("SIZE", rank=2),
    number("RATIO", rank=3),
    number("SEGMENTS", rank=1),
    number("OBJECTS", rank=4),
    number("NO MANIFEST", rank=2),
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
    scope = chosen_scope(topic, topic_id, partition)
    if listing and by is UsageBy.DAY:
        raise ConfigError("--by day needs the manifests: leave --listing out")
    with open_chosen_bucket(settings, store) as bucket, counting("reading", "segments") as advance:
        objects = list_in_scope(bucket.store, bucket.prefix, scope)
        if listing:
            loaded = _unread(objects)
        else:
            loaded = load_stream(bucket.store, objects, rules=bucket.manifest_rules, parallel=parallel)
        sums = usage_of(each_counted(loaded, advance), by)
    rows = sorted(sums.items(), key=lambda row: (_rank(row[1], sort), _name(row[0])))
    total = Usage()
    for _, usage in rows:
        total.merge(usage)
    if as_json:
        for key, usage in rows:
            print_json_line({**_named(key), **_sums(usage)})
        print_json_line({"summary": _sums(total)})
    elif not rows:
        complain("no segments found")
    else:
        names = _name_columns(by, [key for key, _ in rows])
        cells = [[*_name_cells(key, by), *_cells(usage)] for key, usage in rows]
        print_table(
            (*names, *_SUMS), [*cells, ["total", *[""] * (len(names) - 1), *_cells(total)]], total=True, wide=wide
        )


def _unread(listed: Iterable[SegmentObjects]) -> Iterator[ListedSegment]:
    return (ListedSegment(objects, None) for objects in listed)


def _rank(usage: Usage, sort: Sort) -> int:
    ranks = {
        Sort.STORED: usage.stored_size,
        Sort.SIZE: usage.size,
        Sort.SEGMENTS: usage.segments,
        Sort.OBJECTS: usage.objects,
        Sort.NAME: 0,
    }
    return -ranks[sort]


def _name(key: UsageKey) -> tuple[str, str, int, str]:
    return (key.topic or "", str(key.topic_id or ""), key.partition or 0, str(key.day or ""))


def _named(key: UsageKey) -> dict[str, JsonValue]:
    return {
        "topic": key.topic,
        "topic_id": None if key.topic_id is None else str(key.topic_id),
        "partition": key.partition,
        "day": None if key.day is None else key.day.isoformat(),
    }


def _sums(usage: Usage) -> dict[str, JsonValue]:
    return {
        "stored_size": usage.stored_size,
        "size": usage.size,
        "ratio": ratio_of(usage.size, usage.sized_stored),
        "segments": usage.segments,
        "objects": usage.objects,
        "no_manifest": usage.leftovers,
    }


def _name_columns(by: UsageBy, keys: Sequence[UsageKey]) -> list[Column]:
    if by is UsageBy.DAY:
        return [word("DAY")]
    if by is UsageBy.PARTITION:
        return [text("TOPIC"), number("PART")]
    is_id_needed = len({key.topic for key in keys}) < len(keys)
    return [text("TOPIC"), word("TOPIC ID", rank=0 if is_id_needed else WIDE)]


def _name_cells(key: UsageKey, by: UsageBy) -> list[str]:
    if by is UsageBy.DAY:
        return ["(not known)" if key.day is None else key.day.isoformat()]
    return [key.topic or "", str(key.topic_id if by is UsageBy.TOPIC else key.partition)]


def _cells(usage: Usage) -> list[str]:
    return [
        human_bytes(usage.stored_size),
        human_bytes(usage.size) if usage.sized_stored else "-",
        human_ratio(usage.size, usage.sized_stored),
        str(usage.segments),
        str(usage.objects),
        str(usage.leftovers),
    ]
