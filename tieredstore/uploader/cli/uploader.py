"""``tieredstore uploader``: a process beside a broker that ships what it closes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.arguments import Json, SettingsPath, Wide
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import complain, print_json, print_lines, print_table
from tieredstore.cli.terminal.rows import PARTITION, Row, column, field
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import ConfigError, DataLossError, StoreUnavailableError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.api.outcomes import Outcome
    from tieredstore.uploader import Uploader
    from tieredstore.uploader.retention import Expired

_PLAN: Final[Row[list[Outcome]]] = Row(
    field("topic", lambda row: row[0].topic, text("TOPIC")),
    field("topic_id", lambda row: row[0].topic_id),
    field("partition", lambda row: row[0].partition, number("PART")),
    # As ``ls`` shows them.
    column(word("OFFSETS", rank=1), lambda row: f"{row[0].base_offset} … {row[-1].last_offset}"),
    field("segments", len, number("SEGMENTS")),
    field("size", lambda row: sum(segment.size or 0 for segment in row), number("SIZE"), human_bytes),
    field("first_offset", lambda row: row[0].base_offset),
    field("last_offset", lambda row: row[-1].last_offset),
)
_EXPIRED: Final[Row[Expired]] = Row(
    PARTITION.of(lambda entry: entry.where),
    field("segments", lambda entry: entry.segments),
    field("stored_size", lambda entry: entry.size),
    field("reason", lambda entry: entry.left_alone),
)


def uploader(
    settings: SettingsPath = None,
    once: Annotated[bool, typer.Option("--once", help="Ship what is closed and settled by now, and end.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what would be shipped, and what to be warned of; write nothing.")
    ] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log lines of JSON, for a collector of logs.")] = False,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Ship the closed segments of the broker beside it, in order, as long as it runs, and lose none.

    Its settings are those of the store and uploader.* in the same file (docs/uploader.md). SIGTERM lets what is under
    way end, SIGHUP reads the settings again. Without --once or --check it runs until it is stopped.

    Example: tieredstore uploader -c uploader.properties --check
    """
    if settings is None:
        raise ConfigError("no settings are named: give --settings FILE (-c), with uploader.* beside those of the store")
    if once and check:
        raise ConfigError("--check writes nothing and --once ships: give one of them")
    if as_json and not (once or check):
        raise ConfigError("--json is for --once and --check; a running uploader logs JSON with --json-logs")
    from tieredstore.uploader import Uploader

    if json_logs or not (check or once):
        log_lines(as_json=json_logs)
    with Uploader(settings) as shipping:
        if not check and not once:
            raise typer.Exit(shipping.run())
        if check:
            _show_plan(shipping, as_json=as_json, wide=wide)
        else:
            _ship_once(shipping, as_json=as_json)


def _show_plan(shipping: Uploader, *, as_json: bool, wide: bool) -> None:
    of_partition = itertools.groupby(shipping.plan(), key=lambda one: (one.topic, one.topic_id, one.partition))
    rows = [list(segments) for _, segments in of_partition]
    expired = shipping.tries.watch(lambda: list(shipping.expire(dry_run=True)))
    warnings = shipping.topics.sentences()
    refused = shipping.topics.refused
    if as_json:
        named = [{"topic": topic, "reason": reason} for topic, reason in refused.items()]
        print_json({
            "partitions": list(map(_PLAN.json, rows)), "refused_topics": named, "warnings": warnings,
            "expired": list(map(_EXPIRED.json, expired)),
        })  # fmt: skip
        return
    if rows:
        print_table(_PLAN.columns, map(_PLAN.cells, rows), wide=wide)
    led = [partition for partition in shipping.disk.partitions if partition.role.value == "led"]
    print_lines(
        [f"{len(led)} of the {len(shipping.disk.partitions)} partitions here are this broker's to ship"]
        + ([] if rows else ["nothing closed waits to be shipped"])
        + [_expiring(entry) for entry in expired]
    )


def _expiring(entry: Expired) -> str:
    where, size = f"{entry.where.topic}-{entry.where.partition}", human_bytes(entry.size)
    stays = f"; one stays, and all behind it: {entry.left_alone}" if entry.left_alone else ""
    return f"retention deletes {entry.segments} segments ({size}) of {where}{stays}"


def _ship_once(shipping: Uploader, *, as_json: bool) -> None:
    left = shipping.run_once()
    counts = shipping.counts
    if as_json:
        print_json(
            {
                "waiting": [
                    {
                        "topic": one.topic,
                        "topic_id": str(one.topic_id),
                        "partition": one.partition,
                        "reason": one.reason,
                    }
                    for one in left
                ],
                "summary": {
                    "copied": counts.segments,
                    "size": counts.bytes,
                    "stored_size": counts.stored_bytes,
                    "holes": counts.holes,
                },
            }
        )
    else:
        print_lines(f"left       {one.topic}-{one.partition}: {one.reason}" for one in left)
        print_lines(
            [f"{counts.segments} segments shipped ({human_bytes(counts.bytes)} as {human_bytes(counts.stored_bytes)})"]
        )
    if counts.holes:
        complain(f"{counts.lost_offsets} offsets could not be shipped; the watermarks say which, and why")
        raise typer.Exit(DataLossError.exit_code)
    failed = [one for one in left if one.status == "failed"]
    if failed:
        is_refused = any(isinstance(one.error, ConfigError) for one in failed)
        raise typer.Exit((ConfigError if is_refused else StoreUnavailableError).exit_code)
