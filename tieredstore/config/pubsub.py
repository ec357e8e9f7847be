"""Settings of batches on object storage: ``pubsub.*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import BOOLEAN, NAME, PATH, choice, host_and_port, integer, string

PUBSUB_KAFKA: Final = "pubsub.kafka."
"""What precedes the properties of the client of a queue in Kafka."""

_MESSAGE_BYTES: Final = "pubsub.message.bytes"


def _cluster(text: str) -> str:
    if not text or not all(text.split("/")) or {".", "..", "!tieredstore"} & set(text.split("/")) or len(text) > 255:
        raise ValueError
    return text


class PubsubSettings(SettingsGroup):
    """How topics of batches are written and read."""

    cluster: Annotated[str, string("a name, or some parted by /", _cluster)] = Field(
        default="default",
        alias="pubsub.cluster",
        description="What a bucket's topics of batches belong together by: objects lie under "
        "`[<hh>/]<key.prefix><cluster>/topics/<topic>/`, queues under `<key.prefix>!tieredstore/pubsub/<cluster>/`.",
    )
    hashing: Annotated[bool, BOOLEAN] = Field(
        default=True, alias="pubsub.hashing", description="Spread new topics' objects over 256 prefixes (`<hh>/`)."
    )
    queue: Annotated[str, NAME] = Field(
        default="store",
        alias="pubsub.queue",
        description="Where new topics have their notifications: `store`, beside the objects; `kafka`, as MemQ has "
        "them; or the name that an installed package gives to a queue of its own (entry points `tieredstore.queues`).",
    )
    queue_topic: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.queue.topic",
        description="The Kafka topic of the notifications; by default `<topic>_notifications`.",
    )
    topic_config: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.topic.config",
        description="A topic as MemQ's JSON has it: its bucket, path, notification topic and limits of batches. It is "
        "there beside those of the store, for all that reads or writes topics of batches.",
    )
    compression: Annotated[str, choice("none", "gzip", "zstd")] = Field(
        default="zstd", alias="pubsub.compression", description="How producers compress Messages."
    )
    message_bytes: Annotated[int, integer(1024, 67108864)] = Field(
        default=1048576,
        alias=_MESSAGE_BYTES,
        description="Bytes of a Message before compression; a record that does not fit one is refused.",
    )
    batch_bytes: Annotated[int, integer(1024, 1073741824)] = Field(
        default=16777216, alias="pubsub.batch.bytes", description="A batch is sealed when it has so many stored bytes."
    )
    batch_ms: Annotated[int, integer(1, 3600000)] = Field(
        default=1000, alias="pubsub.batch.ms", description="A batch is sealed when its first record is so old."
    )
    batch_messages: Annotated[int, integer(1, 100000)] = Field(
        default=1000, alias="pubsub.batch.messages", description="A batch is sealed when it has so many Messages."
    )
    buffer_bytes: Annotated[int, integer(1048576)] = Field(
        default=67108864,
        alias="pubsub.buffer.bytes",
        description="Bytes of records that a producer holds until they are stored; then send waits.",
    )
    max_block_ms: Annotated[int, integer(0)] = Field(
        default=60000, alias="pubsub.max.block.ms", description="Send waits so long for room in the buffer."
    )
    delivery_timeout_ms: Annotated[int, integer(1000)] = Field(
        default=120000,
        alias="pubsub.delivery.timeout.ms",
        description="A batch that is not stored and notified so long after its sealing has failed.",
    )
    uploads: Annotated[int, integer(1, 64)] = Field(
        default=4, alias="pubsub.uploads", description="Batches of one producer that are written at once."
    )
    fetches: Annotated[int, integer(1, 64)] = Field(
        default=8, alias="pubsub.fetches", description="Objects of one consumer that are fetched at once."
    )
    fetch_bytes: Annotated[int, integer(1048576)] = Field(
        default=268435456,
        alias="pubsub.fetch.bytes",
        description="Bytes of objects that one consumer holds; one object is always fetched.",
    )
    retention_ms: Annotated[int | None, integer(1)] = Field(
        default=None,
        alias="pubsub.retention.ms",
        description="`pubsub gc` frees batches that were notified so long ago; without it none for their age.",
    )
    retention_bytes: Annotated[int | None, integer(0)] = Field(
        default=None,
        alias="pubsub.retention.bytes",
        description="`pubsub gc` frees a read partition's oldest batches until the others have so many bytes at most.",
    )
    delete_delay_ms: Annotated[int, integer(0)] = Field(
        default=3600000,
        alias="pubsub.delete.delay.ms",
        description="The objects of freed batches are deleted so long after: readers may be about to fetch them.",
    )
    dedup_window_ms: Annotated[int, integer(1)] = Field(
        default=600000,
        alias="pubsub.dedup.window.ms",
        description="A consumer that reads effectively once leaves out Messages that came so long before at most.",
    )
    max_expanded_bytes: Annotated[int, integer(1048576, 1073741824)] = Field(
        default=268435456,
        alias="pubsub.max.expanded.bytes",
        description="What one Message may expand to when it is read; the format does not tell.",
    )
    audit_topic: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.audit.topic",
        description="The Kafka topic (of `pubsub.kafka.bootstrap.servers`) that producers and consumers write MemQ's "
        "audit records into, a record a Message; without it they write none.",
    )
    audit_pages: Annotated[tuple[str, int] | None, string("host:port", host_and_port)] = Field(
        default=None,
        alias="pubsub.audit.metrics.listen",
        description="Where `pubsub audit --follow` serves `/metrics`, `/healthz` and `/readyz`.",
    )

    kafka: tuple[tuple[str, SecretStr], ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> PubsubSettings:
        if self.message_bytes > min(self.buffer_bytes, self.max_expanded_bytes):
            raise broken_rule(_MESSAGE_BYTES, "is more than pubsub.buffer.bytes or pubsub.max.expanded.bytes")
        return self
