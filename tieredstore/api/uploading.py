"""The closed segments of a broker's disk, into a bucket.

It lies apart from the bucket, which imports it once it is asked for: it needs what describes segments of a disk.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, status_of
from tieredstore.api.scopes import check_names
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.errors import ConfigError, excerpt
from tieredstore.kafka.logdir import discover
from tieredstore.ops.copies.shipping import Shipper, ShipStep
from tieredstore.places.record import refuse_other_layout

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket


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
    shipper = Shipper(committed, None if dry_run else bucket.manager, broker_id=broker_id)
    yield from (_outcome(step, dry_run=dry_run) for step in shipper.ship_all(segments))


def _matches(topic: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(topic, name) for name in names)


def _outcome(step: ShipStep, *, dry_run: bool) -> Outcome:
    segment = step.item
    outcome = Outcome(
        action="upload",
        status=status_of(step.outcome, dry_run=dry_run),
        code=step.outcome.value,
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        last_offset=step.end_offset,
        segment_id=step.segment_id,
        size=step.size,
        stored_size=step.stored_size,
        error=step.error,
    )
    return outcome if step.partition is None else outcome.of(step.partition)
