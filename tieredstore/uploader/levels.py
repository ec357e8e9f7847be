"""What of an uploader rises and falls, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.uploader.uploader import Uploader


def levels_of(uploader: Uploader, now_s: float) -> Mapping[str, float]:
    """The gauges by their names, as of this moment of the uploader's clock."""
    partitions = uploader.folders.partitions
    led = [partition for partition in partitions if uploader.leads(partition)]
    lag = [segment for partition in led for segment in partition.pending(lambda _: True)]
    return {
        "lag_segments": len(lag),
        "lag_bytes": sum(segment.size_in_bytes for segment in lag),
        "oldest_segment_age_seconds": max((segment.age_s(now_s) for segment in lag), default=0.0),
        "waiting_partitions": sum(partition.waits_for is not None for partition in led),
        "failing_partitions": sum(partition.failures > 0 for partition in led),
        "partitions": len(partitions),
        "led_partitions": len(led),
        "leadership_known": float(uploader.leadership.is_known),
        "recorded_holes": sum(uploader.counts.recorded.get(partition.where, 0) for partition in led),
        "held_files": uploader.held.files,
        "held_deleted_bytes": uploader.held.unlinked_bytes,
        "refused_topics": len(uploader.topics.refused),
    }
