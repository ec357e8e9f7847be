"""The options of a query, read and checked before any store is asked.

There are those of Spark's Kafka source, ours, and the settings of the store.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from tieredstore.config.encryption import PAIRS, pair_id
from tieredstore.config.jvm import FAMILIES
from tieredstore.config.names import KNOWN
from tieredstore.config.nearest import nearest_name
from tieredstore.config.properties import DEFAULT_PREFIX, shown_name
from tieredstore.config.storage import BACKENDS, JAVA_BACKENDS
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT32
from tieredstore.model import Earliest, Isolation, Latest, Places, Uuid
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern
from tieredstore.spark.source.option_values import OptionTexts, check_pair, columns_of, ending_spec, starting_spec
from tieredstore.spark.source.store_source import StoreSource

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""The most that a task reads of a log."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the options of one query say; frozen and picklable, and its repr shows no secret.

    ``kafka`` are the properties of the client without ``kafka.``, None for the bucket alone; ``topic_ids`` tell which
    incarnation of a topic is meant. Limits are None where there is none.
    """

    selection: Selection
    starting: Places
    ending: Places
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


_logger: Final = logging.getLogger(__name__)

SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
"""Of these exactly one is given."""

BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
"""Refused by a stream, which has no end."""

STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
"""Of no meaning to a batch, which says so and reads on."""

OPTIONS: Final = (
    *SELECTIONS,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    *BATCH_ONLY,
    *STREAM_ONLY,
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxSplitBytes",
    "columns",
    "isolationLevel",
    "filterPushdown",
    "settings",
    "topicIds",
)
"""All options but those of the store and those that begin with ``kafka.``, as a user writes them."""

WITHOUT_MEANING: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options of Spark's Kafka source that nothing here looks at; a warning says so."""

_NOT_OURS: Final = {
    "path": "the source has no path: name topics with subscribe, subscribePattern or assign, and the store by settings",
    "topic": "that is an option for writing: name the topics to read with subscribe",
    "consumerstrategy": "that is no option of Spark's Kafka source: use subscribe, subscribePattern or assign",
}

KAFKA: Final = "kafka."
BOOTSTRAP_SERVERS: Final = "kafka.bootstrap.servers"
ISOLATION: Final = "kafka.isolation.level"

REFUSED_OF_KAFKA: Final = {
    "kafka.auto.offset.reset": "use startingOffsets, which says where to start",
    "kafka.enable.auto.commit": "nothing is committed to Kafka; a stream's offsets are in its checkpoint",
    "kafka.interceptor.classes": "Java classes cannot run here",
    "kafka.key.deserializer": "keys are bytes; decode them in the query",
    "kafka.value.deserializer": "values are bytes; decode them in the query",
}
"""Refused by Spark's Kafka source too."""


