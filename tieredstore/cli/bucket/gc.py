"""``tieredstore gc``: what copies and deletes left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    chosen_scope,
)
from tieredstore.cli.app.broker_options import (
    KafkaConfig,
    KafkaProperties,
    MetadataTopicBrokers,
    client_properties,
    open_brokers,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.durations import parse_duration_ms
from tieredstore.cli.app.steps import Report, Yes, is_dry, tell_sum, telling
from tieredstore.cli.terminal.output import JsonValue, counted, human_count, human_time, iso_utc
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.errors import ConfigError, StoreError
from tieredstore.model import human_bytes
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.garbage.collection import collect_garbage
from tieredstore.ops.garbage.steps import Garbage, GarbageOutcome, GarbageStep
from tieredstore.process.parallel import READERS

_WORDS: Final = {
    GarbageOutcome.YOUNG: "too young, or of a copy under way",
    GarbageOutcome.REFERENCED: "got a manifest meanwhile",
    GarbageOutcome.UNKNOWN: "with a manifest that the brokers' records do not name",
    GarbageOutcome.HELD: "under a legal hold",
    GarbageOutcome.LEFT: "that only the store takes away, in its own time",
    GarbageOutcome.GONE: "gone meanwhile, or written again",
    GarbageOutcome.REFUSED: "that the store refuses to delete",
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
    is_dry_run = is_dry(yes=yes, dry_run=dry_run)
    scope, min_age_ms = chosen_scope(topic, topic_id, partition), parse_duration_ms("--min-age", min_age)
    client = client_properties(metadata_topic, kafka_config, kafka_property)
    if unknown_too and client is None:
        raise ConfigError("--unknown-too is for what brokers do not name: name them by --metadata-topic HOST:PORT")
    outcomes: Counter[GarbageOutcome] = Counter()
    freed = unsized = 0
    with (
        open_chosen_bucket(settings, store) as bucket,
        telling(as_json=as_json, report=report) as teller,
        open_brokers(client) as brokers,
    ):
        bucket.refuse_raw("gc", "a log without its index looks like a copy that did not end, and may be the only one")
        steps = collect_garbage(
            bucket.store,
            bucket.prefix,
            scope,
            min_age_ms=min_age_ms,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            brokers=brokers,
            unknown_too=unknown_too,
            dry_run=is_dry_run,
            parallel=parallel,
        )
        with (
            tell_if_stopped(
                lambda: f"stopped; {_sum_of(outcomes, freed, unsized, dry_run=is_dry_run)}; run again to go on"
            ),
            counting("checking" if is_dry_run else "collecting", "leftovers") as advance,
        ):
            for step in steps:
                outcomes[step.outcome] += 1
                if step.outcome is GarbageOutcome.DELETED:
                    freed += step.garbage.size or 0
                    unsized += step.garbage.size is None
                teller.tell(_row(step, bucket), _line(step, bucket, dry_run=is_dry_run))
                advance()
        sentence = _sum_of(outcomes, freed, unsized, dry_run=is_dry_run) if outcomes else "there are no leftovers"
        tell_sum(
            teller, bucket.store, outcomes, done=GarbageOutcome.DELETED, freed=freed,
            sentence=sentence, words=_WORDS, dry_run=is_dry_run,
        )  # fmt: skip
    if outcomes[GarbageOutcome.REFUSED]:
        raise typer.Exit(StoreError.exit_code)


def _sum_of(outcomes: Mapping[GarbageOutcome, int], freed: int, unsized: int, *, dry_run: bool) -> str:
    count = outcomes.get(GarbageOutcome.DELETED, 0)
    done = f"{counted(count, 'leftover')} {'would be deleted' if dry_run else 'deleted'}"
    unknown = f", and {human_count(unsized)} whose size the store does not tell" if unsized else ""
    return f"{done} ({human_bytes(freed)}{unknown})" if count else done


def _kind(garbage: Garbage) -> str:
    if garbage.forgotten is not None:
        return "forgotten by brokers"
    return "unfinished write" if garbage.is_write else "without manifest"


def _line(step: GarbageStep, bucket: Bucket, *, dry_run: bool) -> str | None:
    """What is done, and what somebody should know of; what is simply too young is only counted."""
    if step.outcome is GarbageOutcome.YOUNG and step.reason is None:
        return None
    garbage = step.garbage
    verb = (
        f"would be {step.outcome.value}" if dry_run and step.outcome is GarbageOutcome.DELETED else step.outcome.value
    )
    size = "size not known" if garbage.size is None else human_bytes(garbage.size)
    since = human_time(garbage.modified_ms)
    reason = "" if step.reason is None else f": {step.reason}"
    return f"{verb}  {_kind(garbage)}  {_shown(garbage, bucket)}  ({size}, {since}){reason}"


def _shown(garbage: Garbage, bucket: Bucket) -> str:
    return bucket.shown(garbage.name) if garbage.is_write else garbage.name


def _row(step: GarbageStep, bucket: Bucket) -> dict[str, JsonValue]:
    garbage = step.garbage
    return {
        "outcome": step.outcome.value,
        "kind": _KINDS[_kind(garbage)],
        "name": _shown(garbage, bucket),
        "topic": garbage.partition.topic,
        "topic_id": str(garbage.partition.topic_id),
        "partition": garbage.partition.partition,
        "size": garbage.size,
        "modified_ms": garbage.modified_ms,
        "modified": iso_utc(garbage.modified_ms),
        "reason": step.reason,
    }
