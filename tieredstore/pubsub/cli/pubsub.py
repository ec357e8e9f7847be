"""``tieredstore pubsub``: batches on object storage in the manner of MemQ.

What the commands do lies in modules of their own, which are imported when one of them is asked for. A command has as
many parameters as options.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.arguments import DryRun, Json, SettingsPath, StoreUrl, Wide
from tieredstore.cli.app.durations import parse_duration_ms
from tieredstore.cli.app.steps import Report, Yes, is_dry_run
from tieredstore.errors import ConfigError

_Topic: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_TopicConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option("--topic-config", metavar="FILE", help="The topic as MemQ's JSON has it; its bucket without -c."),
]

_FOLLOWED_MS: Final = 600_000  # what was said before --follow began, so that the other half of a pair is known

app: Final = typer.Typer(no_args_is_help=True, help="Batches of records in a store, in the manner of MemQ.")


@app.callback()
def pubsub() -> None:
    """Batches of records in a store, in the manner of MemQ."""


@app.command()
def inspect(
    batch: Annotated[str, typer.Argument(metavar="FILE|KEY", help="A file on this machine, or a key of the store.")],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    records: Annotated[bool, typer.Option("--records", help="The records, not the Messages.")] = False,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show what a batch of MemQ's says: its Messages, or its records.

    Every Message is decoded to its last record; of damaged ones it says what is wrong, and the exit code is 4. With
    --records those before a damaged one are shown. --records --json is a line a record.

    Example: tieredstore pubsub inspect 28/prod/topics/orders/42_7_1700000000000_0_host-1 --store s3://logs
    """
    from tieredstore.pubsub.cli.commands import open_batch, show_messages, show_records

    with open_batch(batch, settings, store) as source:
        (show_records if records else show_messages)(source, as_json=as_json, wide=wide)


