"""MemQ's topic JSON, for ``--topic-config`` and ``pubsub.topic.config``.

A topic of MemQ's brokers has its objects in a bucket and its notifications in Kafka. A JSON file describes the topic.
Missing fields have MemQ's defaults; unknown fields, and fields that only MemQ's brokers use, have no effect.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pydantic import SecretStr

from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.config.fields import property_fields
from tieredstore.errors import ConfigError, excerpt
from tieredstore.places.opening import open_places
from tieredstore.pubsub.format.notifications import check_path
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import Topic, Topics, bucket_name, check_topic_name
from tieredstore.pubsub.settings import BatchSettings
from tieredstore.remote.stores import settings_of

if TYPE_CHECKING:
    from tieredstore.remote.stores import StoreLike

_logger: Final = logging.getLogger(__name__)
_MOST_BYTES: Final = 1 << 20
_S3_HANDLERS: Final = frozenset({"s3", "s3v2", "customs3", "customs3aync2", "customs3async2"})
_MIB: Final = 1 << 20
_BOOTSTRAP: Final = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's JSON with MemQ's defaults. ``limits`` has values of :class:`BatchSettings`. ``brokers`` names the Kafka
    brokers that have the topic's notifications; it is empty if the JSON does not name them.
    """

    topic: Topic
    bucket: str
    limits: Mapping[str, int]
    brokers: tuple[str, ...]

    def apply_to(self, settings: Settings) -> Settings:
        """Return the settings with the topic's batches and queue. Raise ConfigError for values out of range."""
        given = settings.section(BatchSettings)
        kafka = given.kafka
        if self.brokers and not any(name == _BOOTSTRAP for name, _ in kafka):
            kafka = (*kafka, (_BOOTSTRAP, SecretStr(",".join(self.brokers))))
        kinds = {alias: kind for alias, _, kind in property_fields(BatchSettings)}
        for name, value in self.limits.items():
            alias = f"pubsub.{name.replace('_', '.')}"
            try:
                kinds[alias].parse(str(value))
            except ValueError as error:
                raise ConfigError(
                    f"topic {self.topic.name}: its JSON sets {alias} to {value}; set it to a valid value "
                    f"({kinds[alias].allowed})"
                ) from error
        return settings.with_section(given.model_copy(update={**self.limits, "kafka": kafka}))


def load_topic_config(path: Path) -> TopicConfig:
    """Return the topic that a file describes. Raise ConfigError if the file is invalid; the error names the file and
    the field."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the topic configuration {path}: {error.strerror}") from error
    return parse_topic_config(raw, str(path), path.absolute().parent)


def parse_topic_config(raw: bytes, source: str, folder: Path) -> TopicConfig:
    """Parse a topic's JSON. It may name a serverset (a file of ``host:port`` lines) by a path that is relative to
    ``folder``."""
    try:
        document: object = json.loads(raw) if len(raw) <= _MOST_BYTES else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {excerpt(error)}") from error
    topic = _Fields(document, source)
    name = check_topic_name(topic.text("topic"))
    handler = topic.text("storageHandlerName", "outputHandler")
    if handler not in _S3_HANDLERS:
        known = ", ".join(sorted(_S3_HANDLERS))
        raise ConfigError(f"{source}: the storage handler {handler!r:.60} is not one of {known}")
    output = _Fields(topic.value("storageHandlerConfig", "outputHandlerConfig"), f"{source}, storageHandlerConfig")
    if output.flag("disableNotifications", default=False):
        raise ConfigError(f"{source}: notifications are disabled (disableNotifications), so readers would find nothing")
    size = topic.number("batchSizeBytes") or (topic.number("batchSizeMB") or 100) * _MIB
    limits = {
        "batch_bytes": size,
        "batch_ms": topic.number("batchMilliSeconds") or 60_000,
        "batch_messages": topic.number("maxDispatchCount") or 100,
        "uploads": topic.number("outputParallelism") or 2,
    }
    path, is_hashed = check_path(output.text("path", default=name)), output.flag("enableHashing", default=True)
    return TopicConfig(
        Topic(name, 1, path, is_hashed, KAFKA, output.text("notificationTopic")),
        output.text("bucket"),
        limits,
        _brokers(output.text("notificationServerset", default=""), folder),
    )


@contextlib.contextmanager
def open_topics(source: StoreLike | Topics) -> Generator[Topics]:
    """Open the topics of a store, including the topic of ``pubsub.topic.config``; close the store after the block.

    If ``source`` is a Topics object, yield this object, and leave it open after the block.
    """
    if isinstance(source, Topics):
        yield source
        return
    settings = settings_of(source)
    with contextlib.closing(open_places(settings)) as store:
        yield topics_in_store(store, settings)


def topics_in_store(store: ObjectStore, settings: Settings) -> Topics:
    """Return the topics of an open store, including the topic of ``pubsub.topic.config`` if that is set."""
    path = settings.section(BatchSettings).topic_config
    return Topics(store, settings) if path is None else open_configured_topics(store, settings, load_topic_config(path))


def open_configured_topics(store: ObjectStore, settings: Settings, config: TopicConfig) -> Topics:
    """Return the topics of a store, including the topic of ``config``. Raise ConfigError if that topic is in another
    bucket."""
    name = bucket_name(settings)
    if name not in ("", config.bucket):
        raise ConfigError(f"topic {config.topic.name} is in bucket {config.bucket}, but the store is bucket {name}")
    return Topics(store, config.apply_to(settings), configured=config.topic, bucket=config.bucket)


def _brokers(serverset: str, folder: Path) -> tuple[str, ...]:
    if not serverset:
        return ()
    path = folder / serverset
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        _logger.warning("cannot read the serverset %s: set pubsub.kafka.bootstrap.servers (%s)", path, error)
        return ()
    return tuple(line.strip() for line in lines if line.strip())


class _Fields:
    """Fields of a JSON object. If a field has several names, the first name that is present counts."""

    def __init__(self, document: object, source: str) -> None:
        if not isinstance(document, dict):
            raise ConfigError(f"{source} is not a JSON object")
        self._values = cast("dict[str, object]", document)
        self._source = source

    def value(self, *names: str) -> object:
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def text(self, *names: str, default: str | None = None) -> str:
        value = self.value(*names)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            shown = "missing" if value is None else f"{value!r:.60}"
            raise ConfigError(f"{self._source}: {names[0]} is {shown}; set it to a text that is not empty")
        return value

    def number(self, name: str) -> int | None:
        """Return the number in this field. In the JSON, the number may also be a text."""
        value = self.value(name)
        if value is None:
            return None
        digits = "" if isinstance(value, bool) or not isinstance(value, int | str) else str(value)
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            raise ConfigError(f"{self._source}: {name} is {value!r:.60}; set it to a whole number that is not negative")
        return int(digits)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if str(value).lower() not in ("true", "false"):
            raise ConfigError(f"{self._source}: {name} is {value!r:.60}; set it to true or false")
        return str(value).lower() == "true"
