"""Audit records of producers and consumers in Kafka, compatible with MemQ's ``KafkaBackedAuditor``.

Producers and consumers neither wait for audit records nor fail because of them. Audit records that could not be sent
are counted, and ``pubsub verify`` reports their Messages as unannounced.
"""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from tieredstore.errors import ConfigError
from tieredstore.live.clients import LiveProducer
from tieredstore.live.properties import producer_configuration
from tieredstore.process.closing import Closing
from tieredstore.process.forks import PerProcess, begin_again_after_fork
from tieredstore.pubsub.counts import AUDIT, AuditingCounts, export
from tieredstore.pubsub.format.audit_records import AuditRecord
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.settings import BatchSettings

_CLOSE_S: Final = 5.0
_logger: Final = logging.getLogger(__name__)


class Auditor(Closing):
    """Sends audit records of one topic, for producers or consumers. Thread-safe; each forked child has its own
    client."""

    def __init__(self, settings: BatchSettings, topic: str, *, is_producer: bool) -> None:
        properties = {name: text.get_secret_value() for name, text in settings.kafka}
        if settings.audit_topic is None or not properties.get("bootstrap.servers"):
            raise ConfigError("audit records go to Kafka: pubsub.audit.topic needs pubsub.kafka.bootstrap.servers")
        self._audit_topic: str = settings.audit_topic
        self._cluster, self._topic = settings.cluster, topic
        self._is_producer = is_producer
        self._has_warned = False
        self.counts: AuditingCounts = AuditingCounts()
        # Use the partitioner of MemQ's Java clients, so that all audit records of a Message are in one partition.
        configuration = {
            **producer_configuration(properties, "read_uncommitted"),
            "allow.auto.create.topics": "true", "linger.ms": "10", "partitioner": "murmur2",
        }  # fmt: skip
        LiveProducer(configuration)  # raises ConfigError for invalid properties; the first Message would be too late
        self._producer = PerProcess(lambda: LiveProducer(configuration), _let_go)
        self._forget_counts = export(AUDIT, self.counts)
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset in a forked child, which has sent nothing."""
        self.counts.sent_records = self.counts.failed_records = 0

    def tell(self, request: ProducerRequest, ids_hash: bytes, record_count: int) -> None:
        """Report that a Message was stored, or read to its end."""
        record = AuditRecord(self._cluster, self._topic, request, ids_hash, record_count, self._is_producer)
        producer = self._producer.get()
        try:
            producer.produce(self._audit_topic, record.to_bytes(), record.key(), on_delivery=self._note_delivery)
        except (BufferError, KafkaException) as error:
            self._note_failure(str(error))
        producer.poll(0)

    def close(self) -> None:
        """Send the remaining audit records within some seconds; count unsent records as failed."""
        self._producer.close()
        self._forget_counts()

    def _note_delivery(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is None:
            self.counts.sent_records += 1
        else:
            self._note_failure(error.str())

    def _note_failure(self, why: str) -> None:
        self.counts.failed_records += 1
        level, self._has_warned = logging.DEBUG if self._has_warned else logging.WARNING, True
        _logger.log(level, "an audit record of topic %s was not sent: %s", self._topic, why)


def _let_go(producer: LiveProducer) -> None:
    producer.flush(_CLOSE_S)
    # Drop the remaining records. The client reports each of them as failed, so they are counted.
    producer.purge()
    producer.flush(_CLOSE_S)
