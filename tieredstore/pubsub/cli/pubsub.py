"""``tieredstore pubsub``: batches on object storage, like MemQ's.

Other modules implement the commands; a command imports them when it runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.groups import Group
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
    Store,
    parse_time,
)
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.query.positions import duration_of

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.pubsub.queue.topics import Topics

# ``--follow`` begins this many ms before now. A Message that is read now may have been sent that long ago, and then its
# producer's audit record is that old.
_FOLLOWED_MS: Final = 600_000

TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@dataclass(frozen=True, slots=True)
class TopicNames(Group):
    """The selected topics of batches; all by default."""

    PANEL: ClassVar[str] = "Topics"
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics, by name or glob.")] = (
        None
    )

    @property
    def names(self) -> Sequence[str]:
        """The given names and globs."""
        return self.topics or ()


@dataclass(frozen=True, slots=True)
class BatchStore(Store):
    """The bucket, and optionally a topic of MemQ in it."""

    topic_config: Annotated[
        Path | None,
        typer.Option(
            "--topic-config", metavar="FILE", help="MemQ's JSON of the topic; without -c, it also names the bucket."
        ),
    ] = None

    def read_settings(self) -> Settings:
        """Return the store's settings with the topic's configuration. If no store is given, use the topic's bucket."""
        if self.topic_config is None:
            return Store.read_settings(self)
        from tieredstore.pubsub.queue.memq_topics import load_topic_config
        from tieredstore.pubsub.settings import BatchSettings

        bucket = load_topic_config(self.topic_config).bucket
        settings = Store.read_settings(self if self.is_given else replace(self, url=f"s3://{bucket}"))
        batches = settings.section(BatchSettings)
        return settings.with_section(batches.model_copy(update={"topic_config": self.topic_config}))

    @contextlib.contextmanager
    def open_topics(self) -> Generator[Topics]:
        """Open the topics of the bucket for the block."""
        from tieredstore.pubsub.queue.memq_topics import open_topics

        with open_topics(self.read_settings()) as topics:
            yield topics


app: Final = typer.Typer(add_completion=False)


@app.command()
def topics(
    topics: TopicNames,
    store: BatchStore,
    create: Annotated[bool, typer.Option("--create", help="Create the topics.")] = False,
    read_partitions: Annotated[
        int | None,
        typer.Option(
            "--read-partitions",
            metavar="N",
            min=1,
            help="Number of read partitions (default 1); an existing topic can get a higher number.",
        ),
    ] = None,
    prices: Prices = None,
    *,
    output: Output,
) -> None:
    """Show topics of batches, and for named topics their groups; create topics, or add read partitions.

    START and END are the least and the greatest offset of a topic's queue, over all partitions. For groups, POSITION is
    the next record as offset/message/record, and END the end of the partition's queue.

    With --prices, show monthly costs of topics (requests, bytes and money) beside the costs of Kafka with replicas
    across zones. The queue gives the published bytes. The price file gives the number of readers, and may give another
    throughput or retention. No object is read.

    Example: tieredstore pubsub topics orders --create --read-partitions 4 -c store.properties
    """
    from tieredstore.pubsub.cli.topics import show_costs, show_topics

    is_change = create or read_partitions is not None
    if is_change and not topics.names:
        raise ConfigError("--create and --read-partitions need the name of a topic")
    with store.open_topics() as opened:
        for name in topics.names if is_change else ():
            if create:
                opened.create(name, read_partitions or 1)
            else:
                opened.grow(name, read_partitions or 1)
        damaged: list[TieredStoreError] = []
        chosen = opened.select(topics.names, damaged.append)
        if chosen or not damaged:  # if all are damaged, do not say that there are no topics
            if prices is not None:
                show_costs(opened, chosen, output, damaged.append, price_file=prices)
            else:
                show_topics(opened, chosen, output, damaged.append, with_groups=bool(topics.names) and not is_change)
        if damaged:
            raise type(damaged[0])("; ".join(map(str, damaged)))


