"""``tieredstore cp``: segments from one store to another, without a broker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from tieredstore.catalog.absence import absence
from tieredstore.cli.app.arguments import (
    DryRun,
    Json,
    OnlyPartition,
    OnlyTopic,
    SettingsPath,
    StoreUrl,
    TopicId,
    chosen_scope,
)
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.app.steps import Report, telling
from tieredstore.cli.terminal.output import JsonValue, counted
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import PARTITION
from tieredstore.config import Settings
from tieredstore.errors import ConfigError, TieredStoreError, excerpt
from tieredstore.model import human_bytes
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.copies.steps import CopyOutcome, CopyStep

_AT_ONCE: Final = 4
_WORDS: Final = {
    CopyOutcome.THERE: "already there (by their manifests; bytes were not compared)",
    CopyOutcome.LEFTOVER: "of the source without a manifest, and so not copied",
    CopyOutcome.GONE: "deleted from the source meanwhile",
    CopyOutcome.FAILED: "failed",
}
_RATE: Final = re.compile(r"(\d{1,9})(?:([kKMG])(?:iB)?)?(?:/s)?", re.ASCII)
_UNITS: Final = {None: 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cp(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="SETTINGS", help="The target's .properties file: store, prefix, keys, chunk size."
        ),
    ] = None,
    to_store: Annotated[
        str | None,
        typer.Option("--to-store", metavar="URL", help="The target's store; the rest is as in --to, or in -c."),
    ] = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    decrypt: Annotated[
        bool, typer.Option("--decrypt", help="Let the target have plain copies of what is encrypted.")
    ] = False,
    no_read_back: Annotated[
        bool, typer.Option("--no-read-back", help="Believe the target that it holds what was sent.")
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option("--rate-limit", metavar="BYTES", help="Limit bandwidth, each way: 50MiB."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=256, help="Segments in parallel.")
    ] = _AT_ONCE,
    dry_run: DryRun = False,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Copy segments to another store or under another prefix; the source is only read.

    Where both settings say the same, the same bytes go under the same ids. Where the target's say another chunk size or
    compression, or encryption where there was none, segments are written anew, under new ids; for another key ring
    their data keys are wrapped anew. Every object is read back and compared, the manifest comes last. Stopped or
    killed, run it again: what is already there, by its manifest, is not sent again.

    Example: tieredstore cp -c store.properties --to-store s3://backup/kafka/ --dry-run
    """
    from tieredstore.ops.copies.copying import copy_segments

    if to is None and to_store is None:
        raise ConfigError("no target is named: give --to SETTINGS or --to-store URL")
    scope = chosen_scope(topic, topic_id, partition)
    source = _limited(choose_settings(settings, store), rate)
    target = _limited(choose_settings(to or settings, to_store), rate)
    outcomes: Counter[CopyOutcome] = Counter()
    sent = 0
    first_error: TieredStoreError | None = None
    with (
        open_bucket(source) as source_bucket,
        open_bucket(target) as target_bucket,
        telling(as_json=as_json, report=report) as teller,
        tell_if_stopped(lambda: f"stopped; {_sum_of(outcomes, sent, dry_run=dry_run)}; run again to go on"),
        counting("checking" if dry_run else "copying", "segments") as advance,
    ):
        for bucket in (source_bucket, target_bucket):
            bucket.refuse_raw("cp", "its objects are the broker's files; tieredstore copy stores them from a disk")
        steps = copy_segments(
            source_bucket,
            target_bucket,
            scope,
            decrypt=decrypt,
            read_back=not no_read_back,
            dry_run=dry_run,
            parallel=parallel,
        )
        for step in steps:
            outcomes[step.outcome] += 1
            sent += step.sent
            first_error = first_error or step.error
            teller.tell(_row(step), _line(step, dry_run=dry_run))
            advance()
        if not outcomes and topic is not None:
            asked = [] if partition is None else [partition]
            raise absence(source_bucket.store, source_bucket.prefix, {topic: asked}, topic_id=scope.topic_id)
        rest = [f"{outcomes[outcome]} {words}" for outcome, words in _WORDS.items() if outcomes[outcome]]
        counts: dict[str, JsonValue] = {outcome.value: outcomes[outcome] for outcome in CopyOutcome}
        teller.tell(
            {"summary": {**counts, "sent": sent, "dry_run": dry_run}},
            _sum_of(outcomes, sent, dry_run=dry_run),
            "; ".join(rest) or None,
        )
    if first_error is not None:
        raise typer.Exit(first_error.exit_code)


def _limited(settings: Settings, rate: str | None) -> Settings:
    if rate is None:
        return settings
    match = _RATE.fullmatch(rate.strip())
    if match is None or not int(match[1]):
        raise ConfigError(f"--rate-limit is {excerpt(rate)!r}: give bytes a second, as 500K, 50MiB or 1G")
    limit = int(match[1]) * _UNITS[match[2]]
    fetch = settings.fetch.model_copy(update={"rate_limit": limit})
    return settings.model_copy(update={"upload_rate_limit": limit, "fetch": fetch})


def _sum_of(outcomes: Mapping[CopyOutcome, int], sent: int, *, dry_run: bool) -> str:
    verb = "would be copied" if dry_run else "copied"
    count = outcomes.get(CopyOutcome.COPIED, 0)
    done = f"{counted(count, 'segment')} {verb}"
    return f"{done} ({human_bytes(sent)})" if count else done


def _line(step: CopyStep, *, dry_run: bool) -> str | None:
    """What is done, and what somebody should know of; what stood there is only counted."""
    path = step.objects.main_path
    if step.error is not None:
        return f"failed  {path}: {step.error}"
    if step.outcome is CopyOutcome.COPIED and step.way is not None:
        verb = "would be copied" if dry_run else "copied"
        return f"{verb}  {step.way.value}  {path}  ({human_bytes(step.sent)})"
    if step.outcome is CopyOutcome.THERE:
        return None
    return f"{step.outcome.value}  {path}"


def _row(step: CopyStep) -> dict[str, JsonValue]:
    return {
        "outcome": step.outcome.value,
        "way": None if step.way is None else step.way.value,
        **PARTITION.json(step.partition),
        "base_offset": step.objects.start_offset,
        "last_offset": step.last_offset,
        "segment_id": str(step.objects.segment_id.id),
        "target_segment_id": None if step.segment_id is None else str(step.segment_id),
        "stored_size": step.objects.stored_size,
        "sent": step.sent,
        "error": None if step.error is None else str(step.error),
    }
