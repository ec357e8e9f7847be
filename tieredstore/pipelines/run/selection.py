"""Which logs a pipeline reads, and how."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tieredstore.partitions.selections import Selection, Subscribe, SubscribePattern
from tieredstore.reading.query import LogQuery, QueryWords, timeout_of

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline, PipelineSettings

PAST_A_LOSS: Final = (
    "leave the topic out by secor.kafka.topic_blacklist, or begin another secor.generation behind the loss by "
    "startingOffsets,"
)
"""What an error names as the way out: nothing behind a loss is taken for what comes next."""
_WORDS: Final = QueryWords(accept_loss=PAST_A_LOSS)


def query_of(pipeline: Pipeline) -> LogQuery:
    """Which logs the pipeline reads, and how."""
    own, client = pipeline.own, dict(pipeline.client) or None
    return LogQuery(
        selection_of(own),
        isolation="read_uncommitted" if own.isolation == "read_uncommitted" else "read_committed",
        client=client,
        timeout_s=timeout_of(client or {}, named="kafka."),
        words=_WORDS,
    )


def selection_of(own: PipelineSettings) -> Selection:
    """By name, or by the filter; nothing is asked of topics that are left out, whatever became of them."""
    names = tuple(name for part in own.topic_list.split(",") if (name := part.strip()))
    if not names:
        return SubscribePattern(own.topic_filter, own.topic_blacklist)
    return Subscribe(tuple(name for name in names if not re.fullmatch(own.topic_blacklist or r"\b\B", name)))
