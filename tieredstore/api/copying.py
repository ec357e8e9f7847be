"""Copies segments: from a broker's disk into a bucket (``upload``), to another bucket (``mirror``), and back from the
copy to replace damaged objects (``repair``).

The bucket imports this module on first use, because copying needs the codecs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.api.outcomes import Outcome, Plan, of_copy, status_of
from tieredstore.api.scopes import Scopes
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.errors import ConfigError, excerpt
from tieredstore.kafka.logdir import FoundSegment, LeftAlone, discover
from tieredstore.limits import MAX_INT32
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.ops import steps
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.copies.copying import SEGMENTS_AT_ONCE, BucketCopy
from tieredstore.ops.copies.repairing import Repair
from tieredstore.ops.copies.shipping import Shipper, ShipStep, size_on_disk
from tieredstore.places.record import refuse_other_layout
from tieredstore.process.interruption import at_sudden_end
from tieredstore.query.arguments import Partitions, TopicIdLike, topic_id_of
from tieredstore.remote.stores import target_settings

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.ops.bucket import Bucket as OpenBucket
    from tieredstore.remote.stores import StoreLike

_MOST_NAMED: Final = 5
_OF_A_BROKER: Final = "meta.properties"
"""A file that a broker writes into each of its log directories, even before the first partition."""
_REASONS: Final = {
    steps.Outcome.ACTIVE: "the broker may still append to the segment",
    steps.Outcome.GONE: "the broker has deleted the segment's records",
    steps.Outcome.THERE: "the segment is already in the bucket",
}
"""The reasons for not uploading a segment."""
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskSegments:
    """The segments of a log directory to upload, and the segments to skip."""

    found: tuple[FoundSegment, ...]
    left_alone: tuple[LeftAlone, ...]
    topic_id: Uuid | None

    @property
    def size(self) -> int:
        """The bytes of the logs to upload."""
        return sum(map(size_on_disk, self.found))


def find_segments(
    log_dir: Path, topics: Sequence[str], partitions: Partitions = None, topic_id: TopicIdLike = None
) -> DiskSegments:
    """Return the segments of the requested topics on a disk. Raise ConfigError for absent topics, and if one topic id
    is given for several topics.
    """
    narrowed, life = Scopes(topics or ("*",), partitions), topic_id_of(topic_id)
    discovery = discover(log_dir)
    found = tuple(
        one
        for one in discovery.segments
        if any(fnmatch.fnmatchcase(one.topic, name) for name in narrowed.topics)
        and (narrowed.partitions is None or one.partition in narrowed.partitions)
    )
    if not found and (topics or partitions is not None):
        raise ConfigError(f"{log_dir} has no segment of {excerpt(str(narrowed))}")
    if not found and not discovery.left_alone and not (log_dir / _OF_A_BROKER).exists():
        raise ConfigError(
            f"nothing to upload in {log_dir}: no closed segment, and no folder TOPIC-PARTITION like those in a "
            "broker's log directory (log.dirs in its server.properties)"
        )
    names = sorted({one.topic for one in found})
    if life is not None and len(names) > 1:
        shown = ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])
        raise ConfigError(
            f"a topic id belongs to one topic, but {len(names)} topics were found ({shown}): name one of them"
        )
    return DiskSegments(found, () if topics else discovery.left_alone, life)


def upload_segments(
    bucket: Bucket,
    segments: DiskSegments,
    *,
    broker_id: int | None,
    dry_run: bool,
    parallel: int,
    on_progress: Callable[[int], object],
) -> Generator[Outcome]:
    """Copy closed segments that are not stored yet; yield an outcome for each. Raise ConfigError for a broker id that a
    manifest cannot have.
    """
    if broker_id is not None and not (type(broker_id) is int and 0 <= broker_id <= MAX_INT32):
        raise ConfigError(f"broker_id is {broker_id!r:.60}; it must be a number from 0 to {MAX_INT32}")
    opened = bucket.opened()
    refuse_other_layout(opened.store, opened.prefix)
    shipper = Shipper(
        CommittedSegments(opened.store, opened.prefix, rules=opened.manifest_rules),
        None if dry_run else bucket.manager,
        topic_id=segments.topic_id,
        broker_id=broker_id,
        on_progress=on_progress,
        around_upload=_name_leftover,
    )
    for step in shipper.ship_all(segments.found, parallel=parallel):
        yield _outcome(step, dry_run=dry_run)
    for left in segments.left_alone:
        yield Outcome(action="upload", status="kept", code="left_alone", name=str(left.path), reason=left.reason)


@contextlib.contextmanager
def _name_leftover(metadata: RemoteLogSegmentMetadata) -> Generator[None]:
    """Log which objects an upload may leave behind if the process ends before it can delete these objects."""
    where = metadata.topic_id_partition
    named = f"{where.topic} -p {where.partition} --segment={metadata.remote_log_segment_id.id}"
    with at_sudden_end(
        lambda: _logger.warning(
            "the interrupted upload may have left objects that no reader sees: tieredstore rm %s --yes removes them, "
            "and a lifecycle rule of the bucket removes parts of unfinished uploads",
            named,
        ),
        needs_time=True,
    ):
        yield


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
        reason=_REASONS.get(step.outcome),
        error=step.error,
    )
    return outcome if step.partition is None else replace(outcome, topic_id=step.partition.topic_id)


@contextlib.contextmanager
def _both(bucket: Bucket, target: StoreLike) -> Generator[tuple[OpenBucket, OpenBucket]]:
    source = bucket.opened()
    with open_bucket(target_settings(target, bucket.named)) as into:
        for one in (source, into):
            one.refuse_raw("mirror", "objects in this layout are the broker's files, which upload() stores from a disk")
        yield source, into


def copy_segments(
    bucket: Bucket,
    target: StoreLike,
    scopes: Scopes,
    *,
    decrypt: bool,
    new_data_keys: bool,
    read_back: bool,
    dry_run: bool,
    parallel: int | None,
) -> Generator[Outcome]:
    """Copy the segments in scope; yield each outcome."""
    with _both(bucket, target) as (source, into):
        copy = BucketCopy(
            source,
            into,
            decrypt=decrypt,
            new_data_keys=new_data_keys,
            read_back=read_back,
            dry_run=dry_run,
            parallel=SEGMENTS_AT_ONCE if parallel is None else parallel,
        )
        for scope in scopes.of(source.store, source.prefix):
            yield from (of_copy(step, dry_run=dry_run) for step in copy.run(scope))


def plan_repair(bucket: Bucket, target: StoreLike, scopes: Scopes, *, parallel: int | None) -> Plan:
    """Return a plan to replace damaged objects of the target by the same objects of this bucket."""

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        with _both(bucket, target) as (source, into):
            repair = Repair(source, into, dry_run=dry_run, parallel=SEGMENTS_AT_ONCE if parallel is None else parallel)
            for scope in scopes.of(into.store, into.prefix):
                yield from (of_copy(step, dry_run=dry_run, action="repair") for step in repair.run(scope))

    return Plan("repair", str(scopes), outcomes)
