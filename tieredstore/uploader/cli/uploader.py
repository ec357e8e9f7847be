"""``tieredstore uploader``: a process beside a broker that ships what it closes."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.arguments import Json, SettingsPath, Wide
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import complain, print_json, print_lines, print_table
from tieredstore.cli.terminal.rows import PARTITION, Row, column, field
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.config import Settings, load_settings
from tieredstore.config.loading import load_uploader_settings
from tieredstore.config.uploader import UploaderSettings
from tieredstore.errors import ConfigError, DataLossError, StoreUnavailableError
from tieredstore.model import TopicIdPartition, human_bytes

if TYPE_CHECKING:
    from tieredstore.uploader import Uploader
    from tieredstore.uploader.retention import Expired
    from tieredstore.uploader.segment import Segment

_logger: Final = logging.getLogger(__name__)

_PLAN: Final[Row[tuple[TopicIdPartition, list[Segment]]]] = Row(
    field("topic", lambda row: row[0].topic, text("TOPIC")),
    field("topic_id", lambda row: row[0].topic_id),
    field("partition", lambda row: row[0].partition, number("PART")),
    # As ``ls`` shows them.
    column(word("OFFSETS", rank=1), lambda row: f"{row[1][0].place.base_offset} … {row[1][-1].next_offset - 1}"),
    field("segments", lambda row: len(row[1]), number("SEGMENTS")),
    field("size", lambda row: sum(segment.size_in_bytes for segment in row[1]), number("SIZE"), human_bytes),
    field("first_offset", lambda row: row[1][0].place.base_offset),
    field("last_offset", lambda row: row[1][-1].next_offset - 1),
)
_EXPIRED: Final[Row[Expired]] = Row(
    PARTITION.of(lambda entry: entry.where),
    field("segments", lambda entry: entry.segments),
    field("stored_size", lambda entry: entry.size),
    field("reason", lambda entry: entry.left_alone),
)
_RELOADED: Final = frozenset({"kafka", "server_properties"})
"""What is not compared: secrets that may be new, and a file that is not read again."""


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

    own, store = load_uploader_settings(settings), load_settings(settings)
    if not check and not once:
        _run(settings, store, own, json_logs=json_logs)
        return
    if json_logs:
        log_lines(as_json=True)
    with Uploader(store, own) as shipping:
        if check:
            _show_plan(shipping, as_json=as_json, wide=wide)
        else:
            _ship_once(shipping, as_json=as_json)


def _run(path: Path, settings: Settings, own: UploaderSettings, *, json_logs: bool) -> None:
    from tieredstore.uploader import Uploader
    from tieredstore.uploader.service import uploader_service

    log_lines(as_json=json_logs)
    if own.nice:
        os.nice(own.nice)
    with Uploader(settings, own) as shipping:

        def reload() -> None:
            new_own, new = load_uploader_settings(path), load_settings(path)
            for name in UploaderSettings.model_fields:
                if name not in _RELOADED and getattr(new_own, name) != getattr(own, name):
                    alias = UploaderSettings.model_fields[name].alias
                    _logger.warning("%s is another one now; that takes effect when the uploader starts anew", alias)
            shipping.replace_target(new)

        code = uploader_service(shipping, reload=reload).run()
    raise typer.Exit(code)


def _show_plan(shipping: Uploader, *, as_json: bool, wide: bool) -> None:
    rows = [(partition.where, segments) for partition, segments in shipping.plan() if segments]
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
                "waiting": [{**PARTITION.json(entry.where), "reason": entry.reason} for entry in left],
                "summary": {
                    "copied": counts.segments,
                    "size": counts.bytes,
                    "stored_size": counts.stored_bytes,
                    "holes": counts.holes,
                },
            }
        )
    else:
        print_lines(f"left       {entry.where.topic}-{entry.where.partition}: {entry.reason}" for entry in left)
        print_lines(
            [f"{counts.segments} segments shipped ({human_bytes(counts.bytes)} as {human_bytes(counts.stored_bytes)})"]
        )
    if counts.holes:
        complain(f"{counts.lost_offsets} offsets could not be shipped; the watermarks say which, and why")
        raise typer.Exit(DataLossError.exit_code)
    errors = [entry.error for entry in left if entry.error is not None]
    if errors:
        is_refused = any(isinstance(error, ConfigError) for error in errors)
        raise typer.Exit((ConfigError if is_refused else StoreUnavailableError).exit_code)
