"""The properties of Pinterest's uploader and consumer, read as ours: honoured, accepted without effect, or refused.

Facts: github.com/pinterest/tiered-storage (README and sources of 2026-05).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.config.effects import Effect
from tieredstore.errors import ConfigError
from tieredstore.model import Properties

_UPLOADER: Final = "ts.segment.uploader."
_ENDPOINT: Final = "storage.service.endpoint."
_ZOOKEEPER: Final = "ZookeeperLeadershipWatcher"


@dataclass(frozen=True, slots=True)
class ForeignProperty:
    """One name, or a beginning and ``*``; ``own`` is ours, where there is one, and ``text`` makes its value."""

    name: str
    effect: Effect
    note: str
    own: str = ""
    text: Callable[[str], str] = str.strip

    def is_of(self, name: str) -> bool:
        """Whether the row is of this name."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


def _bits(text: str) -> str:
    return "0" if text.strip().startswith("-") else text.strip()


def _lower(text: str) -> str:
    return text.strip().lower()


def _prefix(text: str) -> str:
    trimmed = text.strip().strip("/")
    return f"{trimmed}/" if trimmed else ""


def _leadership(text: str) -> str:
    if text.strip().rpartition(".")[2] != _ZOOKEEPER:
        raise ConfigError(
            f"{_UPLOADER}leadership.watcher.class is no class that can be used here: leave it out, and set "
            "uploader.leadership"
        )
    return "zookeeper"


def _honoured(name: str, own: str, note: str = "", text: Callable[[str], str] = str.strip) -> ForeignProperty:
    return ForeignProperty(name, Effect.IN_EFFECT, note, own, text)


def _idle(name: str, note: str) -> ForeignProperty:
    return ForeignProperty(name, Effect.WITHOUT_EFFECT, note)


TABLE: Final = (
    _honoured(f"{_UPLOADER}kafka.topics.include", "uploader.topics.include"),
    _honoured(f"{_UPLOADER}kafka.topics.exclude", "uploader.topics.exclude"),
    _honoured(f"{_UPLOADER}offset.reset.strategy", "uploader.start", "in lower case", _lower),
    _honoured(f"{_UPLOADER}upload.thread.count", "uploader.concurrent.uploads", "here it bounds what is under way"),
    _honoured(f"{_UPLOADER}upload.timeout.ms", "uploader.upload.timeout.ms"),
    _honoured(f"{_UPLOADER}leadership.watcher.class", "uploader.leadership", f"`{_ZOOKEEPER}` alone", _leadership),
    _honoured(f"{_UPLOADER}s3.prefix.entropy.bits", "endpoint.prefix.entropy.bits", "-1 is 0", _bits),
    _honoured(f"{_ENDPOINT}s3.prefix.entropy.num.bits", "endpoint.prefix.entropy.bits", "-1 is 0", _bits),
    _honoured(f"{_ENDPOINT}s3.bucket", "storage.s3.bucket.name"),
    _honoured(f"{_ENDPOINT}s3.prefix", "key.prefix", "with a `/` behind it", _prefix),
    _honoured("kafka.cluster.id", "endpoint.cluster"),
    _idle(f"{_UPLOADER}upload.max.retries", "what may pass is repeated without end"),
    _idle(f"{_UPLOADER}leadership.watcher.poll.interval.seconds", "leaders are asked for each second, or watched"),
    _idle(f"{_UPLOADER}segment.manager.*", "nothing is deleted by age"),
    _idle(f"{_UPLOADER}dlq.*", "what cannot be stored goes into quarantine"),
    _idle("metrics.reporter.*", "`/metrics` at `uploader.listen`"),
    _idle("metrics.registry.*", "`/metrics` at `uploader.listen`"),
    _idle(f"{_ENDPOINT}s3.metadata.reload.interval.ms", "listings are as new as a read"),
    ForeignProperty(
        f"{_ENDPOINT}provider.class",
        Effect.REFUSED,
        "a class of Java says where records lie: use `endpoint.rules`, or `endpoint.provider.class` of Python",
    ),
)
"""All names, those that are honoured first."""


def translated(properties: Properties, source: str) -> Properties:
    """``properties`` with Pinterest's names turned into ours, which count where both are there; the very same without
    any. ConfigError for what is refused, and for names that Pinterest's uploader does not know either."""
    foreign = [name for name in properties if name.startswith((_UPLOADER, _ENDPOINT))]
    if not foreign:
        return properties
    own = {"uploader.layout": "pinterest", "chunk.size": "4194304", "storage.backend.class": "s3"}
    kept: dict[str, str] = {}
    for name, text in properties.items():
        row = next((row for row in TABLE if row.is_of(name)), None)
        if row is None and name in foreign:
            raise ConfigError(f"{source}: {name} is not known, neither here nor to Pinterest's uploader")
        if row is None:
            kept[name] = text
        elif row.effect is Effect.REFUSED:
            raise ConfigError(f"{source}: {name} is refused: {row.note}")
        elif row.own:
            own[row.own] = row.text(text)
    return {**own, **kept}


def table() -> str:
    """The table of the page, in Markdown."""
    lines = ["| of Pinterest's | here | as | |", "|---|---|---|---|"]
    for row in TABLE:
        effect = "honoured" if row.own else row.effect.value
        own = f"`{row.own}`" if row.own else ""
        lines.append(f"| `{row.name}` | {effect} | {own} | {row.note} |")
    return "\n".join(lines)
