"""A user's queries: a log's first offset, its end, or the first offset at a time. Each query ends within its timeout.

This module is separate from ``consumer``, because each answer combines the bucket's log with the broker's log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.timestamps import offset_for_time
from tieredstore.consumer.client import refusal
from tieredstore.consumer.settings import Mode
from tieredstore.format.keys import Suffix
from tieredstore.process.futures import OverdueError, outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.core import Core
    from tieredstore.consumer.lookups import BucketInquiry
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition, Uuid

_BEGINNING, _END, _UNKNOWN = -2, -1, -1001


class OffsetQueries:
    """Asks bucket and broker while the user waits. Used by the polling thread only."""

    def __init__(self, settings: ConsumerSettings, client: MemberClient, core: Core) -> None:
        self._settings = settings
        self._client = client
        self._core = core
        self._is_remote = settings.mode is Mode.REMOTE_ONLY

    def watermarks(self, place: KafkaPartition, timeout_s: float, *, cached: bool) -> tuple[int, int] | None:
        """Return a partition's first offset and its end; None on timeout."""
        where, end = (place.topic, place.partition), _end(timeout_s)
        if cached:
            return self._look_up_known(where, place)
        live = None if self._is_remote else self._client.watermarks(place, timeout_s)
        if live is None and not self._is_remote:
            return None
        # Ask the broker first, because if it then deletes records, the later listing of the bucket has them.
        asked = self._core.lookups.call(lambda bucket: self._stored_span(bucket, where))
        try:
            stored = outcome(asked, _seconds_left(end))
        except OverdueError:
            return None
        if live is None:
            return stored or (0, 0)
        return live if stored is None else (min(live[0], stored[0]), live[1])

    def for_times(self, places: Sequence[KafkaPartition], timeout_s: float) -> list[KafkaPartition]:
        """Return the first offset at or after each time; raise KafkaException on timeout, like confluent-kafka."""
        end = _end(timeout_s)
        live: dict[TopicPartition, int] = {}
        if not self._is_remote and self._settings.has_broker:
            left = _seconds_left(end)
            live = self._client.offsets_for_times(places, -1.0 if left is None else max(0.0, left))
        # Ask the broker first, as in ``watermarks``.
        asked: list[Future[int | None]] = []
        for place in places:
            where = place.topic, place.partition
            asked.append(self._core.lookups.call(partial(self._stored_time, where=where, moment=place.offset)))
        given: list[KafkaPartition] = []
        for place, of_bucket in zip(places, asked, strict=True):
            try:
                stored = outcome(of_bucket, _seconds_left(end))
            except OverdueError:
                reason = "Failed to get offsets: Local: Timed out"
                raise refusal(KafkaError._TIMED_OUT, reason) from None
            of_broker = live.get((place.topic, place.partition), _END)
            # The bucket may begin after the broker's log, so the broker may have an earlier offset.
            found = [offset for offset in (stored, of_broker) if offset is not None and offset >= 0]
            given.append(KafkaPartition(place.topic, place.partition, min(found, default=of_broker)))
        return given

    def _look_up_known(self, where: TopicPartition, place: KafkaPartition) -> tuple[int, int]:
        """Return the partition's last known first offset and end, without a request."""
        partition = self._core.partitions.get(where)
        lineage = None if partition is None else partition.log.lineage
        if self._is_remote:
            return (_UNKNOWN, _UNKNOWN) if lineage is None else (lineage.earliest_offset, lineage.end_offset)
        low, high = self._client.watermarks(place, 0.0, cached=True) or (_UNKNOWN, _UNKNOWN)
        if partition is not None and partition.log.live is not None:
            low, high = max(low, partition.log.live[0]), max(high, partition.log.live[1])
        return (low if lineage is None else min(low, lineage.earliest_offset)), high

    # ---- on the bucket's thread

    def _lineage(self, bucket: BucketInquiry, where: TopicPartition, *, fresh: bool) -> Lineage | None:
        ids: dict[str, Uuid] = {}
        partition = self._core.partitions.get(where)
        if partition is not None and partition.log.topic_id is not None:
            ids[where[0]] = partition.log.topic_id
        elif bucket.cluster is not None:
            ids = {name: topic.topic_id for name, topic in bucket.cluster.describe([where[0]]).items()}
        logs = bucket.logs
        before = logs.listings
        logs.load({where[0]}, ids)
        if logs.listings == before:
            known = logs.lineage(where)
            if known is not None and ((begins_elsewhere := _begins_elsewhere(bucket, known)) or fresh):
                # If retention has deleted the first known segment, list the whole partition.
                logs.refresh(where, from_start=begins_elsewhere)
            if logs.lineage(where) is None:
                # The bucket lacked the partition, and its first segments may have arrived since, or those of a topic
                # that was created again.
                logs.reload(where[0], ids.get(where[0]))
        lineage = logs.lineage(where)
        return bucket.until_cut(lineage) if self._is_remote and lineage is not None else lineage

    def _stored_span(self, bucket: BucketInquiry, where: TopicPartition) -> tuple[int, int] | None:
        lineage = self._lineage(bucket, where, fresh=self._is_remote)
        if lineage is None:
            return None
        if not self._is_remote:
            return lineage.earliest_offset, lineage.end_offset
        return lineage.earliest_offset, bucket.find_end(lineage)

    def _stored_time(self, bucket: BucketInquiry, where: TopicPartition, moment: int) -> int | None:
        """Return the bucket's first offset at or after a time, or None if the bucket has none. Without an offset from
        the bucket, the caller uses the broker's answer, or -1 without a broker.
        """
        # The broker may have deleted records that were uploaded only after the last listing.
        lineage = self._lineage(bucket, where, fresh=moment != _BEGINNING)
        if lineage is None:
            return None
        if moment == _BEGINNING:
            return lineage.earliest_offset
        if moment == _END:
            return bucket.find_end(lineage) if self._is_remote else None
        record = offset_for_time(bucket.source, lineage, max(0, moment))
        return None if record is None or record.offset >= bucket.find_end(lineage) else record.offset


def _begins_elsewhere(bucket: BucketInquiry, lineage: Lineage) -> bool:
    """Return True if the bucket's first segment of a partition is not the first known one. This takes one request."""
    source = bucket.source
    listed = list_segments(source.store, source.layout.prefix, Scope.of(lineage.partition))
    first = next((one.start_offset for one in listed if one.find(Suffix.MANIFEST) is not None), None)
    unused = (*(part.segment for part in lineage.superseded), *lineage.covered)
    known = {segment.start_offset for segment in (lineage.spans[0].segment, *unused)}
    return first not in known | {problem.start_offset for problem in lineage.problems}


def _end(timeout_s: float) -> float | None:
    return None if timeout_s < 0 else time.monotonic() + timeout_s


def _seconds_left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
