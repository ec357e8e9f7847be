"""The options of the Spark format ``memq``. They are checked before any request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import Places
from tieredstore.spark.source.option_values import (
    Option,
    OptionTexts,
    at_offsets,
    at_time,
    boolean,
    check_pair,
    choice,
    columns_among,
    ending_places,
    size,
    starting_places,
    topics,
    whole,
)
from tieredstore.spark.source.options import (
    INCLUDE_HEADERS,
    SETTINGS,
    check_kind_of_query,
    columns_of,
    store_properties,
)
from tieredstore.spark.source.rows import MEMQ_ROWS, OutOfRange
from tieredstore.spark.source.store_source import StoreSource

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Maximum stored bytes per task. A Message (a compressed part of a batch) that is larger gets a task for itself."""

_TOPIC: Final = Option[tuple[str, ...] | None]("topic", topics, None, "the topic; only one")
_START_OFFSETS: Final = Option[Places | None](
    "startingOffsets", at_offsets, None,
    "`earliest` (a batch's default), `latest` (a stream's), or "
    '`{"orders":{"0":512,"1":-2}}` with all read partitions (-2: earliest, -1: end)',
)  # fmt: skip
_START_TIME: Final = Option[Places | None](
    "startingTimestamp", at_time, None, "ms: start at the first batch notified at this time or later"
)
_END_OFFSETS: Final = Option[Places | None](
    "endingOffsets", at_offsets, None, "`latest`, or offsets as in `startingOffsets` (batch queries)", query="batch"
)
_END_TIME: Final = Option[Places | None](
    "endingTimestamp", at_time, None, "ms: end before the first batch notified at this time or later (batch queries)",
    query="batch",
)  # fmt: skip
_MAX_BATCHES: Final = Option[int | None](
    "maxBatchesPerTrigger", whole(1), None,
    "maximum number of batches per trigger of a stream, taken from all read partitions in turn; 1 to 100,000",
    query="stream",
)  # fmt: skip
_MAX_BYTES: Final = Option[int | None](
    "maxBytesPerTrigger", size, None, "maximum stored bytes per trigger of a stream", query="stream"
)
COLUMNS: Final = Option[frozenset[str] | None](
    "columns", columns_among(MEMQ_ROWS.columns), None, "columns of the rows; the default is all but headers"
)
_FAIL_ON_DATA_LOSS: Final = Option(
    "failOnDataLoss", boolean, True,
    "`false`: log and skip missing objects, missing notifications, and freed batches",
)  # fmt: skip
_MAX_SPLIT_BYTES: Final = Option("maxSplitBytes", size, DEFAULT_SPLIT_BYTES, "maximum stored bytes per task (64 MiB)")
_MIN_PARTITIONS: Final = Option[int | None]("minPartitions", whole(1, MAX_INT32), None, "minimum number of tasks")
_OUT_OF_RANGE: Final = Option[OutOfRange](
    "timestampOutOfRange", choice("fail", "null"), "fail",
    "what to do with a timestamp before the year -290308 or after 294247: `fail` (the default) ends the query, "
    "`null` reads it as null",
)  # fmt: skip
_SORT_BY_KEY: Final = Option(
    "sortByKey", boolean, False,
    "sort each task's rows by key, nulls first; the task holds all of them in memory",
)  # fmt: skip
_DELIVERY: Final = Option(
    "delivery", choice("at-least-once", "effectively-once"), "at-least-once",
    "`at-least-once`, or `effectively-once`: see [above](#receive)",
)  # fmt: skip
_DISCOVER: Final = Option(
    "discover", choice("queue", "listing"), "queue",
    "`queue`, or `listing` if the queue is lost (batch queries). A listing finds all objects of the topic, orphans "
    "included, in the order of the times in their keys. Start and end timestamps then mean these times",
)  # fmt: skip

_BATCH_ONLY: Final = (_END_OFFSETS, _END_TIME)
_STREAM_ONLY: Final = (_MAX_BATCHES, _MAX_BYTES)
_BY_OFFSETS: Final = (_START_OFFSETS, _END_OFFSETS)
_READING: Final[tuple[Option[object], ...]] = (
    _START_OFFSETS, _START_TIME, *_BATCH_ONLY, *_STREAM_ONLY, INCLUDE_HEADERS, COLUMNS, _FAIL_ON_DATA_LOSS,
    _MAX_SPLIT_BYTES, _MIN_PARTITIONS, _OUT_OF_RANGE, _SORT_BY_KEY, _DELIVERY, _DISCOVER,
)  # fmt: skip
OPTIONS: Final[tuple[Option[object], ...]] = (SETTINGS, _TOPIC, *_READING)
"""All options of the format ``memq`` except the store's settings, in the order of ``docs/how-to/batches.md``."""

