"""The options of the format memq, read and checked before any store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import AtTime, Earliest, Latest, Places
from tieredstore.spark.source.option_values import OptionTexts, check_pair, columns_of, ending_spec, starting_spec
from tieredstore.spark.source.options import store_properties, warn_of
from tieredstore.spark.source.rows import MEMQ_ROWS, OutOfRange
from tieredstore.spark.source.store_source import StoreSource

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Stored bytes of a task, unless a single Message has more."""

_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY: Final = ("maxBatchesPerTrigger", "maxBytesPerTrigger")
_BY_OFFSETS: Final = ("startingOffsets", "endingOffsets")
_READING: Final = (
    "startingOffsets", "startingTimestamp", *_BATCH_ONLY, *_STREAM_ONLY, "includeHeaders", "columns", "failOnDataLoss",
    "minPartitions", "maxSplitBytes", "sortByKey", "delivery", "discover", "timestampOutOfRange",
)  # fmt: skip
OPTIONS: Final = ("settings", "topic", *_READING)
"""All options but the settings of the store, as a user writes them."""

_NOT_OURS: Final = {
    "path": "the format has no path: name the topic with topic, and the store by settings",
    "subscribe": "the format memq reads one topic: name it with the option topic",
    "checkpointlocation": "it belongs to the query: give it by option() of writeStream",
}


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What the options of one query say; frozen and picklable. ``starting`` and ``ending`` are of the one topic."""

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
    """The options of a query that reads; ConfigError, one sentence that names the option."""
    texts = OptionTexts(options)
    topic, store = _topic_and_store(options, texts, OPTIONS)
    by_listing = texts.choice("discover", "queue", "listing") == "listing"
    _check_kind_of_query(texts, streaming=streaming, by_listing=by_listing)
    starting = _of_topic(starting_spec(texts, Latest() if streaming else Earliest(), streaming=streaming), topic)
    ending = _of_topic(ending_spec(texts), topic)
    check_pair(starting, ending)
    is_once = texts.choice("delivery", "at-least-once", "effectively-once") == "effectively-once"
    if is_once and by_listing:
        raise ConfigError(
            "delivery=effectively-once goes by the queue, which discover=listing does without: choose one"
        )
    return TopicOptions(
        topic=topic,
        store=store,
        columns=columns_of(options, MEMQ_ROWS.columns),
        starting=starting,
        ending=ending,
        fail_on_data_loss=texts.boolean("failOnDataLoss") is not False,
        min_partitions=texts.whole("minPartitions", 1, MAX_INT32),
        max_split_bytes=texts.size("maxSplitBytes") or DEFAULT_SPLIT_BYTES,
        max_batches=texts.whole("maxBatchesPerTrigger", 1),
        max_bytes=texts.size("maxBytesPerTrigger"),
        sort_by_key=texts.boolean("sortByKey") is True,
        is_once=is_once,
        by_listing=by_listing,
        out_of_range="null" if texts.choice("timestampOutOfRange", "fail", "null") == "null" else "fail",
    )


def parse_sink_options(options: Mapping[str, str]) -> tuple[str, StoreSource]:
    """Topic and store of a query that writes; ConfigError for options that are for reading."""
    texts = OptionTexts(options)
    # A stream's writer is given what belongs to the query too.
    given = {name: text for name, text in options.items() if name.lower() not in ("checkpointlocation", "path")}
    if reading := [name for name in _READING if name in texts]:
        raise ConfigError(
            f"the option {reading[0]} is for reading: who writes gives topic, settings and those of the store"
        )
    return _topic_and_store(given, texts, ("settings", "topic"))


def _topic_and_store(options: Mapping[str, str], texts: OptionTexts, own: tuple[str, ...]) -> tuple[str, StoreSource]:
    properties = store_properties(options, own, (), _NOT_OURS)
    topics = texts.topics("topic")
    if topics is None or len(topics) != 1:
        raise ConfigError("name one topic of batches with the option topic")
    return topics[0], StoreSource.named(texts.text("settings"), properties)


def _check_kind_of_query(texts: OptionTexts, *, streaming: bool, by_listing: bool) -> None:
    if streaming and (ends := [name for name in _BATCH_ONLY if name in texts]):
        raise ConfigError(f"the option {ends[0]} is for batches: a stream has no end; stop it by trigger(availableNow)")
    if streaming and by_listing:
        raise ConfigError("discover=listing is for batches: without a queue nobody tells a stream what is new")
    if by_listing and (offsets := [name for name in _BY_OFFSETS if name in texts]):
        raise ConfigError(f"the option {offsets[0]} is of the queue, which discover=listing does without: use times")
    if not streaming:
        warn_of([name for name in _STREAM_ONLY if name in texts], "are for streams, a batch takes no notice of them")


def _of_topic(places: Places, topic: str) -> Places:
    if isinstance(places, Mapping):
        others = sorted({name for name, _ in places} - {topic})
        if others:
            raise ConfigError(f"startingOffsets or endingOffsets names {others[0]}, and the option topic says {topic}")
    elif not isinstance(places, Earliest | Latest | AtTime):  # no option of this format makes another
        raise ConfigError("offsets are given as earliest, latest, JSON or a time")
    return places
