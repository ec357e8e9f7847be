"""``tieredstore uploader``: a process beside a broker that uploads the broker's closed segments."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from tieredstore.api.outcomes import Outcome, run
from tieredstore.cli.app.options import DryRun, JsonLogs, Once, Output, SettingsFile
from tieredstore.cli.app.outcomes import OUTCOME, totals_of
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import JsonValue, complain, print_json_line, print_lines, print_table, quantity
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import ConfigError, DataLossError, StoreUnavailableError, TieredStoreError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.uploader import Uploader

_PLANNED: Final[Row[list[Outcome]]] = Row(
    field("topic", lambda row: row[0].topic, text("TOPIC")),
    field("partition", lambda row: row[0].partition, number("PART")),
    # ``ls`` shows offsets in the same form.
    column(word("OFFSETS", rank=1), lambda row: f"{row[0].base_offset} … {row[-1].last_offset}"),
    field("segments", len, number("SEGMENTS")),
    field("size", lambda row: sum(segment.size or 0 for segment in row), number("SIZE"), human_bytes),
)


def uploader(
    file: SettingsFile,
    once: Once = False,
    *,
    dry_run: DryRun = False,
    json_logs: JsonLogs = False,
    output: Output,
) -> None:
    """Continuously upload the closed segments of the local broker, in order and without loss.

    The settings file has the store's settings and uploader.* (docs/how-to/uploader.md). On SIGTERM, the uploader
    finishes the segments in progress; on SIGHUP, it reads the settings again. Without --once or --dry-run it runs until
    it is stopped.

    Example: tieredstore uploader -c uploader.properties --dry-run
    """
    settings = file.path("uploader.*")
    if output.as_json and not (once or dry_run):
        raise ConfigError("--json needs --once or --dry-run; for JSON log lines, use --json-logs")
    from tieredstore.uploader import Uploader

    if json_logs or not (dry_run or once):
        log_lines(as_json=json_logs)
    with Uploader(settings) as shipping:
        if dry_run:
            _show_plan(shipping, shipping.plan(), output)
        elif once:
            _tell_of_run(shipping, shipping.run_once(), output)
        else:
            raise typer.Exit(shipping.run())


def _show_plan(shipping: Uploader, planned: Sequence[Outcome], output: Output) -> None:
    if output.as_json:
        warnings: list[JsonValue] = [*shipping.topics.sentences()]
        size = sum(one.size or 0 for one in planned)
        _print_json(planned, {"size": size, "dry_run": True, "warnings": warnings})
        return
    uploads = (one for one in planned if one.action == "upload" and one.status == "planned")
    rows = [list(of) for _, of in itertools.groupby(uploads, key=lambda one: (one.topic, one.topic_id, one.partition))]
    if rows:
        print_table(_PLANNED.columns, map(_PLANNED.cells, rows), wide=output.wide)
    led = [partition for partition in shipping.disk.partitions if partition.role.value == "led"]
    print_lines([f"this broker leads {len(led)} of {len(shipping.disk.partitions)} local partitions"])
    if not rows:
        print_lines(["nothing to ship"])
    print_lines(
        f"retention would delete {human_bytes(one.stored_size or 0)} of {one.topic}-{one.partition}: {one.reason}"
        for one in planned
        if one.action == "remove"
    )


def _tell_of_run(shipping: Uploader, left: Sequence[Outcome], output: Output) -> None:
    counts = shipping.counts
    shipped = {"done": counts.segments, "size": counts.bytes, "stored_size": counts.stored_bytes}
    if output.as_json:
        _print_json(left, {**shipped, "holes": counts.holes, "dry_run": False})
    else:
        named = ((one.name or f"{one.topic}-{one.partition}", one.reason) for one in left)
        print_lines(f"not shipped: {name}: {reason}" for name, reason in named)
        sizes = f"{human_bytes(counts.bytes)}, stored as {human_bytes(counts.stored_bytes)}"
        nothing = "nothing shipped" if left or counts.holes else "nothing to ship"
        print_lines([f"{quantity(counts.segments, 'segment')} shipped ({sizes})" if counts.segments else nothing])
    if counts.holes:
        complain(
            f"{counts.lost_offsets} offsets could not be shipped; the upload watermarks record which offsets, and why"
        )
        raise typer.Exit(DataLossError.exit_code)
    failed = [one for one in left if one.status == "failed"]
    if failed:
        errors = (one.error for one in failed if isinstance(one.error, TieredStoreError))
        lasting = (error.exit_code for error in errors if not error.retryable)
        raise typer.Exit(next(lasting, StoreUnavailableError.exit_code))


def _print_json(outcomes: Sequence[Outcome], sums: dict[str, JsonValue]) -> None:
    totals, _ = totals_of(lambda: run(outcomes, lambda one: print_json_line(OUTCOME.json(one))))
    codes: dict[str, JsonValue] = dict(sorted(Counter(one.code for one in outcomes).items()))
    by_status: dict[str, JsonValue] = {
        "planned": totals.planned, "done": totals.done, "kept": totals.kept, "failed": totals.failed,
    }  # fmt: skip
    print_json_line({"summary": {**by_status, "stored_size": totals.stored_size, "codes": codes, **sums}})
