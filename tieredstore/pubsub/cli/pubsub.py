"""``tieredstore pubsub``: batches on object storage in the manner of MemQ.

What the commands do lies in modules of their own, which are imported when one of them is asked for.
"""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Final, Literal

import typer

from tieredstore.api.positions import duration_of
from tieredstore.cli.app.options import (
    Apply,
    Count,
    Follow,
    From,
    GroupName,
    Json,
    JsonLogs,
    Last,
    MinAge,
    Output,
    Prices,
    SettingsFile,
    parse_option,
)
from tieredstore.errors import ConfigError
from tieredstore.model import AtTime
from tieredstore.pubsub.cli.options import BatchStore, TopicName, TopicNames

_FOLLOWED_MS: Final = 600_000  # what was said before --follow began, so that the other half of a pair is known
_NO_STORE: Final = {"storage.backend.class": "memory"}

app: Final = typer.Typer(no_args_is_help=True, help="Batches of records in a store, in the manner of MemQ.")


@app.callback()
def pubsub() -> None:
    """Batches of records in a store, in the manner of MemQ."""


@app.command()
def topics(
    topics: TopicNames,
    store: BatchStore,
    create: Annotated[bool, typer.Option("--create", help="Create them.")] = False,
    read_partitions: Annotated[
        int | None,
        typer.Option(
            "--read-partitions", metavar="N", min=1, help="Read partitions: of a new topic (1), or to have more."
        ),
    ] = None,
    prices: Prices = None,
    *,
    output: Output,
) -> None:
    """Show topics of batches, and groups of those that are named; create topics, or give them more read partitions.

    START and END are offsets of a topic's queue, whichever partition has the least and the most. Of groups POSITION is
    offset/message/record of the next record, END the end of the partition's queue.

    With --prices it says what topics cost a month in requests, bytes and money, beside Kafka with replicas across
    zones. What was published is told by the queue; readers, and another throughput or retention, by the price file. No
    object is opened.

    Example: tieredstore pubsub topics orders --create --read-partitions 4 -c store.properties
    """
    from tieredstore.pubsub.cli.topics import show_costs, show_topics

    is_change = create or read_partitions is not None
    if is_change and not topics.names:
        raise ConfigError("which topic? --create and --read-partitions need its name")
    with store.open_topics() as opened:
        for name in topics.names if is_change else ():
            if create:
                opened.create(name, read_partitions or 1)
            else:
                opened.grow(name, read_partitions or 1)
        chosen = opened.select(topics.names)
        if prices is not None:
            show_costs(opened, chosen, prices, output)
        else:
            show_topics(opened, chosen, output, with_groups=bool(topics.names) and not is_change)


@app.command()
def produce(
    topic: TopicName,
    store: BatchStore,
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
    if bootstrap is not None and store.url is not None:
        raise ConfigError("--bootstrap writes to brokers and --store to a store: give one of them")
    if bootstrap is not None and store.topic_config is not None:
        raise ConfigError("--bootstrap writes to brokers, which have the topic's configuration: give one of them")
    from tieredstore.pubsub.cli.records import produce_lines
    from tieredstore.pubsub.produce.producer import BatchProducer

    if store.topic_config is not None:  # it is written to the store, whatever pubsub.bootstrap says
        with store.open_topics() as opened, BatchProducer(opened, topic) as producer:
            produce_lines(producer, topic, key_separator)
        return
    source = _NO_STORE if store.settings is None and bootstrap is not None else store.read_settings()
    with BatchProducer(source, topic, brokers=bootstrap) as producer:
        produce_lines(producer, topic, key_separator)


@app.command()
def cat(
    topic: TopicName,
    store: BatchStore,
    last: Last = None,
    *,
    group: GroupName = None,
    delivery: Annotated[
        Literal["at-least-once", "effectively-once"],
        typer.Option("--delivery", help="Effectively once leaves out Messages that stand twice."),
    ] = "at-least-once",
    count: Count = None,
    follow: Follow = False,
    output: Json,
) -> None:
    """Show a topic's records up to its end: partition/offset/message/record, time, key, value, headers.

    A group goes on where it has committed, and --last says where it begins without that. With --json a line a record:
    id, key, value and the headers' values in base64, timestamp in ms.

    Example: tieredstore pubsub cat orders -c store.properties --group billing --follow
    """
    from tieredstore.pubsub.cli.records import show_records
    from tieredstore.pubsub.consume.consumer import BatchConsumer

    with store.open_topics() as opened:
        start: Literal["earliest", "latest"] = "latest" if last == 0 else "earliest"
        consumer = BatchConsumer(opened, topic, group=group, start=start, delivery=delivery)
        show_records(opened, consumer, last=last, count=count, follow=follow, as_json=output.as_json)


@app.command()
def broker(
    file: SettingsFile,
    serve_reads: Annotated[
        bool, typer.Option("--serve-reads", help="Give out objects of topics too (pubsub.broker.serve.reads).")
    ] = False,
    *,
    json_logs: JsonLogs = False,
) -> None:
    """Take Messages of producers by MemQ's protocol, and store them in batches, until it is stopped.

    Its settings are those of the store, pubsub.* and pubsub.broker.* in the same file (docs/how-to/batch-brokers.md).
    SIGTERM stores and answers what it holds.

    Example: tieredstore pubsub broker -c broker.properties
    """
    path = file.path("pubsub.broker.*")
    from tieredstore.cli.terminal.log_lines import log_lines
    from tieredstore.places.opening import open_places
    from tieredstore.pubsub.broker.running import broker_service, make_governed_broker
    from tieredstore.pubsub.queue.topics import Topics
    from tieredstore.pubsub.settings import BatchBrokerSettings
    from tieredstore.remote.stores import settings_of

    log_lines(as_json=json_logs)
    settings = settings_of(path)
    if serve_reads:
        own = settings.section(BatchBrokerSettings).model_copy(update={"serve_reads": True})
        settings = settings.with_section(own)
    with contextlib.closing(open_places(settings)) as store:
        code = broker_service(*make_governed_broker(Topics(store, settings))).run()
    raise typer.Exit(code)


@app.command()
def gc(
    topics: TopicNames,
    store: BatchStore,
    min_age: MinAge = "24h",
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Tell readers of orphans, and delete none: may double what was sent again.")
    ] = False,
    *,
    apply: Apply,
    output: Json,
) -> None:
    """Delete what retention does not keep, and orphans: objects that no notification refers to.

    Retention (pubsub.retention.ms, pubsub.retention.bytes) frees notifications first; their objects go with a run that
    is pubsub.delete.delay.ms later. Orphans are left by writers that died between object and notification; --min-age
    is theirs alone. Without --yes it only says what would go. Killed, run it again; one at a time for a topic.

    Example: tieredstore pubsub gc orders -c store.properties --yes
    """
    from tieredstore.pubsub.cli.upkeep import collect_garbage

    least = duration_of("--min-age", min_age)
    with store.open_topics() as opened:
        collect_garbage(opened, topics.names, least, adopt=adopt, yes=apply.yes, as_json=output.as_json)


