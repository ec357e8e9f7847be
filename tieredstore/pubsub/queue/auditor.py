"""The auditor of producers and consumers that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.pubsub.settings import BatchSettings

if TYPE_CHECKING:
    from tieredstore.pubsub.queue.kafka_audit import Auditor


def auditor_of(settings: BatchSettings, topic: str, *, is_producer: bool) -> Auditor | None:
    """Return an auditor that writes to ``pubsub.audit.topic``; None if that setting is unset."""
    if settings.audit_topic is None:
        return None
    from tieredstore.pubsub.queue.kafka_audit import Auditor  # noqa: PLC0415  imports the Kafka client, an extra

    return Auditor(settings, topic, is_producer=is_producer)
