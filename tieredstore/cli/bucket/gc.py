"""``tieredstore gc``: what copies and deletes left behind."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.cli.app.arguments import (
    DryRun,
    Json,
    OnlyPartition,
    OnlyTopic,
    Parallel,
    SettingsPath,
    StoreUrl,
    TopicId,
    choose_scope,
)
from tieredstore.cli.app.broker_options import (
    KafkaConfig,
    KafkaProperties,
    MetadataTopicBrokers,
    client_properties,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.durations import parse_duration_ms
from tieredstore.cli.app.steps import Report, Tally, Yes, is_dry_run, telling
from tieredstore.cli.terminal.output import human_time, iso_utc
from tieredstore.cli.terminal.rows import PARTITION, Row, field
from tieredstore.errors import ConfigError, StoreError
from tieredstore.model import human_bytes
from tieredstore.ops.brokers import open_brokers
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.garbage.collection import Garbage, GarbageCollection
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.parallel import READERS

_WORDS: Final = {
    Outcome.YOUNG: "too young, or of a copy under way",
    Outcome.REFERENCED: "got a manifest meanwhile",
    Outcome.UNKNOWN: "with a manifest that the brokers' records do not name",
    Outcome.HELD: "under a legal hold",
    Outcome.LEFT: "that only the store takes away, in its own time",
    Outcome.GONE: "gone meanwhile, or written again",
    Outcome.REFUSED: "that the store refuses to delete",
}


_KINDS: Final = {
    "forgotten by brokers": "forgotten",
    "unfinished write": "unfinished_write",
    "without manifest": "no_manifest",
}


def gc(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    min_age: Annotated[
        str, typer.Option("--min-age", metavar="AGE", help="Only what is older, by the store's clock: 24h, 7d.")
    ] = "24h",
    metadata_topic: MetadataTopicBrokers = None,
    kafka_config: KafkaConfig = None,
    kafka_property: KafkaProperties = None,
    unknown_too: Annotated[
        bool,
        typer.Option("--unknown-too", help="With --metadata-topic: also segments that its records never named."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    report: Report = None,
    parallel: Parallel = READERS,
    as_json: Json = False,
) -> None:
    """Delete what broken copies and deletes left: objects without a manifest, and writes that never ended.

    With --metadata-topic also segments that brokers have forgotten: those they deleted, and copies that they do not
    take for finished. Without --yes it only says what would go. Whether there is a manifest is asked again right before
    each deletion; what is under a legal hold stays, and so does all that is not a segment's. Stopped or killed, run it
    again.

    Example: tieredstore gc -c store.properties --min-age 48h
    """
    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    scope, min_age_ms = choose_scope(topic, topic_id, partition), parse_duration_ms("--min-age", min_age)
    client = client_properties(metadata_topic, kafka_config, kafka_property)
    if unknown_too and client is None:
        raise ConfigError("--unknown-too is for what brokers do not name: name them by --metadata-topic HOST:PORT")
    tally = Tally(Outcome.DELETED, _WORDS, "leftover", dry_run=dry_run)
    with (
        open_chosen_bucket(settings, store) as bucket,
        telling(as_json=as_json, report=report) as teller,
        open_brokers(client) as brokers,
    ):
        bucket.refuse_raw("gc", "a log without its index looks like a copy that did not end, and may be the only one")
        collection = GarbageCollection(
            bucket.store,
            bucket.prefix,
            min_age_ms=min_age_ms,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            brokers=brokers,
            unknown_too=unknown_too,
            dry_run=dry_run,
            parallel=parallel,
        )
        row = _row(bucket)
        with tally.working("collecting", "leftovers") as advance:
            for step in collection.run(scope):
                tally.add(step.outcome, step.item.size)
                teller.tell(row.json(step), _line(step, bucket, tally))
                advance()
        tally.tell_deleted(teller, bucket.store, None if tally.counts else "there are no leftovers")
    if tally.counts[Outcome.REFUSED]:
        raise typer.Exit(StoreError.exit_code)


def _kind(garbage: Garbage) -> str:
    if garbage.forgotten is not None:
        return "forgotten by brokers"
    return "unfinished write" if garbage.is_write else "without manifest"


def _line(step: Step[Garbage], bucket: Bucket, tally: Tally) -> str | None:
    """What is done, and what somebody should know of; what is simply too young is only counted."""
    if step.outcome is Outcome.YOUNG and step.reason is None:
        return None
    garbage = step.item
    size = "size not known" if garbage.size is None else human_bytes(garbage.size)
    since = human_time(garbage.modified_ms)
    reason = "" if step.reason is None else f": {step.reason}"
    kind, name = _kind(garbage), _shown(garbage, bucket)
    return f"{tally.verb_of(step.outcome)}  {kind}  {name}  ({size}, {since}){reason}"


def _shown(garbage: Garbage, bucket: Bucket) -> str:
    return bucket.shown(garbage.name) if garbage.is_write else garbage.name


def _row(bucket: Bucket) -> Row[Step[Garbage]]:
    return Row(
        field("outcome", lambda step: step.outcome),
        field("kind", lambda step: _KINDS[_kind(step.item)]),
        field("name", lambda step: _shown(step.item, bucket)),
        PARTITION.of(lambda step: step.item.partition),
        field("size", lambda step: step.item.size),
        field("modified_ms", lambda step: step.item.modified_ms),
        field("modified", lambda step: iso_utc(step.item.modified_ms)),
        field("reason", lambda step: step.reason),
    )