@app.command()
def produce(
    topic: TopicName,
    store: BatchStore,
    key_separator: Annotated[
        str | None,
        typer.Option("-K", "--key-separator", metavar="TEXT", help="Split each line into key and value at TEXT."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT,…", help="Write to these brokers instead of the store."),
    ] = None,
) -> None:
    """Publish the lines of stdin as records, and report when all are stored.

    With --bootstrap, or pubsub.bootstrap in the settings, write to brokers, without access to the store.

    Example: seq 1000 | tieredstore pubsub produce orders -c store.properties
    """
    if bootstrap is not None and store.url is not None:
        raise ConfigError("--bootstrap writes to brokers, but --store to a store: leave out one of the two")
    if bootstrap is not None and store.topic_config is not None:
        raise ConfigError(
            "--bootstrap writes to brokers, which know the topic's configuration: leave out --topic-config"
        )
    from tieredstore.pubsub.cli.records import produce_lines
    from tieredstore.pubsub.produce.producer import BatchProducer

    if store.topic_config is not None:  # write to the store, ignoring pubsub.bootstrap
        with store.open_topics() as opened, BatchProducer(opened, topic) as producer:
            produce_lines(producer, topic, key_separator)
        return
    with BatchProducer(
        store.settings if bootstrap is not None else store.read_settings(), topic, brokers=bootstrap
    ) as producer:
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
        typer.Option("--delivery", help="effectively-once skips repeated Messages."),
    ] = "at-least-once",
    count: Count = None,
    follow: Follow = False,
    output: Json,
) -> None:
    """Show a topic's records up to its end: partition/offset/message/record, time, key, value, headers.

    A group continues at its commit. Without a commit, --last sets where the group begins. --json prints one line per
    record: id, key, value and headers' values in base64, timestamp in ms.

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
        bool, typer.Option("--serve-reads", help="Also serve reads of topics' objects (pubsub.broker.serve.reads).")
    ] = False,
    *,
    json_logs: JsonLogs = False,
) -> None:
    """Run a broker: accept Messages from producers by MemQ's protocol, and store them in batches, until stopped.

    The settings file holds the store's settings, pubsub.* and pubsub.broker.* (docs/how-to/batches.md). After
    SIGTERM the broker stores and acknowledges its Messages.

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
        bool, typer.Option("--adopt", help="Publish orphans instead of deleting them; may repeat records.")
    ] = False,
    *,
    apply: Apply,
    output: Json,
) -> None:
    """Delete batches beyond retention, and orphans: objects that no notification refers to.

    Retention (pubsub.retention.ms, pubsub.retention.bytes) first frees notifications. A run at least
    pubsub.delete.delay.ms later deletes their objects. A writer that dies between putting an object and appending its
    notification leaves an orphan. --min-age applies only to orphans.

    Without --yes, only print the plan. If a run is killed, start it again. Only one run at a time may work on a topic.

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
            help="Missing requests younger than AGE are pending. Default: pubsub.delivery.timeout.ms, or 300s with "
            "--audit-records.",
        ),
    ] = None,
    late: Annotated[
        str,
        typer.Option(
            "--late",
            metavar="AGE",
            help="A request is late if it was stored AGE or more after a higher-numbered request.",
        ),
    ] = "60s",
    bodies: Annotated[bool, typer.Option("--bodies", help="Read every object, and check its checksums.")] = False,
    audit_records: Annotated[
        bool,
        typer.Option("--audit-records", help="Pair audit records of producers and consumers (pubsub.audit.topic)."),
    ] = False,
    follow: Follow = False,
    start: From = None,
    *,
    output: Json,
) -> None:
    """Find requests of producers that are lost, doubled, late or altered, by the headers of Messages.

    Each producer numbers its requests from 0, so a missing number means a lost request. The loss of a producer's last
    requests is not found. If retention has freed batches, numbering begins at the first batch left. The exit code is 4
    for any finding, except for requests that are pending, or lost or empty.

    MemQ's producers also number requests without records, but MemQ's brokers do not store these, so a missing request
    may have been empty. This project's brokers record empty requests.

    With --audit-records, pair MemQ's audit records, written to Kafka since --from. Each record of a producer is paired
    with the consumers' records of the same Message. The count and the hash of the message ids must agree.

    --follow begins with the records of the last ten minutes, and pairs new records until it is stopped. It serves
    metrics at pubsub.audit.metrics.listen.

    Example: tieredstore pubsub verify orders -c store.properties
    """
    is_of_records = audit_records or follow
    if bodies and is_of_records:
        raise ConfigError("--bodies reads objects, but --audit-records and --follow read Kafka: leave out --bodies")
    since = parse_time("--from", start)
    if since is not None and not is_of_records:
        raise ConfigError("--from applies to audit records: give --audit-records or --follow")
    settle_ms = None if settle is None else _ms_of("--settle", settle)
    late_ms = _ms_of("--late", late)
    from tieredstore.pubsub.cli.upkeep import pair_audit_records, show_audit
    from tieredstore.pubsub.queue.topics import BatchLog
    from tieredstore.pubsub.upkeep.audit import TopicAudit

    with store.open_topics() as opened:
        now_ms = time.time_ns() // 1_000_000
        if not is_of_records:
            settle_ms = opened.batches.delivery_timeout_ms if settle_ms is None else settle_ms
            with BatchLog(opened, opened.get(topic)) as log:
                show_audit(TopicAudit(log, now_ms, settle_ms, late_ms, bodies), as_json=output.as_json)
            return
        since_ms = since.timestamp_ms if since is not None else now_ms - _FOLLOWED_MS if follow else None
        opened.get(topic)
        pair_audit_records(opened, topic, settle_ms, late_ms, since_ms, follow=follow, as_json=output.as_json)


def _ms_of(option: str, text: str) -> int:
    return int(duration_of(option, text).total_seconds() * 1000)
