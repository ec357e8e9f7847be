"""The source of a pipeline: its bucket, which is opened with the output, and the topics and columns that it reads."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.names import topic_names
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError, ResourceNotFoundError, excerpt
from tieredstore.ops.bucket import open_bucket
from tieredstore.partitions.selections import Selection, Subscribe, SubscribePattern, select_topics
from tieredstore.reading.query import LogQuery, QueryWords, timeout_of

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import Pipeline, PipelineSettings
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.remote import RemoteStorageManager

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp", "timestampType")
"""Columns of records that pipelines read."""

PAST_A_LOSS: Final = (
    "leave the topic out by secor.kafka.topic_blacklist, or set another secor.generation with startingOffsets after "
    "the loss,"
)
"""Advice for errors about lost records. Only a change of the settings lets a pipeline continue after a loss."""
_WORDS: Final = QueryWords(accept_loss=PAST_A_LOSS)


@dataclass(frozen=True, slots=True)
class Parts:
    """The output store, and the bucket to read. ``open_parts`` opens and closes both."""

    store: ObjectStore
    source: RemoteStorageManager


@contextlib.contextmanager
def open_parts(pipeline: Pipeline) -> Generator[Parts]:
    """Open the output and the bucket that the settings name; close both at the end."""
    # A pipeline that reads only from the broker gets an empty bucket in memory.
    settings = pipeline.source or settings_from({"storage.backend.class": "memory"})
    with (
        open_bucket(pipeline.output) as output,
        open_bucket(settings) as bucket,
        bucket.manager() as source,
    ):
        yield Parts(output.store, source)


def query_of(pipeline: Pipeline) -> LogQuery:
    """Return the query for the pipeline's logs."""
    own, client = pipeline.own, dict(pipeline.client) or None
    return LogQuery(
        selection_of(own),
        isolation="read_uncommitted" if own.isolation == "read_uncommitted" else "read_committed",
        client=client,
        timeout_s=timeout_of(client or {}, named="kafka."),
        by_partition=True,
        words=_WORDS,
    )


def selection_of(own: PipelineSettings) -> Selection:
    """Return the selection of topics by names or by a filter. Topics outside the selection are never queried."""
    names = tuple(name for part in own.topic_list.split(",") if (name := part.strip()))
    if not names:
        return SubscribePattern(own.topic_filter, own.topic_blacklist)
    return Subscribe(tuple(name for name in names if not re.fullmatch(own.topic_blacklist or r"\b\B", name)))


_LOOK_S: Final = 2.0
"""Maximum seconds of the search for topic names that an error shows."""
_SHOWN: Final = 3


def absent_topics(query: LogQuery, snapshot: LogSnapshot, written: Iterable[str]) -> list[str]:
    """Return the sorted topics that the settings name but neither the snapshot nor ``written`` contains. If a filter
    selects the topics, the list is empty."""
    known = {*written, *(topic for topic, _ in snapshot.logs)}
    selection = query.selection
    return sorted(set(selection.topics) - known) if isinstance(selection, Subscribe) else []


def check_topics(query: LogQuery, snapshot: LogSnapshot, source: RemoteStorageManager, written: Iterable[str]) -> None:
    """Raise ResourceNotFoundError for named topics that do not exist, and for a filter that matches no topic.

    Topics in ``written`` are never missing, because they existed once. The error shows similar names from the bucket
    and the broker. Raises ConfigError if the settings exclude every topic that they name.
    """
    known = list(written)
    match query.selection:
        case Subscribe(topics=()):
            raise ConfigError(
                "secor.kafka.topic_blacklist excludes all topics of kafka.new.consumer.topic.list: nothing would be "
                "written"
            )
        case Subscribe():
            absent = tuple(absent_topics(query, snapshot, known))
            snapshot.check_selected(replace(query, selection=Subscribe(absent)), source)
        case SubscribePattern() as selection if not snapshot.logs and not select_topics(selection, known):
            raise _no_match(selection, query, source)
        case _:
            pass


def _no_match(selection: SubscribePattern, query: LogQuery, source: RemoteStorageManager) -> ResourceNotFoundError:
    names = {*topic_names(source.store, source.layout.prefix, until=time.monotonic() + _LOOK_S)}
    where = "in the bucket"
    if (cluster := query.open_cluster()) is not None:
        where += " or on the broker"
        with cluster:
            names.update(cluster.topics())
    but = " besides those that secor.kafka.topic_blacklist excludes" if selection.without else ""
    return ResourceNotFoundError(
        f"secor.kafka.topic_filter {excerpt(selection.pattern)!r} matches no topic {where}{but}; {_show_topics(names)}"
    )


def _show_topics(names: Iterable[str]) -> str:
    topics = sorted(names)
    if not topics:
        return "no topics found: check key.prefix"
    more = f" and {len(topics) - _SHOWN} more" if len(topics) > _SHOWN else ""
    return f"topics found: {', '.join(map(repr, topics[:_SHOWN]))}{more}"
