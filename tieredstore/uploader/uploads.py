"""One segment into the store, within a time limit, counted."""

from __future__ import annotations

import time
from collections.abc import Callable

from tieredstore.catalog.committed import SegmentIdentity
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import Uuid
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.target import Target
from tieredstore.uploader.tries import Tries, TryLimit


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Uploads:
    """Sends segments, each once: the store is looked at first. Any number side by side."""

    def __init__(
        self,
        tries: Tries,
        counts: Counts,
        *,
        broker_id: int,
        limit: TryLimit,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._tries, self._counts, self._now_ms = tries, counts, now_ms
        self._broker_id, self._limit = broker_id, limit

    def store(self, target: Target, described: LogSegment) -> tuple[Uuid, bool]:
        """The id of the segment in the store, and whether it was sent now, since it was not there."""
        identity = SegmentIdentity.of(described)
        copy = target.committed.find(identity)
        if copy is not None:
            return copy.segment_id.id, False
        segment_id = Uuid.random()
        try:
            self._send(target, described, segment_id)
        finally:
            # Also after a failure: the answer to a manifest's write may be what was lost.
            target.committed.changed(identity)
        return segment_id, True

    def _send(self, target: Target, described: LogSegment, segment_id: Uuid) -> None:
        metadata = described.to_metadata(segment_id, self._broker_id, self._now_ms())
        self._counts.tries += 1
        try:
            allowed_s = self._limit.allowed_s(target.settings, described.size_in_bytes)
            with self._tries.under_way(str(metadata), allowed_s) as on_progress:
                copied = target.manager.copy_segment(metadata, described.files, on_progress=on_progress)
        except BaseException:
            self._counts.failed_tries += 1
            raise
        self._counts.segments += 1
        self._counts.bytes += described.size_in_bytes
        self._counts.stored_bytes += copied.sizes.total
