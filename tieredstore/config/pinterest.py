"""Properties of Pinterest's uploader and consumer: translated to this package's names, accepted without effect, or
refused.

Source: github.com/pinterest/tiered-storage (README and sources of 2026-05).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.config.properties import Effect
from tieredstore.errors import ConfigError, excerpt
from tieredstore.model import Properties

_UPLOADER: Final = "ts.segment.uploader."
_ENDPOINT: Final = "storage.service.endpoint."
_MANAGER: Final = f"{_UPLOADER}segment.manager."
_GC_INTERVAL: Final = f"{_MANAGER}gc.interval.seconds"
_PROVIDER: Final = f"{_ENDPOINT}provider.class"
_CLUSTER: Final = "kafka.cluster.id"
_TOPIC: Final = "TOPIC"
_PLACES: Final = (
    f"{_ENDPOINT}s3.bucket", "storage.backend.class", "storage.root", "storage.s3.bucket.name", "endpoint.rules",
    "endpoint.provider.class"
)  # fmt: skip
"""Properties that name the place of segments. Pinterest's settings may name a Java class instead; the class then
decides the place.
"""
_ZOOKEEPER: Final = "ZookeeperLeadershipWatcher"


@dataclass(frozen=True, slots=True)
class ForeignProperty:
    """One of Pinterest's properties, or a prefix and ``*``. ``own`` is this package's name for the property; ``text``
    converts its value.
    """

    name: str
    effect: Effect
    note: str
    own: str = ""
    text: Callable[[str], str] = str.strip

    def is_of(self, name: str) -> bool:
        """Return True if ``name`` is this property's name, or has its prefix."""
        return self.topic_of(name) is not None or (
            name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name
        )

    def topic_of(self, name: str) -> str | None:
        """Return the part of ``name`` that stands where this property's name has TOPIC; None if the names do not
        match."""
        before, topic, behind = self.name.partition(_TOPIC)
        if not topic or not name.startswith(before) or not name.endswith(behind):
            return None
        return name[len(before) : len(name) - len(behind)] or None


def _bits(text: str) -> str:
    return "0" if text.strip().startswith("-") else text.strip()


def _lower(text: str) -> str:
    return text.strip().lower()


def _prefix(text: str) -> str:
    trimmed = text.strip().strip("/")
    return f"{trimmed}/" if trimmed else ""


def _milliseconds(text: str) -> str:
    seconds = text.strip()
    if not re.fullmatch(r"[0-9]{1,12}", seconds, re.ASCII):
        raise ConfigError(
            f"a retention of {excerpt(text)!r} seconds is invalid: set a whole number, or remove the property"
        )
    return f"{seconds}000"


def _leadership(text: str) -> str:
    if text.strip().rpartition(".")[2] != _ZOOKEEPER:
        raise ConfigError(
            f"{_UPLOADER}leadership.watcher.class names a class that tieredstore does not have: remove the property "
            "and set uploader.leadership instead"
        )
    return "zookeeper"


def _honour(name: str, own: str, note: str = "", text: Callable[[str], str] = str.strip) -> ForeignProperty:
    return ForeignProperty(name, Effect.IN_EFFECT, note, own, text)


def _idle(name: str, note: str) -> ForeignProperty:
    return ForeignProperty(name, Effect.WITHOUT_EFFECT, note)


