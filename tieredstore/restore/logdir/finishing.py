"""The end of a restore: the topics get their own settings back. From then on, retention deletes segments again."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, Plan
from tieredstore.catalog.planning import load_catalog
from tieredstore.model import human_bytes, utc_text
from tieredstore.restore.retention import select_deleted

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.remote.source import SegmentSource
    from tieredstore.restore.logdir.cluster import RestoreCluster
    from tieredstore.restore.logdir.prepared import PreparedRestore, PreparedTopic


def plan_finish(
    source: SegmentSource, cluster: RestoreCluster, prepared: PreparedRestore, settings: Mapping[str, str]
) -> Plan:
    """Return a plan that gives the prepared topics the cluster's defaults back, and sets ``settings`` in each topic.

    Each outcome has the number of bytes that retention will delete at once, according to the segments' times in the
    bucket. The outcome also names empty partitions, and the time after which replicas may be added.

    Raise ConfigError before the first change if a topic is not the prepared topic. Otherwise, topics of the same names
    in another cluster would lose their settings.
    """

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        empty = {topic.topic: cluster.empty_partitions(topic) for topic in prepared.topics}
        for topic in prepared.topics:
            known = {**cluster.own_settings(topic.topic), **settings}
            logs, now_ms = _logs_of(source, topic), int(time.time() * 1000)
            deleted = [span for log in logs for span in select_deleted(log, known, now_ms)]
            size = sum(span.segment.segment_size_in_bytes for span in deleted)
            forgotten_ms = cluster.producer_expiration_ms(topic.partitions[0].replicas[0])
            reason = _reason(known, len(deleted), size)
            if numbers := ", ".join(map(str, empty[topic.topic])):
                reason += f"; partitions without a record: {numbers} (run restore logdir for every broker)"
            reason += _replicas(logs, forgotten_ms, now_ms)
            cluster.release(topic.topic, settings, dry_run=dry_run)
            yield Outcome(
                action="finish_restore", status="planned" if dry_run else "done", code="released", topic=topic.topic,
                name=topic.topic, size=size, stored_size=size, reason=reason,
            )  # fmt: skip

    return Plan("finish_restore", ", ".join(topic.topic for topic in prepared.topics), outcomes)


def _reason(known: Mapping[str, str], count: int, size: int) -> str:
    shown = ", ".join(f"{name}={known[name]}" for name in ("cleanup.policy", "retention.ms", "retention.bytes"))
    if not count:
        return f"{shown}: nothing is deleted at once"
    return f"{shown}: {count} segments ({human_bytes(size)}) are deleted at once"


def _replicas(logs: Sequence[Sequence[Span]], forgotten_ms: int, now_ms: int) -> str:
    """Return a text with the time after which replicas may be added, or an empty text if that time is past.

    A new replica reads the batches, and learns of old producers that ``restore logdir`` has dropped from the producer
    state. A new producer may have the same id and epoch as an old producer. If this replica becomes the leader, it may
    then take the new producer's first batch for a duplicate. The replica ignores an old producer whose last record is
    older than ``forgotten_ms``.
    """
    newest_ms = max((span.segment.max_timestamp_ms for log in logs for span in log), default=0)
    if newest_ms + forgotten_ms <= now_ms:
        return ""
    return f"; add replicas after {utc_text(newest_ms + forgotten_ms + 1000)}, unless the producers' state was kept"


def _logs_of(source: SegmentSource, topic: PreparedTopic) -> list[tuple[Span, ...]]:
    """Return the spans (offset ranges within segments) of each prepared log."""
    catalog = load_catalog(source, topic=topic.topic, topic_id=topic.incarnation)
    return [
        catalog.lineage(topic.topic, number, topic.incarnation).spans_between(one.start, one.stop)
        for number, one in enumerate(topic.partitions)
        if one.start < one.stop
    ]
