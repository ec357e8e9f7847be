"""The closed segments of a broker's disk, into a bucket."""

from __future__ import annotations

import fnmatch
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, Status
from tieredstore.api.scopes import check_names
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.errors import ConfigError, excerpt
from tieredstore.kafka.logdir import FoundSegment, discover
from tieredstore.ops.copies.shipping import SegmentOutcome, SegmentStatus, in_order, plan_segment, ship_segment
from tieredstore.places.record import refuse_other_layout

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket

_STATUS: dict[SegmentStatus, Status] = {
    SegmentStatus.COPIED: "done",
    SegmentStatus.WOULD_COPY: "planned",
    SegmentStatus.FAILED: "failed",
    SegmentStatus.NOT_TRIED: "failed",
}


def upload_segments(
    bucket: Bucket, log_dir: Path, topics: Sequence[str], *, broker_id: int | None, dry_run: bool
) -> Generator[Outcome]:
    """Copy what is closed and not there yet, one outcome each."""
    check_names(topics)
    discovery = discover(log_dir)
    segments = [one for one in discovery.segments if not topics or _matches(one.topic, topics)]
    if topics and not segments:
        raise ConfigError(f"{log_dir} has no segment of {excerpt(', '.join(topics))}")
    opened = bucket.opened()
    refuse_other_layout(opened.store, opened.prefix)
    committed = CommittedSegments(opened.store, opened.prefix, rules=opened.manifest_rules)
    manager = None if dry_run else bucket.manager

    def step(segment: FoundSegment) -> SegmentOutcome:
        if manager is None:
            return plan_segment(committed, segment)
        return ship_segment(manager, committed, segment, broker_id=broker_id)

    for shipped in in_order(segments, step):
        yield _outcome(shipped)


def _matches(topic: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(topic, name) for name in names)


def _outcome(shipped: SegmentOutcome) -> Outcome:
    segment = shipped.segment
    outcome = Outcome(
        action="upload",
        status=_STATUS.get(shipped.status, "kept"),
        code=shipped.status.value,
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        last_offset=shipped.end_offset,
        segment_id=shipped.segment_id,
        size=shipped.size,
        stored_size=shipped.stored_size,
        error=shipped.error,
    )
    return outcome if shipped.partition is None else outcome.of(shipped.partition)