TABLE: Final = (
    _honour(f"{_UPLOADER}kafka.topics.include", "uploader.topics.include"),
    _honour(f"{_UPLOADER}kafka.topics.exclude", "uploader.topics.exclude"),
    _honour(f"{_UPLOADER}offset.reset.strategy", "uploader.start", "The words may be in upper or lower case.", _lower),
    _honour(
        f"{_UPLOADER}upload.thread.count",
        "uploader.concurrent.uploads",
        "The number limits how many uploads run in parallel.",
    ),
    _honour(f"{_UPLOADER}upload.timeout.ms", "uploader.upload.timeout.ms"),
    _honour(
        f"{_UPLOADER}leadership.watcher.class", "uploader.leadership", f"Only `{_ZOOKEEPER}` is accepted.", _leadership
    ),
    _honour(f"{_UPLOADER}s3.prefix.entropy.bits", "endpoint.prefix.entropy.bits", "The value -1 means 0.", _bits),
    _honour(f"{_ENDPOINT}s3.prefix.entropy.num.bits", "endpoint.prefix.entropy.bits", "The value -1 means 0.", _bits),
    _honour(f"{_ENDPOINT}s3.bucket", "storage.s3.bucket.name"),
    _honour(f"{_ENDPOINT}s3.prefix", "key.prefix", "A trailing `/` is added.", _prefix),
    _honour(_CLUSTER, "endpoint.cluster"),
    _idle(f"{_UPLOADER}upload.max.retries", "temporary failures are retried without limit"),
    _idle(
        f"{_UPLOADER}leadership.watcher.poll.interval.seconds",
        "leaders are looked up every second, or watched in ZooKeeper",
    ),
    _honour(
        _GC_INTERVAL, "uploader.retention.interval.ms", "If the value is 0 or less, nothing is deleted.", _milliseconds
    ),
    _honour(
        f"{_MANAGER}gc.retention.seconds",
        "uploader.retention.ms",
        "If this property is not set, nothing is deleted. Pinterest's uploader would delete after 3 days.",
        _milliseconds,
    ),
    _honour(
        f"{_MANAGER}gc.{_TOPIC}.retention.seconds",
        "uploader.retention.topics",
        "",
        _milliseconds,
    ),
    _idle(f"{_MANAGER}class", "retention needs no class"),
    _idle(f"{_UPLOADER}dlq.*", "segments that cannot be stored are put into quarantine"),
    _idle("metrics.reporter.*", "metrics are served at `/metrics` of `uploader.listen`"),
    _idle("metrics.registry.*", "metrics are served at `/metrics` of `uploader.listen`"),
    _idle(f"{_ENDPOINT}s3.metadata.reload.interval.ms", "each read lists the stored segments"),
    _idle("bootstrap.servers", "a property of the consumer: pass it to `Consumer`"),
    _idle("group.id", "a property of the consumer: pass it to `Consumer`"),
    _idle("tiered.storage.mode", "a property of the consumer: pass it to `Consumer`"),
    _idle("offset.reset.policy", "a property of the consumer: pass it to `Consumer` as `auto.offset.reset`"),
    _idle(
        _PROVIDER,
        "a Java class cannot tell tieredstore where segments are: also set the place yourself, as "
        "`storage.s3.bucket.name=BUCKET`, `key.prefix=PREFIX/` and `endpoint.cluster=CLUSTER`, and for topics at other "
        "places `endpoint.rules` or a Python class (`endpoint.provider.class=module.Class`). Otherwise the property is "
        "refused",
    ),
)
"""All properties; translated properties come first."""


def translate(properties: Properties, source: str) -> Properties:
    """Return ``properties`` with Pinterest's names translated to this package's. If a property is set under both names,
    the value under this package's name counts.

    If no property has one of Pinterest's names, return the same mapping. Raise ConfigError for refused properties, and
    for names that neither this package nor Pinterest's uploader knows.
    """
    foreign = [name for name in properties if name.startswith((_UPLOADER, _ENDPOINT))]
    if not foreign:
        return properties
    _check_place(properties, source)
    own = {"uploader.layout": "pinterest"}
    if "storage.backend.class" not in properties:
        own |= {"storage.backend.class": "s3", "storage.s3.region": "us-east-1"}  # defaults of Pinterest's clients
    kept: dict[str, str] = {}
    topics: list[str] = []
    for name, text in _without_idle_retention(properties).items():
        row = next((row for row in TABLE if row.is_of(name)), None)
        if row is None and name in foreign:
            raise ConfigError(f"{source}: {name} is neither a property of tieredstore nor of Pinterest's uploader")
        if row is None:
            kept[name] = text
        elif (topic := row.topic_of(name)) is not None:
            topics.append(f"{topic}={row.text(text)}")
        elif row.own:
            own[row.own] = row.text(text)
    if topics:
        own["uploader.retention.topics"] = ",".join(topics)
    return {**own, **kept}


def _check_place(properties: Properties, source: str) -> None:
    """Raise ConfigError if only a Java class names the place of segments. The error names settings to use instead."""
    if _PROVIDER in properties and not any(name in properties for name in _PLACES):
        (row,) = (row for row in TABLE if row.name == _PROVIDER)
        raise ConfigError(f"{source}: {_PROVIDER} is refused: {row.note.partition('. Otherwise')[0].replace('`', '')}")


def of_consumer(properties: Mapping[str, object]) -> dict[str, object]:
    """Return a consumer's properties, with the names from Pinterest's README translated to this package's.

    The properties that locate the segments become the value of ``tiered.storage.settings``, unless ``properties``
    already has ``tiered.storage.settings`` or ``tiered.storage.store``.
    """
    place = {name: text for name, text in properties.items() if name.startswith((_ENDPOINT, _CLUSTER))}
    rest = {name: text for name, text in properties.items() if name not in place}
    if (reset := rest.pop("offset.reset.policy", None)) is not None:
        rest.setdefault("auto.offset.reset", str(reset).lower())
    if place.keys() - {_CLUSTER} and not {"tiered.storage.settings", "tiered.storage.store"} & rest.keys():
        rest["tiered.storage.settings"] = {name: str(text) for name, text in place.items()}
    return rest


def _without_idle_retention(properties: Properties) -> Properties:
    """Drop the retention properties if the check interval is 0 or negative, because such an interval switches
    retention off.
    """
    if re.fullmatch(r"0+|-[0-9]+", properties.get(_GC_INTERVAL, "1").strip(), re.ASCII) is None:
        return properties
    return {name: text for name, text in properties.items() if not name.startswith(f"{_MANAGER}gc.")}
