"""``tieredstore cp``: segments from one store to another, without a broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
    choose_scope,
)
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.app.steps import Report, Tally, telling
from tieredstore.cli.terminal.output import JsonValue
from tieredstore.cli.terminal.rows import PARTITION, Row, field
from tieredstore.config import Settings
from tieredstore.errors import ConfigError, TieredStoreError, excerpt
from tieredstore.model import human_bytes
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.steps import Outcome

if TYPE_CHECKING:
    from tieredstore.ops.copies.copying import CopyStep

_AT_ONCE: Final = 4
_WORDS: Final = {
    Outcome.THERE: "already there (by their manifests; bytes were not compared)",
    Outcome.LEFTOVER: "of the source without a manifest, and so not copied",
    Outcome.GONE: "deleted from the source meanwhile",
    Outcome.FAILED: "failed",
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
    from tieredstore.ops.copies.copying import BucketCopy

    if to is None and to_store is None:
        raise ConfigError("no target is named: give --to SETTINGS or --to-store URL")
    scope = choose_scope(topic, topic_id, partition)
    source = _limit_rate(choose_settings(settings, store), rate)
    target = _limit_rate(choose_settings(to or settings, to_store), rate)
    tally = Tally(Outcome.COPIED, _WORDS, "segment", "copied", dry_run=dry_run)
    first_error: TieredStoreError | None = None
    with (
        open_bucket(source) as source_bucket,
        open_bucket(target) as target_bucket,
        telling(as_json=as_json, report=report) as teller,
        tally.working("copying", "segments") as advance,
    ):
        for bucket in (source_bucket, target_bucket):
            bucket.refuse_raw("cp", "its objects are the broker's files; tieredstore copy stores them from a disk")
        copy = BucketCopy(
            source_bucket, target_bucket,
            decrypt=decrypt, read_back=not no_read_back, dry_run=dry_run, parallel=parallel,
        )  # fmt: skip
        for step in copy.run(scope):
            tally.add(step.outcome, step.sent)
            first_error = first_error or step.error
            teller.tell(_ROW.json(step), _line(step, tally))
            advance()
        if not tally.counts and topic is not None:
            asked = [] if partition is None else [partition]
            raise absence(source_bucket.store, source_bucket.prefix, {topic: asked}, topic_id=scope.topic_id)
        summary: dict[str, JsonValue] = {**tally.by_name(), "sent": tally.size, "dry_run": dry_run}
        teller.tell({"summary": summary}, tally.sentence(), tally.left_alone() or None)
    if first_error is not None:
        raise typer.Exit(first_error.exit_code)


def _limit_rate(settings: Settings, rate: str | None) -> Settings:
    if rate is None:
        return settings
    match = _RATE.fullmatch(rate.strip())
    if match is None or not int(match[1]):
        raise ConfigError(f"--rate-limit is {excerpt(rate)!r}: give bytes a second, as 500K, 50MiB or 1G")
    limit = int(match[1]) * _UNITS[match[2]]
    fetch = settings.fetch.model_copy(update={"rate_limit": limit})
    return settings.model_copy(update={"upload_rate_limit": limit, "fetch": fetch})


def _line(step: CopyStep, tally: Tally) -> str | None:
    """What is done, and what somebody should know of; what stood there is only counted."""
    path, verb = step.item.main_path, tally.verb_of(step.outcome)
    if step.error is not None:
        return f"failed  {path}: {step.error}"
    if step.outcome is Outcome.COPIED and step.way is not None:
        return f"{verb}  {step.way.value}  {path}  ({human_bytes(step.sent)})"
    return None if step.outcome is Outcome.THERE else f"{verb}  {path}"


_ROW: Final[Row[CopyStep]] = Row(
    field("outcome", lambda step: step.outcome),
    field("way", lambda step: step.way),
    PARTITION.of(lambda step: step.item.segment_id.topic_id_partition),
    field("base_offset", lambda step: step.item.start_offset),
    field("last_offset", lambda step: step.last_offset),
    field("segment_id", lambda step: step.item.segment_id.id),
    field("target_segment_id", lambda step: step.segment_id),
    field("stored_size", lambda step: step.item.stored_size),
    field("sent", lambda step: step.sent),
    field("error", lambda step: None if step.error is None else str(step.error)),
)