def store_properties(
    options: Mapping[str, str],
    own: Sequence[str] = (*OPTIONS, *WITHOUT_MEANING),
    also: Sequence[str] = (BOOTSTRAP_SERVERS, ISOLATION),
    not_ours: Mapping[str, str] = _NOT_OURS,
) -> dict[str, str]:
    """The settings of the store among the options, without prefix. ConfigError for an option that does not exist: for
    one that is neither of ``own`` nor a setting; ``also`` are others that may be meant, ``not_ours`` tells why not.

    Spark hands over names in lower case; the ids of key pairs get theirs back from ``encryption.key.pairs``.
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
            raise ConfigError(_unknown(name, (*own, *also), not_ours))
    return _with_pair_ids(by_name)


def warn_of(names: list[str], why: str) -> None:
    """One warning for all ``names``, if there are any."""
    if names:
        _logger.warning("the options %s %s", ", ".join(names), why)


def _is_setting(name: str, open_names: bool) -> bool:
    if open_names and name.startswith("storage."):
        return True  # of a user's own store class; the settings as a whole tell whether it may be
    return name in KNOWN or name.startswith(tuple(FAMILIES)) or pair_id(name) is not None


def _own_class(backend: str | None) -> bool:
    return backend is not None and backend.strip() not in (*BACKENDS, *JAVA_BACKENDS)


def _unknown(name: str, options: Sequence[str], not_ours: Mapping[str, str]) -> str:
    if name in not_ours:
        return f"the option {name} is not known: {not_ours[name]}"
    known = {option.lower(): option for option in options}
    nearest = nearest_name(name, {*known, *KNOWN})
    meant = f"; the nearest is {known.get(nearest, nearest)}" if nearest else ""
    return f"the option {shown_name(name)} is not known{meant}"


def _with_pair_ids(properties: Mapping[str, str]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for one in (word.strip() for word in properties.get(PAIRS, "").split(",")):
        if ids.setdefault(one.lower(), one) != one:
            raise ConfigError(
                f"the key pairs {one} and {ids[one.lower()]} differ in case alone, which names of options do not tell: "
                "name their files in a settings file"
            )
    return {_with_pair_id(name, ids): text for name, text in properties.items()}


def _with_pair_id(name: str, ids: Mapping[str, str]) -> str:
    pair = pair_id(name)
    if pair is None or pair.lower() not in ids:
        return name
    return f"{PAIRS}.{ids[pair.lower()]}{name.removeprefix(f'{PAIRS}.{pair}')}"


_CLASSES: Final = {
    "Lower": "a-z", "Ll": "a-z", "IsLowercase": "a-z", "Upper": "A-Z", "Lu": "A-Z", "IsUppercase": "A-Z",
    "Alpha": "a-zA-Z", "L": "a-zA-Z", "IsAlphabetic": "a-zA-Z", "IsLetter": "a-zA-Z",
    "Digit": "0-9", "N": "0-9", "Nd": "0-9", "IsDigit": "0-9", "Alnum": "a-zA-Z0-9", "Punct": "._\\-", "P": "._\\-",
}  # fmt: skip
_SPELLINGS: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|\\p(?:\{(?P<property>\w+)\}|(?P<short>[LNP]))"
    r"|(?P<group>\(\?<(?=[a-zA-Z]))"
    r"|\\k<(?P<back>\w+)>"
    r"|(?P<end>\\[zZ])"
    r"|(?P<octal>\\(?:0|[1-9][0-9]{2}))"
    r"|(?P<escaped>\\.)"
    r"|(?P<inside>&&)",
    re.DOTALL,
)


def python_pattern(pattern: str) -> str:
    """The expression of Python's ``re`` that matches the topics that Java's ``pattern`` does, by whole name.

    ConfigError for an empty one, and for one that cannot be read.
    """
    if not pattern:
        raise ConfigError("the option subscribePattern is empty; it must match the whole name of a topic, as topic-.*")
    translated = _SPELLINGS.sub(_translate, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # sets of sets, which mean something in Java alone
            re.compile(translated)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        reason = "it has sets of sets" if isinstance(error, FutureWarning) else str(error)
        raise _unreadable(pattern, reason) from None
    return translated


def _translate(spelling: re.Match[str]) -> str:
    kind = spelling.lastgroup
    if kind == "quoted":
        return re.escape(spelling["quoted"])
    if kind in ("property", "short"):
        return _class(spelling)
    if kind == "octal":
        raise _unreadable(spelling.string, f"{spelling[0]} is a character to the one language and a group to the other")
    if kind == "inside":
        raise _unreadable(spelling.string, "it has && of Java's sets")
    return {"group": "(?P<", "back": f"(?P={spelling['back']})", "end": r"\Z"}.get(kind or "", spelling[0])


def _class(spelling: re.Match[str]) -> str:
    name = spelling["property"] or spelling["short"]
    if name not in _CLASSES:
        raise _unreadable(spelling.string, f"\\p{{{name}}} is not known here")
    opened = spelling.string[: spelling.start()]
    is_in_set = opened.count("[") - opened.count("\\[") > opened.count("]") - opened.count("\\]")
    return _CLASSES[name] if is_in_set else f"[{_CLASSES[name]}]"


def _unreadable(pattern: str, reason: str) -> ConfigError:
    shown = repr(pattern if len(pattern) <= 80 else f"{pattern[:80]}…")
    return ConfigError(f"the option subscribePattern is {shown}, which cannot be read: {reason}")