@app.command()
def topics(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.")] = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    create: Annotated[bool, typer.Option("--create", help="Create it.")] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", min=1, help="Read partitions: of a new topic (1), or to have more."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the topics of batches; create one, or give it more read partitions.

    START and END are offsets of its queue, whichever partition has the least and the most.

    Example: tieredstore pubsub topics orders --create --partitions 4 -c store.properties
    """
    from tieredstore.pubsub.cli.commands import change_topic, open_named_topics, show_topics

    with open_named_topics(settings, store, topic_config) as all_topics:
        change_topic(all_topics, topic, create=create, partitions=partitions)
        show_topics(all_topics, topic, as_json=as_json)


@app.command()
def produce(
    topic: _Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    key_separator: Annotated[
        str | None,
        typer.Option("-K", "--key-separator", metavar="TEXT", help="Each line is a key, this, and a value."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT,…", help="Write to these brokers, not to the store."),
    ] = None,
) -> None:
    """Publish the lines of stdin as records, and say when all are stored.

    With --bootstrap, or pubsub.bootstrap in the settings, it speaks to brokers, and needs no access to the store.

    Example: seq 1000 | tieredstore pubsub produce orders -c store.properties
    """
    from tieredstore.pubsub.cli.commands import open_producer, produce_lines

    with open_producer(settings, store, topic, bootstrap, topic_config) as producer:
        produce_lines(producer, topic, key_separator)


@app.command()
def broker(
    settings: SettingsPath = None,
    serve_reads: Annotated[
        bool, typer.Option("--serve-reads", help="Give out objects of topics too (pubsub.broker.serve.reads).")
    ] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log lines of JSON, for a collector of logs.")] = False,
) -> None:
    """Take Messages of producers by MemQ's protocol, and store them in batches, until it is stopped.

    Its settings are those of the store, pubsub.* and pubsub.broker.* in the same file (docs/broker.md). SIGTERM stores
    and answers what it holds.

    Example: tieredstore pubsub broker -c broker.properties
    """
    from tieredstore.pubsub.cli.commands import run_broker

    run_broker(settings, serve_reads=serve_reads, json_logs=json_logs)


@app.command()
def consume(
    topic: _Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Share the topic with this group, go on where it was, commit."),
    ] = None,
    start: Annotated[
        Literal["earliest", "latest"], typer.Option("--from", help="Where to begin without a commit.")
    ] = "earliest",
    delivery: Annotated[
        Literal["at-least-once", "effectively-once"],
        typer.Option("--delivery", help="Effectively once leaves out Messages that stand twice."),
    ] = "at-least-once",
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="At most N records.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as records come.")] = False,
    as_json: Json = False,
) -> None:
    """Show a topic's records up to its end: partition/offset/message/record, time, key, value, headers.

    With --json a line a record: id, key, value and the headers' values in base64, timestamp in ms.

    Example: tieredstore pubsub consume orders -c store.properties --group billing --follow
    """
    from tieredstore.pubsub.cli.commands import consume_records, open_named_topics
    from tieredstore.pubsub.consume.consumer import BatchConsumer

    with open_named_topics(settings, store, topic_config) as all_topics:
        consumer = BatchConsumer(all_topics, topic, group=group, start=start, delivery=delivery)
        consume_records(all_topics, consumer, limit=limit, follow=follow, as_json=as_json)


@app.command()
def groups(
    topic: _Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    as_json: Json = False,
) -> None:
    """Show the groups of a topic: who reads which partition, and how far the group has come.

    POSITION is offset/message/record of the next record; END the end of the partition's queue.

    Example: tieredstore pubsub groups orders -c store.properties
    """
    from tieredstore.pubsub.cli.commands import open_named_topics, show_groups

    with open_named_topics(settings, store, topic_config) as all_topics:
        show_groups(all_topics, topic, as_json=as_json)


@app.command()
def gc(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.")] = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    min_age: Annotated[
        str,
        typer.Option("--min-age", metavar="AGE", help="Only orphans that are older, by the store's clock: 24h, 7d."),
    ] = "24h",
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Tell readers of orphans, and delete none: may double what was sent again.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Delete what retention does not keep, and orphans: objects of which no notification tells.

    Retention (pubsub.retention.ms, pubsub.retention.bytes) frees notifications first; their objects go with a run that
    is pubsub.delete.delay.ms later. Orphans are left by writers that died between object and notification. Without
    --yes it only says what would go. Killed, run it again; one at a time for a topic.

    Example: tieredstore pubsub gc orders -c store.properties --yes
    """
    from tieredstore.pubsub.cli.commands import open_named_topics
    from tieredstore.pubsub.cli.upkeep import choose_topics, collect_garbage
    from tieredstore.pubsub.upkeep.garbage import GarbageCollection

    dry_run, min_age_ms = is_dry_run(yes=yes, dry_run=dry_run), parse_duration_ms("--min-age", min_age)
    with open_named_topics(settings, store, topic_config) as all_topics:
        runs = [
            GarbageCollection(all_topics, each, min_age_ms=min_age_ms, adopt=adopt, dry_run=dry_run)
            for each in choose_topics(all_topics, topic)
        ]
        collect_garbage(all_topics, runs, dry_run=dry_run, report=report, as_json=as_json)


@app.command()
def audit(
    topic: _Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    settle: Annotated[
        str | None,
        typer.Option(
            "--settle",
            metavar="AGE",
            help="What is younger may still come; if not given, pubsub.delivery.timeout.ms, and 300s with --records.",
        ),
    ] = None,
    late: Annotated[
        str, typer.Option("--late", metavar="AGE", help="Stored so long after a later one, a request is late.")
    ] = "60s",
    bodies: Annotated[bool, typer.Option("--bodies", help="Read every object, and look at its checksums.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Pair what producers and consumers say in Kafka (pubsub.audit.topic).")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Pair on, until stopped, and serve pubsub.audit.metrics.listen.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Pair what was said since then; 10m with --follow.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find requests of producers that are lost, doubled, late or altered, by the headers of Messages alone.

    Each producer counts its requests from 0, so that a hole tells of a loss; what it sent last and lost leaves none.
    Where retention has freed something it counts from the first that is there. The exit code is 4 if anything is found
    but what is pending, or lost or empty: MemQ's producers number requests without records, which no broker stores. A
    broker of ours tells of those it had; else nobody knows what a hole of such a producer is.

    With --records, by MemQ's audit records: what producers say to have sent and consumers to have read, in Kafka, is
    paired by count and hash of message ids. --follow does so until it is stopped, into metrics.

    Example: tieredstore pubsub audit orders -c store.properties
    """
    from tieredstore.pubsub.cli.commands import open_named_topics
    from tieredstore.pubsub.cli.upkeep import follow_records, open_audit_log, pair_records, show_audit
    from tieredstore.pubsub.upkeep.audit import TopicAudit

    if bodies and (records or follow):
        raise ConfigError("--bodies looks at objects, and --records and --follow at what Kafka has: give one of them")
    if since is not None and not (records or follow):
        raise ConfigError("--since is of audit records: give --records or --follow")
    now_ms = time.time_ns() // 1_000_000
    settle_ms = None if settle is None else parse_duration_ms("--settle", settle)
    since_ms = None if since is None else now_ms - parse_duration_ms("--since", since)
    late_ms = parse_duration_ms("--late", late)
    with open_named_topics(settings, store, topic_config) as topics:
        if not (follow or records):
            settle_ms = topics.batches.delivery_timeout_ms if settle_ms is None else settle_ms
            show_audit(TopicAudit(topics, topics.get(topic), now_ms, settle_ms, late_ms, bodies), as_json=as_json)
            return
        if follow and since_ms is None:
            since_ms = now_ms - _FOLLOWED_MS
        topics.get(topic)
        with open_audit_log(topics, topic, settle_ms, late_ms, since_ms) as log:
            (follow_records if follow else pair_records)(topics, log, as_json=as_json)


@app.command()
def cost(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.")] = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_config: _TopicConfig = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices", metavar="FILE", help="The price file, TOML or JSON: see docs/cost.md and examples/prices.toml."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what topics cost a month in requests, bytes and money, beside Kafka with replicas across zones.

    What was published is told by the queue; prices, readers, and throughput and retention where they are to be other
    ones, by the price file. No object is opened.

    Example: tieredstore pubsub cost orders -c store.properties --prices examples/prices.toml
    """
    from tieredstore.pubsub.cli.commands import open_named_topics
    from tieredstore.pubsub.cli.upkeep import show_cost

    with open_named_topics(settings, store, topic_config) as all_topics:
        show_cost(all_topics, topic, prices, as_json=as_json)
