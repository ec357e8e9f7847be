"""Settings ``pubsub.*`` of topics of batches, of brokers and of their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.fields import SettingsGroup, SettingsSection, broken_rule
from tieredstore.config.values import BOOLEAN, NAME, PATH, choice, host_and_port, integer, long, string, words
from tieredstore.limits import MAX_INT16

_COORDINATOR: Final = "pubsub.broker.coordinator"
_KEY: Final = "pubsub.broker.tls.key"
_CLIENT_KEY: Final = "pubsub.tls.key"
_MESSAGE_BYTES: Final = "pubsub.message.bytes"


def _cluster(text: str) -> str:
    if not text or not all(text.split("/")) or {".", "..", "!tieredstore"} & set(text.split("/")) or len(text) > 255:
        raise ValueError
    return text


class BatchSettings(SettingsGroup):
    """Settings for writing and reading topics of batches. ``kafka`` holds client properties of a queue in Kafka."""

    client_properties: ClassVar[str] = "pubsub.kafka."

    cluster: Annotated[str, string("names separated by /", _cluster)] = Field(
        default="default",
        alias="pubsub.cluster",
        description="Name of the topics' cluster: objects are under `[<hh>/]<key.prefix><cluster>/topics/<topic>/`, "
        "queues under `<key.prefix>!tieredstore/pubsub/<cluster>/`.",
    )
    hashing: Annotated[bool, BOOLEAN] = Field(
        default=True, alias="pubsub.hashing", description="Spread new topics' objects over 256 prefixes (`<hh>/`)."
    )
    queue: Annotated[str, NAME] = Field(
        default="store",
        alias="pubsub.queue",
        description="For new topics, the queue of notifications about new batches: `store`, beside the "
        "objects; `kafka`, as in MemQ; or the name of an installed queue (entry points `tieredstore.queues`).",
    )
    queue_topic: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.queue.topic",
        description="The Kafka topic of the notifications. If unset, it is `<topic>_notifications`.",
    )
    topic_config: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.topic.config",
        description="MemQ's JSON file of a topic: bucket, path, notification topic and limits of batches. "
        "This topic is added to the topics of the store.",
    )
    compression: Annotated[str, choice("none", "gzip", "zstd")] = Field(
        default="zstd", alias="pubsub.compression", description="How producers compress Messages."
    )
    message_bytes: Annotated[int, integer(1024, 67108864)] = Field(
        default=1048576,
        alias=_MESSAGE_BYTES,
        description="Size in bytes, before compression, at which a Message (a group of records) is "
        "complete. Larger records are refused.",
    )
    batch_bytes: Annotated[int, integer(1024, 1073741824)] = Field(
        default=16777216,
        alias="pubsub.batch.bytes",
        description="Stored size in bytes at which a batch is complete and is written.",
    )
    batch_ms: Annotated[int, integer(1, 3600000)] = Field(
        default=1000,
        alias="pubsub.batch.ms",
        description="Time in ms after a batch's first record at which the batch is written.",
    )
    batch_messages: Annotated[int, integer(1, 100000)] = Field(
        default=1000, alias="pubsub.batch.messages", description="Number of Messages at which a batch is written."
    )
    buffer_bytes: Annotated[int, integer(1048576)] = Field(
        default=67108864,
        alias="pubsub.buffer.bytes",
        description="Bytes of records that a producer may hold before `send` waits.",
    )
    max_block_ms: Annotated[int, integer(0)] = Field(
        default=60000,
        alias="pubsub.max.block.ms",
        description="Time in ms for which `send` waits for room in the buffer of `pubsub.buffer.bytes`.",
    )
    delivery_timeout_ms: Annotated[int, integer(1000)] = Field(
        default=120000,
        alias="pubsub.delivery.timeout.ms",
        description="Time in ms for storing a full batch and its notification. After this time, delivery fails.",
    )
    uploads: Annotated[int, integer(1, 64)] = Field(
        default=4, alias="pubsub.uploads", description="Batches of one producer to write in parallel."
    )
    fetches: Annotated[int, integer(1, 64)] = Field(
        default=8, alias="pubsub.fetches", description="Objects of one consumer to fetch in parallel."
    )
    fetch_bytes: Annotated[int, integer(1048576)] = Field(
        default=268435456,
        alias="pubsub.fetch.bytes",
        description="Bytes of objects that one consumer may hold in memory. A single object may be larger.",
    )
    retention_ms: Annotated[int | None, integer(1)] = Field(
        default=None,
        alias="pubsub.retention.ms",
        description="Age in ms at which `pubsub gc` frees batches. If unset, it ignores age.",
    )
    retention_bytes: Annotated[int | None, integer(0)] = Field(
        default=None,
        alias="pubsub.retention.bytes",
        description="Bytes of a read partition that `pubsub gc` keeps; it frees the oldest batches first.",
    )
    delete_delay_ms: Annotated[int, integer(0)] = Field(
        default=3600000,
        alias="pubsub.delete.delay.ms",
        description="Time in ms from freeing a batch to deleting its object, which readers may still be fetching.",
    )
    dedup_window_ms: Annotated[int, integer(1)] = Field(
        default=600000,
        alias="pubsub.dedup.window.ms",
        description="Time in ms, by the writers' clocks, over which an effectively-once consumer recognizes repeated "
        "Messages.",
    )
    max_expanded_bytes: Annotated[int, integer(1048576, 1073741824)] = Field(
        default=268435456,
        alias="pubsub.max.expanded.bytes",
        description="Maximum bytes of one Message after decompression.",
    )
    audit_topic: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.audit.topic",
        description="Kafka topic (on `pubsub.kafka.bootstrap.servers`) for MemQ's audit records, one "
        "record per Message. If unset, no audit records are written.",
    )
    audit_pages: Annotated[tuple[str, int] | None, string("host:port", host_and_port)] = Field(
        default=None,
        alias="pubsub.audit.metrics.listen",
        description="Address at which `pubsub verify --follow` serves `/metrics`, `/healthz` and `/readyz`.",
    )

    kafka: tuple[tuple[str, SecretStr], ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> BatchSettings:
        if self.message_bytes > min(self.buffer_bytes, self.max_expanded_bytes):
            raise broken_rule(_MESSAGE_BYTES, "is more than pubsub.buffer.bytes or pubsub.max.expanded.bytes")
        return self


def _address(text: str) -> tuple[str, int]:
    return host_and_port(text, MAX_INT16)


class BatchBrokerSettings(SettingsGroup):
    """Settings of ``tieredstore pubsub broker``: address, buffer, coordination and security."""

    listen: Annotated[tuple[str, int], string("host:port, the port up to 32767", _address)] = Field(
        default=("0.0.0.0", 9092),  # noqa: S104  a broker serves other machines
        alias="pubsub.broker.listen",
        description="Address at which the broker accepts connections in MemQ's protocol.",
    )
    advertised: Annotated[tuple[str, int] | None, string("host:port, the port up to 32767", _address)] = Field(
        default=None,
        alias="pubsub.broker.advertised",
        description="Address that clients connect to. If unset, it is this machine's address with the "
        "port of `pubsub.broker.listen`.",
    )
    rack: Annotated[str, string()] = Field(
        default="", alias="pubsub.broker.rack", description="Zone of the broker (MemQ's locality)."
    )
    pages: Annotated[tuple[str, int] | None, string("host:port", host_and_port)] = Field(
        default=None,
        alias="pubsub.broker.metrics.listen",
        description="Address at which the broker serves `/metrics`, `/healthz` and `/readyz`.",
    )
    buffer_bytes: Annotated[int, integer(16777216)] = Field(
        default=268435456,
        alias="pubsub.broker.buffer.bytes",
        description="Maximum bytes of Messages that a broker holds before it stops reading requests.",
    )
    connections: Annotated[int, integer(1, 1000000)] = Field(
        default=10000,
        alias="pubsub.broker.max.connections",
        description="Maximum number of connections; further connections are closed.",
    )
    serve_reads: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="pubsub.broker.serve.reads", description="Answer READ requests for a topic's objects."
    )
    batch_by: Annotated[str, choice("any", "producer")] = Field(
        default="any",
        alias="pubsub.batch.by",
        description="Which Messages share a batch of a broker. `any`: Messages of all producers. `producer`: each "
        "producer's Messages go to one read partition; effectively-once with several brokers needs this.",
    )
    coordinator: Annotated[str, choice("none", "store", "zookeeper")] = Field(
        default="store",
        alias=_COORDINATOR,
        description="How brokers divide topics among themselves. `store`: by leases in the store. "
        "`zookeeper`: by MemQ's nodes in ZooKeeper. `none`: this broker has all topics.",
    )
    zookeeper: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.broker.zookeeper.connect",
        description="ZooKeeper's servers, `host:port,host:port/path`. If MemQ's own brokers run too, use "
        "their servers and path.",
    )
    zookeeper_session_ms: Annotated[int, integer(1000, 600000)] = Field(
        default=8000,
        alias="pubsub.broker.zookeeper.session.ms",
        description="Session timeout in ms after which ZooKeeper drops a broker.",
    )
    assignment: Annotated[str, NAME] = Field(
        default="free-capacity",
        alias="pubsub.broker.assignment",
        description="How topics are assigned to brokers: by `free-capacity`, or by a Python class "
        "`module.Class`, a subclass of `tieredstore.pubsub.governor.assigning.AssignmentStrategy`.",
    )
    capacity_mb: Annotated[int, integer(1, 1000000)] = Field(
        default=200, alias="pubsub.broker.capacity.mb", description="Capacity of the broker in MB per second."
    )
    drain_ms: Annotated[int, long(0)] = Field(
        default=60000,
        alias="pubsub.broker.drain.ms",
        description="Time in ms for a broker to hand over its topics and store its Messages after SIGTERM.",
    )
    authorizer: Annotated[str, NAME] = Field(
        default="none",
        alias="pubsub.broker.authorizer",
        description="Authorization of reads and writes: `none` allows all; or a Python class `module.Class`, a "
        "subclass of `tieredstore.pubsub.broker.authorization.Authorizer`.",
    )
    certificate: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.broker.tls.certificate",
        description="The broker's certificate and its chain (PEM); makes TLS mandatory.",
    )
    key: Annotated[Path | None, PATH] = Field(
        default=None, alias=_KEY, description="The certificate's private key (PEM), without a password."
    )
    client_ca: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.broker.tls.client.ca",
        description="CA certificates for clients (PEM); makes client certificates mandatory.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> BatchBrokerSettings:
        if (self.certificate is None) != (self.key is None):
            raise broken_rule(_KEY, "and pubsub.broker.tls.certificate belong together: set both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise broken_rule("pubsub.broker.tls.client.ca", "needs pubsub.broker.tls.certificate")
        if self.coordinator == "zookeeper" and self.zookeeper is None:
            raise broken_rule(_COORDINATOR, "zookeeper needs pubsub.broker.zookeeper.connect")
        return self


class BatchClientSettings(SettingsGroup):
    """Settings of producers that write to brokers."""

    bootstrap: Annotated[tuple[str, ...], words("host:port, separated by commas", host_and_port)] = Field(
        default=(),
        alias="pubsub.bootstrap",
        description="Brokers that a producer contacts first. If set, producers write to brokers; if "
        "unset, to the store.",
    )
    rack: Annotated[str, string()] = Field(
        default="",
        alias="pubsub.rack",
        description="Zone of a producer. The producer prefers brokers of the same zone.",
    )
    linger_ms: Annotated[int, integer(0, 60000)] = Field(
        default=10,
        alias="pubsub.linger.ms",
        description="Time in ms after a Message's first record at which the Message is sent to a broker.",
    )
    request_timeout_ms: Annotated[int, integer(100)] = Field(
        default=15000,
        alias="pubsub.request.timeout.ms",
        description="Time in ms that a producer waits for a broker before it tries another broker. It "
        "must be longer than storing a batch takes.",
    )
    endpoints: Annotated[int, integer(1, 64)] = Field(
        default=1, alias="pubsub.write.endpoints", description="Number of brokers that a producer writes to in turn."
    )
    tls: Annotated[str, choice("none", "tls")] = Field(
        default="none", alias="pubsub.security", description="Whether producers connect to brokers by TLS."
    )
    ca: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.tls.ca",
        description="CA certificates for brokers (PEM). If unset, the system's CA certificates apply.",
    )
    certificate: Annotated[Path | None, PATH] = Field(
        default=None, alias="pubsub.tls.certificate", description="The client's certificate and its chain (PEM)."
    )
    key: Annotated[Path | None, PATH] = Field(
        default=None, alias=_CLIENT_KEY, description="The certificate's private key (PEM), without a password."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> BatchClientSettings:
        if (self.certificate is None) != (self.key is None):
            raise broken_rule(_CLIENT_KEY, "and pubsub.tls.certificate belong together: set both or neither")
        return self


SECTIONS: Final = (
    SettingsSection(
        "Batches on object storage",
        f"The plugin has no such settings. `{BatchSettings.client_properties}*` are properties of the Kafka client, "
        "for a queue in Kafka.",
        (BatchSettings,),
    ),
    SettingsSection(
        "Brokers of batches",
        "For `tieredstore pubsub broker` and for producers that write to brokers. The plugin has no such settings.",
        (BatchBrokerSettings, BatchClientSettings),
    ),
)
"""All groups, in the order of docs/reference/settings.md."""
