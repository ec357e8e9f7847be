"""The selection of topics, and problems of one: refused, or worth a warning.

Kept apart from ``uploader``, which assembles the parts: it knows settings of topics, and neither disks nor segments.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.config.uploader import UploaderSettings
from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

_logger: Final = logging.getLogger(__name__)

_INTERNAL: Final = "__"
_MOST_NAMED: Final = 10
_DAY_MS: Final = 86_400_000
_TRIES: Final = 10
"""Attempts to ask about a single topic without an answer."""

_NOT_TOLD: Final[dict[str, str]] = {}


class TopicSelection:
    """Topics by name, as configured. Each pattern must match the whole name; exclusion wins."""

    def __init__(self, settings: UploaderSettings) -> None:
        self._include = [re.compile(pattern) for pattern in settings.include]
        self._exclude = [re.compile(pattern) for pattern in settings.exclude]
        self._internal = settings.internal_topics
        self._known: dict[str, bool] = {}

    def holds(self, topic: str) -> bool:
        """Return True if the topic is selected."""
        if topic not in self._known:
            self._known[topic] = (
                (self._internal or not topic.startswith(_INTERNAL))
                and any(pattern.fullmatch(topic) for pattern in self._include)
                and not any(pattern.fullmatch(topic) for pattern in self._exclude)
            )
        return self._known[topic]


def refusal(settings: Mapping[str, str]) -> str | None:
    """Return the reason why a topic with these settings is not uploaded unless forced; None if it is."""
    if settings.get("remote.storage.enable") == "true":
        return "the broker tiers it itself (remote.storage.enable)"
    if "compact" in settings.get("cleanup.policy", "delete"):
        return "it is compacted, and what compaction takes from a segment later is in its copy for ever"
    return None


def warnings(settings: Mapping[str, str], upload_timeout_ms: int, *, has_links: bool = False) -> Iterator[str]:
    """Yield a clause for each setting that leaves too little time to upload, or may remove uploaded records.

    ``has_links``: deleted files outlive the uploader's process.
    """
    number = {name: int(text) for name, text in settings.items() if re.fullmatch(r"-?\d{1,19}", text)}
    delay = number.get("file.delete.delay.ms", 60_000)
    has_retention = number.get("retention.ms", 7 * _DAY_MS) >= 0 or number.get("retention.bytes", -1) >= 0
    if delay < upload_timeout_ms and has_retention and not has_links:
        yield (
            f"file.delete.delay.ms is {delay}, shorter than uploader.upload.timeout.ms ({upload_timeout_ms}): if the "
            "uploader is away for longer when retention marks a segment deleted, it is lost"
        )
    retention = number.get("retention.ms", 7 * _DAY_MS)
    if 0 <= retention < upload_timeout_ms:
        yield f"retention.ms is {retention}, shorter than uploader.upload.timeout.ms ({upload_timeout_ms})"
    roll = number.get("segment.ms", 7 * _DAY_MS)
    if 0 <= retention < roll:
        yield (
            f"retention.ms is {retention} and segment.ms {roll}: a partition with little traffic is rolled and deleted "
            "at once, and there are only the milliseconds of file.delete.delay.ms to ship it"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        yield "unclean.leader.election.enable is true: shipped records may be lost from the log"


class TopicAdvice:
    """The brokers' settings of topics: refused topics, and warnings. For one thread."""

    def __init__(self, settings: UploaderSettings, broker: BrokerState | None) -> None:
        self._force = frozenset(settings.force_topics)
        self._upload_timeout_ms = settings.upload_timeout_ms
        self._has_links = bool(settings.hold_dir)
        self._broker = broker
        self._asked: set[str] = set()
        self._in_vain: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        """The topics that are not uploaded, with the reason."""
        self.advice: dict[str, tuple[str, ...]] = {}
        """The warnings by topic; each known topic has an entry."""
        self.has_news: bool = False
        """True if there are new answers since it was reset."""

    def knows(self, topic: str) -> bool:
        """Return True if it is known whether the topic is refused; always without a broker."""
        return self._broker is None or topic in self.advice

    def ask(self, topics: Iterable[str]) -> None:
        """Ask about topics not asked since :meth:`forget`. Raise an error that is worth a retry; any other counts as
        an answer without settings.
        """
        wanted = sorted(set(topics) - self._asked)
        if self._broker is None or not wanted:
            return
        try:
            answers = self._broker.topic_settings(wanted)
        except TieredStoreError as error:
            if error.retryable:
                raise
            _logger.warning("the settings of topics are unavailable, so all selected topics are shipped: %s", error)
            answers = dict.fromkeys(wanted, _NOT_TOLD)
        for topic in wanted:
            if topic not in answers and self._in_vain[topic] < _TRIES:
                self._in_vain[topic] += 1
                continue
            if topic not in answers:
                _logger.warning("the settings of topic %s are unavailable, so it is shipped", topic)
            self._asked.add(topic)
            self._take(topic, answers.get(topic, _NOT_TOLD))
        for sentence in self.sentences(wanted):
            _logger.warning("%s", sentence)

    def sentences(self, topics: Iterable[str] | None = None) -> list[str]:
        """Return the warnings about these topics, or about all: each once, with the topics concerned."""
        concerned: dict[str, list[str]] = {}
        for topic in sorted(self.advice if topics is None else topics):
            for sentence in self.advice.get(topic, ()):
                concerned.setdefault(sentence, []).append(topic)
        return [f"{_name(names)}: {sentence}" for sentence, names in concerned.items()]

    def forget(self) -> None:
        """Ask about all topics again, because settings change. Known answers stay until then."""
        self._asked.clear()

    def _take(self, topic: str, settings: Mapping[str, str]) -> None:
        refused = None if topic in self._force else refusal(settings)
        if refused is None:
            self.refused.pop(topic, None)
        elif topic not in self.refused:
            self.refused[topic] = refused
            _logger.warning(
                "topic %s is not shipped: %s; uploader.force.topics=%s has it shipped all the same",
                topic, refused, topic,
            )  # fmt: skip
        advice = warnings(settings, self._upload_timeout_ms, has_links=self._has_links)
        self.advice[topic] = () if refused is not None else tuple(advice)
        self.has_news = True


def _name(topics: Sequence[str]) -> str:
    """Return the topics by name, only some of many."""
    if len(topics) == 1:
        return f"topic {topics[0]}"
    more = f" and {len(topics) - _MOST_NAMED} more" if len(topics) > _MOST_NAMED else ""
    return f"topics {', '.join(topics[:_MOST_NAMED])}{more}"
