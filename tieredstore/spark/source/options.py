"""The options of the format ``tieredstore``. They are checked before any request.

There are options of Spark's Kafka source, options that only this format has, and settings of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tieredstore.config.encryption import PAIRS, pair_id
from tieredstore.config.jvm import FAMILIES
from tieredstore.config.names import core_names, is_known_name
from tieredstore.config.nearest import did_you_mean
from tieredstore.config.properties import DEFAULT_PREFIX, shown_name
from tieredstore.config.storage import BACKENDS, JAVA_BACKENDS
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import DEFAULT_ISOLATION, Isolation, Places, TopicPartition, Uuid
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern
from tieredstore.spark.source.option_values import (
    Option,
    OptionTexts,
    Parse,
    Sides,
    at_offsets,
    at_time,
    at_times,
    boolean,
    check_pair,
    choice,
    columns_among,
    ending_places,
    interval_ms,
    java_pattern,
    partitions,
    settings_name,
    size,
    starting_places,
    topic_ids,
    topics,
    whole,
)
from tieredstore.spark.source.rows import KAFKA_ROWS
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.trigger_limits import DEFAULT_DELAY_MS, TriggerLimits

_logger: Final = logging.getLogger(__name__)

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a log that one task reads."""

_NO_TIMES_UNDER_0: Final = "times under 0 are an error"

SETTINGS: Final = Option[str | None](
    "settings", settings_name, None,
    "a settings file: an absolute path, or a name in the working directory or among the files that Spark ships "
    "(`--files`). Each process reads the file itself, so its contents are never sent",
)  # fmt: skip

_SUBSCRIBE: Final = Option[tuple[str, ...] | None]("subscribe", topics, None, "topics, separated by commas")
_PATTERN: Final = Option[str | None](
    "subscribePattern", java_pattern, None, "a Java regular expression that matches whole topic names",
    kafka="nested sets, `&&`, octal characters and a few rare classes are refused",
)  # fmt: skip
_ASSIGN: Final = Option[tuple[TopicPartition, ...] | None](
    "assign", partitions, None, 'partitions as `{"topicA":[0,1]}`', kafka="a list without partitions is an error"
)
_TOPIC_IDS: Final = Option[Mapping[str, Uuid]](
    "topicIds", topic_ids, {},
    'which topic to read if several had the same name, as `{"topicA":"<topic id>"}`', kafka="ours",
)  # fmt: skip

_STARTS: Final[Sides] = (
    Option("startingTimestamp", at_time, None, "one time (ms) for all partitions", kafka=_NO_TIMES_UNDER_0),
    Option(
        "startingOffsetsByTimestamp", at_times, None,
        '`{"topicA":{"0":1735689600000}}`: the first record with this timestamp (ms) or later', kafka=_NO_TIMES_UNDER_0,
    ),
    Option(
        "startingOffsets", at_offsets, None,
        '`earliest`, `latest` (streams only), or `{"topicA":{"0":23,"1":-2}}`: -2 is the earliest offset, -1 (streams '
        "only) the latest", shown="`earliest`; for streams `latest`", kafka="offsets under -2 are an error",
    ),
)  # fmt: skip
_ENDS: Final[Sides] = (
    Option(
        "endingTimestamp", at_time, None, "one time (ms) for all partitions", query="batch",
        kafka="an error for a stream; Spark ignores it",
    ),
    Option(
        "endingOffsetsByTimestamp", at_times, None,
        "JSON as in `startingOffsetsByTimestamp`: end before the first record of that time or later, else at the log's "
        "end",
        query="batch",
        kafka=_NO_TIMES_UNDER_0,
    ),
    Option(
        "endingOffsets", at_offsets, None,
        "`latest`, or offsets as in `startingOffsets` without -2; the end is exclusive",
        shown="`latest`", query="batch",
    ),
)  # fmt: skip
_STRATEGY: Final = Option[Literal["error", "latest"]](
    "startingOffsetsByTimestampStrategy", choice("error", "latest"), "error",
    "if all records are older than a start time: `error`, or read from the end of the log (`latest`)", shown="`error`",
)  # fmt: skip

