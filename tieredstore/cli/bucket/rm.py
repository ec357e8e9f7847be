"""``tieredstore rm``: the segments of a topic or partition, all or the oldest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from tieredstore.catalog.listing import Scope, list_in_scope
from tieredstore.catalog.stored import StoredSegment
from tieredstore.cli.app.arguments import (
    DryRun,
    Json,
    Parallel,
    PartitionToo,
    SettingsPath,
    StoreUrl,
    Topic,
    TopicId,
    one_partition,
)
from tieredstore.cli.app.broker_options import (
    KafkaConfig,
    KafkaProperties,
    MetadataTopicBrokers,
    client_properties,
    open_brokers,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Report, Yes, is_dry, tell_sum, telling
from tieredstore.cli.bucket.ls import at_least_one
from tieredstore.cli.records.record_places import parse_offset_or_time
from tieredstore.cli.terminal.output import JsonValue, counted
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import PARTITION
from tieredstore.errors import ConfigError, StoreError
from tieredstore.model import Uuid, human_bytes
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.garbage.removal import Before, RemovalOutcome, RemovalStep, remove_segments, topic_ids
from tieredstore.process.parallel import READERS

_WORDS: Final = {
    RemovalOutcome.LEFTOVER: "without a manifest: gc takes them when they are old",
    RemovalOutcome.UNKNOWN: "of which nobody knows where they end",
    RemovalOutcome.HELD: "under a legal hold",
    RemovalOutcome.LISTED: "that the brokers still list",
    RemovalOutcome.YOUNG: "too young to be sure that the brokers do not list them",
    RemovalOutcome.REFUSED: "that the store refuses to delete",
}
_STAYING: Final = (RemovalOutcome.REFUSED, RemovalOutcome.HELD, RemovalOutcome.LISTED, RemovalOutcome.YOUNG)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rm(
    topic: Topic,
    partition: Annotated[int | None, typer.Argument(metavar="PARTITION", min=0, help="Only this partition.")] = None,
    partition_too: PartitionToo = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_id: TopicId = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="PLACE", help="Only what is older than an offset or a time."),
    ] = None,
    metadata_topic: MetadataTopicBrokers = None,
    kafka_config: KafkaConfig = None,
    kafka_property: KafkaProperties = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --metadata-topic: also what the brokers list, or may list yet.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    report: Report = None,
    parallel: Parallel = READERS,
    as_json: Json = False,
) -> None:
    """Delete the segments of a topic or of a partition, with --before only the oldest of them; whole segments only.

    Without --yes it only says what would go. A segment's manifest goes first, so that no half of one is ever visible.
    Brokers do not notice: one that still lists a segment fails its readers. With --metadata-topic they are asked, and
    what they list stays, and what no record of theirs names until it is twice as old as a copy may take
    (upload.max.age.ms); so does what is under a legal hold. With --before it ends, in each partition, at the first
    segment that is not older, is listed, or does not tell.

    Example: tieredstore rm -c store.properties orders 0 --before 2026-01-31
    """
    partition = one_partition(partition, partition_too)
    is_dry_run, bounds = is_dry(yes=yes, dry_run=dry_run), _bounds(before, partition)
    incarnation = None if topic_id is None else Uuid.parse(topic_id)
    client = client_properties(metadata_topic, kafka_config, kafka_property)
    if force and client is None:
        raise ConfigError("--force is for what brokers list: name them by --metadata-topic HOST:PORT")
    outcomes: Counter[RemovalOutcome] = Counter()
    freed = 0
    with (
        open_chosen_bucket(settings, store) as bucket,
        telling(as_json=as_json, report=report) as teller,
        open_brokers(client) as brokers,
    ):
        if incarnation is None:
            _require_one(bucket, topic)
        listed = list_in_scope(bucket.store, bucket.prefix, Scope(topic, incarnation, partition))
        listed = at_least_one(listed, bucket, {topic: [] if partition is None else [partition]}, incarnation)
        steps = remove_segments(
            bucket.store,
            bucket.prefix,
            listed,
            bounds,
            rules=bucket.manifest_rules,
            brokers=brokers,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            force=force,
            dry_run=is_dry_run,
            parallel=parallel,
        )
        with (
            tell_if_stopped(lambda: f"stopped; {_sum_of(outcomes, freed, dry_run=is_dry_run)}; run again to go on"),
            counting("checking" if is_dry_run else "removing", "segments") as advance,
        ):
            for step in steps:
                outcomes[step.outcome] += 1
                if step.outcome is RemovalOutcome.REMOVED:
                    freed += step.segment.objects.stored_size
                teller.tell(_row(step), _line(step, dry_run=is_dry_run))
                advance()
        tell_sum(
            teller, bucket.store, outcomes, done=RemovalOutcome.REMOVED, freed=freed,
            sentence=_sum_of(outcomes, freed, dry_run=is_dry_run), words=_WORDS, dry_run=is_dry_run,
        )  # fmt: skip
    if any(outcomes[outcome] for outcome in _STAYING):
        raise typer.Exit(StoreError.exit_code)


def _require_one(bucket: Bucket, topic: str) -> None:
    ids = topic_ids(bucket.store, bucket.prefix, topic)
    if len(ids) > 1:
        shown = ", ".join(map(str, ids))
        raise ConfigError(f"the topic {topic} was created again: choose one of {shown} by --topic-id")


def _bounds(before: str | None, partition: int | None) -> Before:
    place = None if before is None else parse_offset_or_time(before)
    if isinstance(place, datetime):
        return Before(time_ms=round((place - _EPOCH).total_seconds() * 1000))
    if place is not None and partition is None:
        raise ConfigError("--before takes an offset only with a PARTITION: each partition has offsets of its own")
    return Before(offset=place)


def _sum_of(outcomes: Mapping[RemovalOutcome, int], freed: int, *, dry_run: bool) -> str:
    verb = "would be deleted" if dry_run else "deleted"
    count = outcomes.get(RemovalOutcome.REMOVED, 0)
    done = f"{counted(count, 'segment')} {verb}"
    return f"{done} ({human_bytes(freed)})" if count else done


def _line(step: RemovalStep, *, dry_run: bool) -> str:
    objects = step.segment.objects
    verb = "would be removed" if dry_run and step.outcome is RemovalOutcome.REMOVED else step.outcome.value
    reason = "" if step.reason is None else f": {step.reason}"
    return f"{verb}  {objects.main_path}  ({human_bytes(objects.stored_size)}){reason}"


def _row(step: RemovalStep) -> dict[str, JsonValue]:
    objects, loaded = step.segment.objects, step.segment.loaded
    end = loaded.metadata.end_offset if isinstance(loaded, StoredSegment) else -1
    return {
        "outcome": step.outcome.value,
        **PARTITION.json(step.segment.partition),
        "base_offset": objects.start_offset,
        "last_offset": None if end < 0 else end,
        "segment_id": str(objects.segment_id.id),
        "stored_size": objects.stored_size,
        "reason": step.reason,
    }
