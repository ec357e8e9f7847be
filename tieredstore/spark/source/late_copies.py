"""What came into the bucket after a query was planned, and would have been read from the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.catalog import load_catalog
from tieredstore.errors import ResourceNotFound
from tieredstore.records import ReadSettings, SplitPlan, plan_splits

if TYPE_CHECKING:
    from tieredstore.model import TopicIdPartition
    from tieredstore.remote import RemoteStorageManager


def plan_late_copies(
    manager: RemoteStorageManager,
    partition: TopicIdPartition,
    start: int,
    stop: int,
    settings: ReadSettings,
    *,
    split_bytes: int,
) -> SplitPlan | None:
    """How to read the offsets from ``start`` on, as far as the bucket has them without a hole, and not beyond ``stop``.

    None if it does not have ``start``, or not what decides it (read_committed). Lists the topic.
    """
    try:
        lineage = load_catalog(manager, topic=partition.topic).lineage(
            partition.topic, partition.partition, partition.topic_id
        )
    except ResourceNotFound:
        return None
    holes = [gap.start for gap in lineage.gaps_between(start, stop)]
    end = min([stop, lineage.end_offset, *holes])
    if not lineage.earliest_offset <= start < end:
        return None
    plan = plan_splits(manager, lineage, start, end, settings, max_split_bytes=split_bytes)
    return plan if plan.stop > start else None