INCLUDE_HEADERS: Final = Option[bool | None]("includeHeaders", boolean, None, "a column `headers`", shown="`false`")
_COLUMNS: Final = Option[frozenset[str] | None](
    "columns", columns_among(KAFKA_ROWS.columns), None,
    f"some of {', '.join(f'`{name}`' for name in KAFKA_ROWS.columns)}, separated by commas; rows have them in this "
    "order. Other columns are not decoded", shown="all but headers",
    kafka="ours; Spark does not tell a Python source which columns a query uses",
)  # fmt: skip
_LEVELS: Final[Parse[Isolation]] = choice("read_committed", "read_uncommitted")
_ISOLATION: Final = Option[Isolation | None](
    "isolationLevel", _LEVELS, None,
    "`read_committed` or `read_uncommitted`; `kafka.isolation.level` is the same option and must agree if both are set",
    shown="`read_committed`", kafka="its default is Kafka's, `read_uncommitted`",
)  # fmt: skip
_ISOLATION_OF_KAFKA: Final = Option[Isolation | None](
    "kafka.isolation.level", _LEVELS, None, "the same as `isolationLevel`"
)
_FAIL_ON_DATA_LOSS: Final = Option(
    "failOnDataLoss", boolean, True, "`true`: missing offsets are an error; `false`: a warning",
    shown="`true`",
)  # fmt: skip
_MIN_PARTITIONS: Final = Option[int | None](
    "minPartitions", whole(1, MAX_INT32), None, "minimum number of tasks, if there are enough batches to divide",
    kafka="tasks are always limited by bytes too",
)  # fmt: skip
_MAX_RECORDS: Final = Option[int | None]("maxRecordsPerPartition", whole(1), None, "maximum offsets per task")
_FILTER_PUSHDOWN: Final = Option(
    "filterPushdown", boolean, False,
    "do not fetch records that the query's filters exclude, if Spark's configuration allows it; only for a DataFrame "
    "used once, see [above](#read-less)", shown="`false`", query="batch", kafka="ours",
)  # fmt: skip
_MAX_SPLIT_BYTES: Final = Option(
    "maxSplitBytes", size, DEFAULT_SPLIT_BYTES,
    "approximate maximum bytes of a log per task: `67108864`, `64m`, `1g`",
    shown="`64m`", kafka="ours",
)  # fmt: skip
_MAX_OFFSETS: Final = Option[int | None](
    "maxOffsetsPerTrigger", whole(1), None, "maximum offsets per batch", query="stream", kafka="0 is an error"
)
_MIN_OFFSETS: Final = Option[int | None](
    "minOffsetsPerTrigger", whole(1), None,
    "a batch waits for this many offsets; at most `maxOffsetsPerTrigger`", query="stream", kafka="0 is an error",
)  # fmt: skip
_MAX_DELAY: Final = Option(
    "maxTriggerDelay", interval_ms, DEFAULT_DELAY_MS,
    "how long a batch waits at most for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `1h`, `1d`",
    shown="`15m`", query="stream",
)  # fmt: skip
_MAX_BYTES: Final = Option[int | None](
    "maxBytesPerTrigger", size, None, "approximate maximum bytes of logs per batch: `64m`, `1g`", query="stream",
    kafka="ours",
)  # fmt: skip

_SELECTIONS: Final[tuple[Option[object], ...]] = (_SUBSCRIBE, _PATTERN, _ASSIGN)
"""The options that select topics: a query must have exactly one of them."""

_TRIGGERS: Final[tuple[Option[object], ...]] = (_MAX_OFFSETS, _MIN_OFFSETS, _MAX_DELAY, _MAX_BYTES)

OPTIONS: Final[Mapping[str, Sequence[Option[object]]]] = {
    "Which topics": (*_SELECTIONS, _TOPIC_IDS),
    "Where reading starts and ends": (*reversed(_STARTS), *reversed(_ENDS), _STRATEGY),
    "What to read, and how": (
        INCLUDE_HEADERS, _COLUMNS, _ISOLATION, _FAIL_ON_DATA_LOSS, _MIN_PARTITIONS, _MAX_RECORDS, _FILTER_PUSHDOWN,
        _MAX_SPLIT_BYTES, *_TRIGGERS,
    ),
    "The store": (SETTINGS,),
}  # fmt: skip
"""All options of the format ``tieredstore`` by headings of ``docs/how-to/spark.md``, except the store's settings and
options that begin with ``kafka.``.
"""

_NAMES: Final = tuple(option.name for options in OPTIONS.values() for option in options)

WITHOUT_MEANING: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options of Spark's Kafka source that have no effect here. A warning names them."""

_NOT_OURS: Final = {
    "path": "the source has no path: name topics with subscribe, subscribePattern or assign, and the store by settings",
    "topic": "it is an option for writing: name the topics to read by subscribe",
    "consumerstrategy": "it is not an option of Spark's Kafka source: use subscribe, subscribePattern or assign",
}

KAFKA: Final = "kafka."
BOOTSTRAP_SERVERS: Final = "kafka.bootstrap.servers"

