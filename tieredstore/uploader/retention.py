"""Deletion of old stored segments in led partitions, by the age of their records or by total size.

This is a separate module because no other part of the uploader deletes stored segments.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tieredstore.api import outcomes
from tieredstore.backends.base import admin_of
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.format.keys import Suffix
from tieredstore.model import AtTime, TopicIdPartition, human_bytes
from tieredstore.ops.garbage.removal import Removal
from tieredstore.ops.listing import ListedSegment
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.metrics import Counts
from tieredstore.uploader.settings import UploaderSettings, parse_topic_ms
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

_READERS: Final = 2


@dataclass(frozen=True, slots=True)
class RemoteRetention:
    """The retention limits of a stored partition; -1 means no limit. With ``dry_run``, expired segments are only
    counted.

    As in Kafka, retention deletes whole segments from the oldest on and leaves no gap. Segments under legal hold stay.
    """

    retention_ms: int
    retention_bytes: int
    dry_run: bool
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    topics_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Retention times of single topics, which replace ``retention_ms``."""

    @classmethod
    def of(cls, settings: UploaderSettings) -> RemoteRetention:
        """Read the limits from the settings."""
        topics_ms = dict(map(parse_topic_ms, settings.retention_topics))
        return cls(
            settings.retention_ms, settings.retention_bytes, dry_run=settings.retention_dry_run, topics_ms=topics_ms
        )

    @property
    def is_on(self) -> bool:
        """True if there is any limit."""
        return max(self.retention_ms, self.retention_bytes, *self.topics_ms.values()) >= 0

    def apply(
        self, target: Target, partitions: Iterable[TopicIdPartition], counts: Counts
    ) -> Iterator[outcomes.Outcome]:
        """Delete expired segments; yield a result for each partition with segments past the limits. A dry run only
        reports these segments.

        Each call lists the segments of each partition once, and reads the manifests of the old segments. The age is
        taken by this machine's clock or the store's clock, whichever is behind. The call raises the store's errors,
        except a permanent error of a deletion, which is in the partition's result.
        """
        now_ms: int | None = None
        for where in partitions if self.is_on else ():
            if now_ms is None:
                now_ms = self._read_clocks(target)
            steps = list(self._steps(target, where, now_ms))
            gone = [step for step in steps if step.outcome is Outcome.DELETED]
            others = [step for step in steps if step.outcome not in (Outcome.DELETED, Outcome.LEFTOVER)]
            if not gone and not others:
                continue
            size = sum(step.item.objects.stored_size for step in gone)
            stops = (f"; stopped at a segment that was not deleted: {step.outcome}: {step.reason}" for step in others)
            left = next(stops, "")
            _logger.info(
                "%s: %d segments (%s) %s by uploader.retention%s", where, len(gone), human_bytes(size),
                "would be deleted" if self.dry_run else "were deleted", left,
            )  # fmt: skip
            if not self.dry_run:
                counts.expired_segments += len(gone)
                counts.expired_bytes += size
            status: outcomes.Status = "kept" if not gone else "planned" if self.dry_run else "done"
            yield outcomes.Outcome(
                action="remove", status=status, code="expired", stored_size=size,
                reason=f"segments past uploader.retention: {len(gone)}{left}",
            ).of(where)  # fmt: skip

    def _read_clocks(self, target: Target) -> int:
        """Return the earlier of two times: this machine's and the store's. So no young segment is deleted if one of the
        two clocks jumps ahead.
        """
        with nothing_under_way():
            of_the_store = admin_of(target.store).now_ms()
        return self.now_ms() if of_the_store is None else min(self.now_ms(), of_the_store)

    def _steps(self, target: Target, where: TopicIdPartition, now_ms: int) -> Iterator[Step[ListedSegment]]:
        with nothing_under_way():
            listed = list(list_segments(target.store, target.settings.key_prefix, Scope.of(where)))
        gone: set[SegmentObjects] = set()
        for stop in self._bounds(where.topic, listed, now_ms):
            left = [objects for objects in listed if objects not in gone]
            store, prefix, rules = target.store, target.settings.key_prefix, target.manager.manifest_rules
            removal = Removal(store, prefix, rules=rules, dry_run=self.dry_run, parallel=_READERS)
            for step in removal.run(left, stop):
                if step.outcome is Outcome.DELETED:
                    gone.add(step.item.objects)
                yield step

    def _bounds(self, topic: str, listed: list[SegmentObjects], now_ms: int) -> Iterator[int | AtTime]:
        if (retention_ms := self.topics_ms.get(topic, self.retention_ms)) >= 0:
            yield AtTime(now_ms - retention_ms)
        if self.retention_bytes >= 0 and (offset := first_within(listed, self.retention_bytes)) is not None:
            yield offset


def first_within(listed: Iterable[SegmentObjects], size: int) -> int | None:
    """Add up segments from the newest on. Return the start offset of the segment that completes ``size`` bytes, or None
    if all segments together have less.

    Only the stored bytes of logs count towards ``size``. If several segments begin at the returned offset, the caller
    keeps all of them.
    """
    left = max(1, size)
    for objects in sorted(listed, key=lambda objects: objects.start_offset, reverse=True):
        log = objects.find(Suffix.LOG)
        left -= 0 if log is None or objects.missing else log.size
        if left <= 0:
            return objects.start_offset
    return None
