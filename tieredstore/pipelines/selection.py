"""Which logs a pipeline reads, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.partitions.log_query import LogQuery, timeout_of
from tieredstore.partitions.selections import Selection, Subscribe, SubscribePattern

if TYPE_CHECKING:
    from tieredstore.pipelines.settings import Pipeline, PipelineSettings


def query_of(pipeline: Pipeline) -> LogQuery:
    """Which logs the pipeline reads, and how."""
    own, client = pipeline.own, dict(pipeline.client) or None
    return LogQuery(
        selection_of(own),
        isolation="read_uncommitted" if own.isolation == "read_uncommitted" else "read_committed",
        client=client,
        timeout_s=timeout_of(client or {}, named="kafka."),
    )


def selection_of(own: PipelineSettings) -> Selection:
    """By name, or by the filter."""
    names = tuple(name for part in own.topic_list.split(",") if (name := part.strip()))
    return Subscribe(names) if names else SubscribePattern(own.topic_filter)
