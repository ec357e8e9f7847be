"""Which options there are: those of Spark's Kafka source, ours, and the settings of the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tieredstore.config.encryption import PAIRS, pair_id
from tieredstore.config.jvm import FAMILIES
from tieredstore.config.names import KNOWN
from tieredstore.config.nearest import nearest_name
from tieredstore.config.properties import DEFAULT_PREFIX, shown_name
from tieredstore.config.storage import BACKENDS, JAVA_BACKENDS
from tieredstore.errors import ConfigError

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
