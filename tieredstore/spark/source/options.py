"""The options of a query, read and checked before any store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import Isolation, Uuid
from tieredstore.partitions.offset_specs import Earliest, Latest, OffsetSpec
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern
from tieredstore.spark.source.option_names import (
    BATCH_ONLY,
    BOOTSTRAP_SERVERS,
    ISOLATION,
    KAFKA,
    REFUSED_OF_KAFKA,
    SELECTIONS,
    STREAM_ONLY,
    WITHOUT_MEANING,
    store_properties,
    warn_of,
)
from tieredstore.spark.source.option_offsets import check_pair, ending_spec, starting_spec
from tieredstore.spark.source.option_values import OptionTexts, columns_of
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.topic_pattern import python_pattern

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""The most that a task reads of a log."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the options of one query say; frozen and picklable, and its repr shows no secret.

    ``kafka`` are the properties of the client without ``kafka.``, None for the bucket alone; ``topic_ids`` tell which
    incarnation of a topic is meant. Limits are None where there is none.
    """

    selection: Selection
    starting: OffsetSpec
    ending: OffsetSpec
    columns: tuple[str, ...]
    store: StoreSource
    timestamp_strategy: Literal["error", "latest"] = "error"
    isolation: Isolation = "read_committed"
    fail_on_data_loss: bool = True
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None
    max_bytes_per_trigger: int | None = None
    filter_pushdown: bool = False
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid])
    kafka: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of a batch or of a stream, whatever the case of their names.

    Raises ConfigError, one sentence that names the option; warns once of options that change nothing here.
    """
    properties = store_properties(options)
    texts = OptionTexts(options)
    _check_kind_of_query(texts, streaming)
    starting = starting_spec(texts, Latest() if streaming else Earliest(), streaming=streaming)
    ending = ending_spec(texts)
    check_pair(starting, ending)
    selection = _selection(texts)
    return SourceOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        columns=columns_of(options),
        store=StoreSource.named(texts.text("settings"), properties),
        timestamp_strategy=_strategy(texts),
        isolation=_isolation(texts),
        fail_on_data_loss=texts.boolean("failOnDataLoss") is not False,
        max_split_bytes=texts.size("maxSplitBytes") or DEFAULT_SPLIT_BYTES,
        min_partitions=texts.whole("minPartitions", 1, MAX_INT32),
        max_records_per_partition=texts.whole("maxRecordsPerPartition", 1),
        **_trigger_limits(texts),
        filter_pushdown=texts.boolean("filterPushdown") is True,
        topic_ids=_topic_ids(texts, selection),
        kafka=_kafka(options),
    )


def _check_kind_of_query(texts: OptionTexts, streaming: bool) -> None:
    if streaming and (ends := [name for name in BATCH_ONLY if name in texts]):
        raise ConfigError(f"the option {ends[0]} is for batches: a stream has no end; stop it by trigger(availableNow)")
    if not streaming:
        warn_of([name for name in STREAM_ONLY if name in texts], "are for streams, a batch takes no notice of them")
    warn_of([name for name in WITHOUT_MEANING if name in texts], "have no meaning here and are not looked at")


def _selection(texts: OptionTexts) -> Selection:
    given = [name for name in SELECTIONS if name in texts]
    if len(given) != 1:
        raise ConfigError(f"exactly one of {', '.join(SELECTIONS)} must be given, not {' and '.join(given) or 'none'}")
    if (topics := texts.topics("subscribe")) is not None:
        return Subscribe(topics)
    if (partitions := texts.partitions("assign")) is not None:
        return Assign(partitions)
    return SubscribePattern(python_pattern(texts.text("subscribePattern") or ""))


def _strategy(texts: OptionTexts) -> Literal["error", "latest"]:
    chosen = texts.choice("startingOffsetsByTimestampStrategy", "error", "latest")
    return "latest" if chosen == "latest" else "error"


def _isolation(texts: OptionTexts) -> Isolation:
    levels = "read_committed", "read_uncommitted"
    # Under its Kafka name too, so that a job that reads from brokers keeps its options.
    ours, kafkas = texts.choice("isolationLevel", *levels), texts.choice(ISOLATION, *levels)
    if ours is not None and kafkas is not None and ours != kafkas:
        raise ConfigError(f"isolationLevel is {ours} and {ISOLATION} is {kafkas}: give one of them, or the same twice")
    return cast("Isolation", ours or kafkas or "read_committed")


def _trigger_limits(texts: OptionTexts) -> dict[str, int | None]:
    most, least = (texts.whole(f"{which}OffsetsPerTrigger", 1) for which in ("max", "min"))
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger is {least}, which is more than maxOffsetsPerTrigger: {most}")
    return {
        "max_offsets_per_trigger": most,
        "min_offsets_per_trigger": least,
        "max_trigger_delay_ms": texts.interval_ms("maxTriggerDelay"),
        "max_bytes_per_trigger": texts.size("maxBytesPerTrigger"),
    }


def _topic_ids(texts: OptionTexts, selection: Selection) -> dict[str, Uuid]:
    ids = texts.texts_of_topics("topicIds", '{"topicA":"AAAAAAAAQACAAAAAAAAAAA"}') or {}
    match selection:
        case Subscribe(topics=topics):
            selected = set(topics)
        case Assign(partitions=partitions):
            selected = {topic for topic, _ in partitions}
        case _:
            # What a pattern selects is known only when the topics are listed.
            selected = set(ids)
    if surplus := sorted(set(ids) - selected):
        raise ConfigError(f"the option topicIds names {', '.join(surplus)}, which is not among the topics to read")
    try:
        return {topic: Uuid.parse(text) for topic, text in ids.items()}
    except ConfigError as error:
        raise ConfigError(f"the option topicIds: {error}") from None


def _kafka(options: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
    given = {name.lower(): text for name, text in options.items() if name.lower().startswith(KAFKA)}
    for name, way_out in REFUSED_OF_KAFKA.items():
        if name in given:
            raise ConfigError(f"the option {name} is not supported: {way_out}")
    given.pop(ISOLATION, None)  # it has been read: the client gets the level that was decided on
    if given and not given.get(BOOTSTRAP_SERVERS, "").strip():
        others = [name for name in given if name != BOOTSTRAP_SERVERS]
        which = f"{BOOTSTRAP_SERVERS} is missing beside {others[0]}" if others else f"{BOOTSTRAP_SERVERS} is empty"
        raise ConfigError(f"the option {which}: name the brokers, or leave all kafka.* out to read the bucket alone")
    return tuple(sorted((name.removeprefix(KAFKA), text) for name, text in given.items())) if given else None