@app.command()
def verify(
    topic: TopicName,
    store: BatchStore,
    settle: Annotated[
        str | None,
        typer.Option(
            "--settle",
            metavar="AGE",
            help="What is younger may still come; if not given, pubsub.delivery.timeout.ms, and 300s with "
            "--audit-records.",
        ),
    ] = None,
    late: Annotated[
        str, typer.Option("--late", metavar="AGE", help="Stored so long after a later one, a request is late.")
    ] = "60s",
    bodies: Annotated[bool, typer.Option("--bodies", help="Read every object, and look at its checksums.")] = False,
    audit_records: Annotated[
        bool,
        typer.Option("--audit-records", help="Pair what producers and consumers say in Kafka (pubsub.audit.topic)."),
    ] = False,
    follow: Follow = False,
    start: From = None,
    *,
    output: Json,
) -> None:
    """Find requests of producers that are lost, doubled, late or altered, by the headers of Messages alone.

    Each producer counts its requests from 0, so that a hole tells of a loss; what it sent last and lost leaves none.
    Where retention has freed something it counts from the first that is there. The exit code is 4 if anything is found
    but what is pending, or lost or empty: MemQ's producers number requests without records, which no broker stores. A
    broker of ours tells of those it had; else nobody knows what a hole of such a producer is.

    With --audit-records, by MemQ's audit records: what producers say to have sent and consumers to have read, in Kafka,
    is paired by count and hash of message ids, of what was said since the time --from. --follow does so until it is
    stopped, from ten minutes ago, into metrics at pubsub.audit.metrics.listen.

    Example: tieredstore pubsub verify orders -c store.properties
    """
    is_of_records = audit_records or follow
    if bodies and is_of_records:
        raise ConfigError(
            "--bodies looks at objects, and --audit-records and --follow at what Kafka has: give one of them"
        )
    since = parse_option("--from", start)
    if since is not None and not is_of_records:
        raise ConfigError("--from is of audit records: give --audit-records or --follow")
    if isinstance(since, int):
        raise ConfigError(f"--from {since} is an offset: of audit records give a time, as -1h or @{since}")
    settle_ms = None if settle is None else _ms_of("--settle", settle)
    late_ms = _ms_of("--late", late)
    from tieredstore.pubsub.cli.upkeep import follow_audit_log, open_audit_log, pair_audit_records, show_audit
    from tieredstore.pubsub.upkeep.audit import TopicAudit

    with store.open_topics() as opened:
        now_ms = time.time_ns() // 1_000_000
        if not is_of_records:
            settle_ms = opened.batches.delivery_timeout_ms if settle_ms is None else settle_ms
            show_audit(
                TopicAudit(opened, opened.get(topic), now_ms, settle_ms, late_ms, bodies), as_json=output.as_json
            )
            return
        since_ms = since.timestamp_ms if isinstance(since, AtTime) else now_ms - _FOLLOWED_MS if follow else None
        opened.get(topic)
        with open_audit_log(opened, topic, settle_ms, late_ms, since_ms) as log:
            if follow:
                follow_audit_log(opened, log, as_json=output.as_json)
            else:
                pair_audit_records(log, as_json=output.as_json)


def _ms_of(option: str, text: str) -> int:
    return int(duration_of(option, text).total_seconds() * 1000)