REFUSED_OF_KAFKA: Final = {
    "kafka.auto.offset.reset": "use startingOffsets, which says where to start",
    "kafka.enable.auto.commit": "nothing is committed to Kafka; a stream's offsets are in its checkpoint",
    "kafka.interceptor.classes": "Java classes cannot run here",
    "kafka.key.deserializer": "keys are bytes; decode them in the query",
    "kafka.value.deserializer": "values are bytes; decode them in the query",
}
"""Kafka properties that this format refuses, as Spark's Kafka source does. Each has a text about what to do instead."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query. Frozen and picklable. Its repr shows no secret.

    ``kafka`` has the Kafka client's properties without the prefix ``kafka.``, or None to read only the bucket.
    ``topic_ids`` choose between several topics with the same name. A limit is None if the query does not set it.
    """

    selection: Selection
    starting: Places
    ending: Places
    columns: tuple[str, ...]
    store: StoreSource
    timestamp_strategy: Literal["error", "latest"] = "error"
    isolation: Isolation = DEFAULT_ISOLATION
    fail_on_data_loss: bool = True
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    limits: TriggerLimits = field(default_factory=TriggerLimits)
    filter_pushdown: bool = False
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid])
    kafka: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a batch query or stream. Names match in any case.

    For a wrong option, this raises a ConfigError that names the option. For options without effect, it logs a warning.
    """
    properties = store_properties(options)
    texts = OptionTexts(options)
    check_kind_of_query(texts, _ENDS, _TRIGGERS, streaming=streaming)
    given = {name.lower() for name in options}
    warn_of([name for name in WITHOUT_MEANING if name.lower() in given], "have no meaning here and are ignored")
    starting = starting_places(texts, _STARTS, streaming=streaming)
    ending = ending_places(texts, _ENDS)
    check_pair(starting, ending)
    selection = _selection(texts)
    return SourceOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        columns=columns_of(options),
        store=StoreSource.from_options(texts.get(SETTINGS), properties),
        timestamp_strategy=texts.get(_STRATEGY),
        isolation=_isolation(texts),
        fail_on_data_loss=texts.get(_FAIL_ON_DATA_LOSS),
        max_split_bytes=texts.get(_MAX_SPLIT_BYTES),
        min_partitions=texts.get(_MIN_PARTITIONS),
        max_records_per_partition=texts.get(_MAX_RECORDS),
        limits=_trigger_limits(texts),
        filter_pushdown=texts.get(_FILTER_PUSHDOWN),
        topic_ids=_topic_ids(texts, selection),
        kafka=_kafka(options),
    )


def columns_of(
    options: Mapping[str, str],
    wanted: Option[frozenset[str] | None] = _COLUMNS,
    every: Sequence[str] = KAFKA_ROWS.columns,
) -> tuple[str, ...]:
    """Return the columns that the option ``wanted`` requests, in the order of ``every``.

    The option ``includeHeaders`` adds the column ``headers``. Raises ConfigError for unknown columns, and if ``wanted``
    names ``headers`` while ``includeHeaders`` is false.
    """
    texts = OptionTexts(options)
    headers, chosen = texts.get(INCLUDE_HEADERS), texts.get(wanted)
    if chosen is None:
        return tuple(name for name in every if headers or name != "headers")
    if "headers" in chosen and headers is False:
        raise ConfigError("columns has headers, but includeHeaders is false: leave out includeHeaders or the column")
    return tuple(name for name in every if name in chosen or (headers and name == "headers"))


def check_kind_of_query(
    texts: OptionTexts, batch_only: Sequence[Option[object]], stream_only: Sequence[Option[object]], *, streaming: bool
) -> None:
    """Raise ConfigError if a stream has options of batch queries. Log a warning if a batch query has options of
    streams."""
    if streaming and (ends := texts.names_given(batch_only)):
        raise ConfigError(
            f"the option {ends[0]} is for batch queries: a stream has no end; end it by trigger(availableNow)"
        )
    if not streaming:
        warn_of(texts.names_given(stream_only), "are only for streams: this batch query ignores them")


def _selection(texts: OptionTexts) -> Selection:
    given = texts.names_given(_SELECTIONS)
    if len(given) != 1:
        names = ", ".join(option.name for option in _SELECTIONS)
        raise ConfigError(f"exactly one of {names} must be given, not {' and '.join(given) or 'none'}")
    if (names_of_topics := texts.get(_SUBSCRIBE)) is not None:
        return Subscribe(names_of_topics)
    if (assigned := texts.get(_ASSIGN)) is not None:
        return Assign(assigned)
    return SubscribePattern(texts.get(_PATTERN) or "")


def _isolation(texts: OptionTexts) -> Isolation:
    # Accept Kafka's name of the option too, so that a job for Spark's Kafka source keeps its options.
    ours, kafkas = texts.get(_ISOLATION), texts.get(_ISOLATION_OF_KAFKA)
    if ours is not None and kafkas is not None and ours != kafkas:
        raise ConfigError(f"isolationLevel is {ours}, but {_ISOLATION_OF_KAFKA.name} is {kafkas}: set only one of them")
    return ours or kafkas or DEFAULT_ISOLATION


def _trigger_limits(texts: OptionTexts) -> TriggerLimits:
    most, least = texts.get(_MAX_OFFSETS), texts.get(_MIN_OFFSETS)
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, {most}")
    return TriggerLimits(most, texts.get(_MAX_BYTES), least, texts.get(_MAX_DELAY))


def _topic_ids(texts: OptionTexts, selection: Selection) -> Mapping[str, Uuid]:
    ids = texts.get(_TOPIC_IDS)
    match selection:
        case Subscribe(topics=names):
            selected = set(names)
        case Assign(partitions=assigned):
            selected = {topic for topic, _ in assigned}
        case _:
            # With a pattern, accept all ids, because the topics that match are known only after a listing.
            selected = set(ids)
    if surplus := sorted(set(ids) - selected):
        raise ConfigError(f"the option topicIds names {', '.join(surplus)}, not among the topics to read")
    return ids


def _kafka(options: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
    given = {name.lower(): text for name, text in options.items() if name.lower().startswith(KAFKA)}
    for name, way_out in REFUSED_OF_KAFKA.items():
        if name in given:
            raise ConfigError(f"the option {name} is not supported: {way_out}")
    given.pop(_ISOLATION_OF_KAFKA.name, None)  # ``_isolation`` has already read this option
    if given and not given.get(BOOTSTRAP_SERVERS, "").strip():
        others = [name for name in given if name != BOOTSTRAP_SERVERS]
        which = f"{BOOTSTRAP_SERVERS} is missing, but {others[0]} is set" if others else f"{BOOTSTRAP_SERVERS} is empty"
        raise ConfigError(f"the option {which}: name the brokers, or leave out all kafka.* to read only the bucket")
    return tuple(sorted((name.removeprefix(KAFKA), text) for name, text in given.items())) if given else None


def store_properties(
    options: Mapping[str, str],
    own: Sequence[str] = (*_NAMES, *WITHOUT_MEANING),
    also: Sequence[str] = (BOOTSTRAP_SERVERS, _ISOLATION_OF_KAFKA.name),
    not_ours: Mapping[str, str] = _NOT_OURS,
) -> dict[str, str]:
    """Return the store's settings among the options, without their prefix.

    Raises ConfigError for an option that is neither in ``own`` nor a setting. The error suggests a similar name from
    ``own`` and ``also``, or gives the reason from ``not_ours``.

    Spark changes all names to lower case, so the ids of key pairs in the result get their spelling from
    ``encryption.key.pairs``.
    """
    given = {name.lower(): text for name, text in options.items()}
    known = {name.lower() for name in own}
    by_name: dict[str, str] = {}
    for written in given.keys() - known:
        name = written.removeprefix(DEFAULT_PREFIX)
        if also and name == written and name.startswith(KAFKA):
            continue
        if name in by_name:
            raise ConfigError(f"the option {name} is given twice, with {DEFAULT_PREFIX} and without")
        by_name[name] = given[written]
    open_names = _own_class(by_name.get("storage.backend.class")) or "settings" in given
    for name in sorted(by_name):
        if not _is_setting(name, open_names):
            raise ConfigError(_explain_unknown(name, (*own, *also), not_ours))
    return _with_pair_ids(by_name)


def warn_of(names: list[str], why: str) -> None:
    """Log one warning about all ``names``, if there are any."""
    if names:
        _logger.warning("the options %s %s", ", ".join(names), why)


def _is_setting(name: str, open_names: bool) -> bool:
    if open_names and name.startswith("storage."):
        return True  # the user's own store class defines and checks this setting
    return is_known_name(name) or name.startswith(tuple(FAMILIES)) or pair_id(name) is not None


def _own_class(backend: str | None) -> bool:
    return backend is not None and backend.strip() not in (*BACKENDS, *JAVA_BACKENDS)


def _explain_unknown(name: str, options: Sequence[str], not_ours: Mapping[str, str]) -> str:
    if name in not_ours:
        return f"the option {name} is not known: {not_ours[name]}"
    known = {option.lower(): option for option in options}
    meant = did_you_mean(name, {*known, *core_names()}, show=lambda near: known.get(near, near))
    return f"the option {shown_name(name)} is not known{meant}"


def _with_pair_ids(properties: Mapping[str, str]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for one in (word.strip() for word in properties.get(PAIRS, "").split(",")):
        if ids.setdefault(one.lower(), one) != one:
            raise ConfigError(
                f"the key pairs {one} and {ids[one.lower()]} differ only in case, which Spark's options ignore: name "
                "their files in a settings file"
            )
    return {_with_pair_id(name, ids): text for name, text in properties.items()}


def _with_pair_id(name: str, ids: Mapping[str, str]) -> str:
    pair = pair_id(name)
    if pair is None or pair.lower() not in ids:
        return name
    return f"{PAIRS}.{ids[pair.lower()]}{name.removeprefix(f'{PAIRS}.{pair}')}"