_NOT_OURS: Final = {
    "path": "the format has no path: name the topic with topic, and the store by settings",
    "subscribe": "the format memq reads one topic: name it with the option topic",
    "checkpointlocation": "it is an option of the query: set it by option() of writeStream",
}


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options of one query for its topic. Frozen and picklable."""

    topic: str
    store: StoreSource
    columns: tuple[str, ...]
    starting: Places
    ending: Places
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    max_batches: int | None = None
    max_bytes: int | None = None
    sort_by_key: bool = False
    is_once: bool = False
    by_listing: bool = False
    out_of_range: OutOfRange = "fail"


def parse_options(options: Mapping[str, str], *, streaming: bool) -> TopicOptions:
    """Parse the options of a query that reads. Raise a ConfigError that names the wrong option."""
    texts = OptionTexts(options)
    topic, store = _topic_and_store(options, texts, OPTIONS)
    by_listing = texts.get(_DISCOVER) == "listing"
    check_kind_of_query(texts, _BATCH_ONLY, _STREAM_ONLY, streaming=streaming)
    _check_listing(texts, streaming=streaming, by_listing=by_listing)
    starting = _of_topic(starting_places(texts, (_START_TIME, _START_OFFSETS), streaming=streaming), topic)
    ending = _of_topic(ending_places(texts, (_END_TIME, _END_OFFSETS)), topic)
    check_pair(starting, ending)
    is_once = texts.get(_DELIVERY) == "effectively-once"
    if is_once and by_listing:
        raise ConfigError("delivery=effectively-once needs the queue, but discover=listing does not use it: choose one")
    return TopicOptions(
        topic=topic,
        store=store,
        columns=columns_of(options, COLUMNS, MEMQ_ROWS.columns),
        starting=starting,
        ending=ending,
        fail_on_data_loss=texts.get(_FAIL_ON_DATA_LOSS),
        min_partitions=texts.get(_MIN_PARTITIONS),
        max_split_bytes=texts.get(_MAX_SPLIT_BYTES),
        max_batches=texts.get(_MAX_BATCHES),
        max_bytes=texts.get(_MAX_BYTES),
        sort_by_key=texts.get(_SORT_BY_KEY),
        is_once=is_once,
        by_listing=by_listing,
        out_of_range=texts.get(_OUT_OF_RANGE),
    )


def parse_sink_options(options: Mapping[str, str]) -> tuple[str, StoreSource]:
    """Return topic and store of a writing query. Raise ConfigError for options that are only for reading."""
    texts = OptionTexts(options)
    # Spark adds options of the query itself, such as the checkpoint's location, so ignore those.
    given = {name: text for name, text in options.items() if name.lower() not in ("checkpointlocation", "path")}
    if reading := texts.names_given(_READING):
        raise ConfigError(
            f"the option {reading[0]} is for reading: a writer has only topic, settings and the store's options"
        )
    return _topic_and_store(given, texts, (SETTINGS, _TOPIC))


def _topic_and_store(
    options: Mapping[str, str], texts: OptionTexts, own: Sequence[Option[object]]
) -> tuple[str, StoreSource]:
    properties = store_properties(options, [option.name for option in own], (), _NOT_OURS)
    named = texts.get(_TOPIC)
    if named is None or len(named) != 1:
        raise ConfigError("name one topic by the option topic")
    return named[0], StoreSource.from_options(texts.get(SETTINGS), properties)


def _check_listing(texts: OptionTexts, *, streaming: bool, by_listing: bool) -> None:
    if streaming and by_listing:
        raise ConfigError(
            "discover=listing is only for batch queries: without the queue a stream cannot find new batches"
        )
    if by_listing and (offsets := texts.names_given(_BY_OFFSETS)):
        raise ConfigError(
            f"the option {offsets[0]} gives offsets of the queue, which discover=listing does not use: use times"
        )


def _of_topic(places: Places, topic: str) -> Places:
    if isinstance(places, Mapping):
        others = sorted({name for name, _ in places} - {topic})
        if others:
            raise ConfigError(f"startingOffsets or endingOffsets names {others[0]}, but the option topic is {topic}")
    return places
