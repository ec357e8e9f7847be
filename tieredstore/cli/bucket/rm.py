"""``tieredstore rm``: the segments of a topic or partition, all or the oldest."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.catalog.listing import Scope, list_in_scope
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
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Report, Tally, Yes, is_dry_run, telling
from tieredstore.cli.bucket.ls import at_least_one
from tieredstore.cli.records.record_places import parse_offset_or_time
from tieredstore.cli.terminal.rows import PARTITION, Row, field
from tieredstore.errors import ConfigError, StoreError
from tieredstore.model import AtTime, Uuid, human_bytes
from tieredstore.ops.brokers import open_brokers
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.garbage.removal import Before, Removal, topic_ids
from tieredstore.ops.listing import ListedSegment
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.parallel import READERS

LEFT_ALONE: Final = {
    Outcome.LEFTOVER: "without a manifest: gc takes them when they are old",
    Outcome.UNKNOWN: "of which nobody knows where they end",
    Outcome.HELD: "under a legal hold",
    Outcome.LISTED: "that the brokers still list",
    Outcome.YOUNG: "too young to be sure that the brokers do not list them",
    Outcome.REFUSED: "that the store refuses to delete",
}
_STAYING: Final = (Outcome.REFUSED, Outcome.HELD, Outcome.LISTED, Outcome.YOUNG)


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
    dry_run, bounds = is_dry_run(yes=yes, dry_run=dry_run), _bounds(before, partition)
    incarnation = None if topic_id is None else Uuid.parse(topic_id)
    client = client_properties(metadata_topic, kafka_config, kafka_property)
    if force and client is None:
        raise ConfigError("--force is for what brokers list: name them by --metadata-topic HOST:PORT")
    tally = Tally(Outcome.REMOVED, LEFT_ALONE, "segment", dry_run=dry_run)
    with (
        open_chosen_bucket(settings, store) as bucket,
        telling(as_json=as_json, report=report) as teller,
        open_brokers(client) as brokers,
    ):
        if incarnation is None:
            _require_one(bucket, topic)
        listed = list_in_scope(bucket.store, bucket.prefix, Scope(topic, incarnation, partition))
        listed = at_least_one(listed, bucket, {topic: [] if partition is None else [partition]}, incarnation)
        removal = Removal(
            bucket.store,
            bucket.prefix,
            rules=bucket.manifest_rules,
            brokers=brokers,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            force=force,
            dry_run=dry_run,
            parallel=parallel,
        )
        with tally.working("removing", "segments") as advance:
            for step in removal.run(listed, bounds):
                tally.add(step.outcome, step.item.objects.stored_size)
                teller.tell(_ROW.json(step), _line(step, tally))
                advance()
        tally.tell_deleted(teller, bucket.store)
    if any(tally.counts[outcome] for outcome in _STAYING):
        raise typer.Exit(StoreError.exit_code)


def _require_one(bucket: Bucket, topic: str) -> None:
    ids = topic_ids(bucket.store, bucket.prefix, topic)
    if len(ids) > 1:
        shown = ", ".join(map(str, ids))
        raise ConfigError(f"the topic {topic} was created again: choose one of {shown} by --topic-id")


def _bounds(before: str | None, partition: int | None) -> Before:
    place = None if before is None else parse_offset_or_time(before)
    if isinstance(place, AtTime):
        return Before(time_ms=place.timestamp_ms)
    if place is not None and partition is None:
        raise ConfigError("--before takes an offset only with a PARTITION: each partition has offsets of its own")
    return Before(offset=place)


def _line(step: Step[ListedSegment], tally: Tally) -> str:
    objects = step.item.objects
    reason = "" if step.reason is None else f": {step.reason}"
    return f"{tally.verb_of(step.outcome)}  {objects.main_path}  ({human_bytes(objects.stored_size)}){reason}"


_ROW: Final[Row[Step[ListedSegment]]] = Row(
    field("outcome", lambda step: step.outcome),
    PARTITION.of(lambda step: step.item.partition),
    field("base_offset", lambda step: step.item.objects.start_offset),
    field("last_offset", lambda step: None if step.item.stored is None else step.item.stored.last_offset),
    field("segment_id", lambda step: step.item.objects.segment_id.id),
    field("stored_size", lambda step: step.item.objects.stored_size),
    field("reason", lambda step: step.reason),
)
