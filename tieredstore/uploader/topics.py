"""Selects topics by name. Checks their settings: refuses topics that must not be uploaded, and warns of other problems.

This is a separate module because it needs only names and settings of topics, and neither disks nor segments.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tieredstore.errors import TieredStoreError
from tieredstore.model import Uuid
from tieredstore.uploader.settings import UploaderSettings

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

_logger: Final = logging.getLogger(__name__)

_INTERNAL: Final = "__"
_MOST_NAMED: Final = 10
_DAY_MS: Final = 86_400_000
_TRIES: Final = 10
"""After this many attempts without an answer about a topic, its settings count as unavailable."""


def is_selected(settings: UploaderSettings, topic: str) -> bool:
    """Return True if the configured patterns select the topic. A pattern must match the whole name. A topic that is
    both included and excluded is not selected."""
    return (
        (settings.internal_topics or not topic.startswith(_INTERNAL))
        and any(re.fullmatch(pattern, topic) for pattern in settings.include)
        and not any(re.fullmatch(pattern, topic) for pattern in settings.exclude)
    )


def refusal(settings: Mapping[str, str]) -> str | None:
    """Return the reason why a topic with these settings is uploaded only if forced, or None if it is always
    uploaded."""
    if settings.get("remote.storage.enable") == "true":
        return "the broker tiers it itself (remote.storage.enable)"
    if "compact" in settings.get("cleanup.policy", "delete"):
        return "it is compacted, and a copy would keep records that compaction removes later"
    return None


def warnings(settings: Mapping[str, str], upload_timeout_ms: int, *, has_links: bool = False) -> Iterator[str]:
    """Yield a warning for each setting that leaves too little time to upload or may remove uploaded records.

    ``has_links`` is true if hard links keep deleted files while no uploader runs.
    """
    number = {name: int(text) for name, text in settings.items() if re.fullmatch(r"-?\d{1,19}", text)}
    delay = number.get("file.delete.delay.ms", 60_000)
    has_retention = number.get("retention.ms", 7 * _DAY_MS) >= 0 or number.get("retention.bytes", -1) >= 0
    if delay < upload_timeout_ms and has_retention and not has_links:
        yield (
            f"file.delete.delay.ms is {delay}, shorter than uploader.upload.timeout.ms ({upload_timeout_ms}): a "
            "segment that retention deletes is lost if the uploader is down for longer"
        )
    retention = number.get("retention.ms", 7 * _DAY_MS)
    if 0 <= retention < upload_timeout_ms:
        yield f"retention.ms is {retention}, shorter than uploader.upload.timeout.ms ({upload_timeout_ms})"
    roll = number.get("segment.ms", 7 * _DAY_MS)
    if 0 <= retention < roll:
        yield (
            f"retention.ms is {retention} and segment.ms {roll}: a segment with little traffic is closed and deleted "
            "at once, so only file.delete.delay.ms is left to ship it"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        yield "unclean.leader.election.enable is true: an unclean election may remove shipped records from the log"


class TopicAdvice:
    """Reads topics' settings from the brokers. Keeps the warnings, and the names of topics that are not uploaded.

    Not thread-safe.
    """

    def __init__(self, settings: UploaderSettings, broker: BrokerState | None) -> None:
        self._force = frozenset(settings.force_topics)
        self._upload_timeout_ms = settings.upload_timeout_ms
        self._has_links = bool(settings.hold_dir)
        self._broker = broker
        self._asked: dict[str, Uuid | None] = {}
        """The topics whose settings were read, each with its topic id at that time."""
        self._in_vain: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        """For each topic that is not uploaded, the reason."""
        self.advice: dict[str, tuple[str, ...]] = {}
        """The warnings of each topic. Every topic with known settings has an entry."""

    def knows(self, topic: str) -> bool:
        """Return True if the topic's settings are known, or if there is no broker to ask."""
        return self._broker is None or topic in self.advice

    def ask(self, topics: Iterable[str], ids: Mapping[str, Uuid] = MappingProxyType({})) -> bool:
        """Read the settings of the topics that were not read since the last :meth:`forget`. ``ids`` has the present
        topic ids: a re-created topic may have other settings, so read them again. Return True if there are new answers.

        Raise an error of the broker if a retry may succeed. After any other error, keep the known settings, and treat
        unknown settings as empty.
        """
        wanted = sorted(topic for topic in set(topics) if not self._is_asked(topic, ids.get(topic)))
        if self._broker is None or not wanted:
            return False
        try:
            answers: Mapping[str, Mapping[str, str] | None] = self._broker.topic_settings(wanted)
        except TieredStoreError as error:
            if error.retryable:
                raise
            _logger.warning(
                "topics' settings are unavailable; known ones hold, others are shipped even if compacted or tiered: %s",
                error,
            )
            answers = dict.fromkeys(wanted)
        refused_before = set(self.refused)
        unknown, has_news = list[str](), False
        for topic in wanted:
            if topic not in answers and self._in_vain[topic] < _TRIES:
                self._in_vain[topic] += 1
                continue
            if topic not in answers and topic not in self.advice:
                unknown.append(topic)
            self._asked[topic] = ids.get(topic)
            settings = answers.get(topic)
            if settings is not None or topic not in self.advice:
                self._take(topic, settings or {})
                has_news = True
        if unknown:
            _logger.warning(
                "%s: not refused, though the brokers do not give the topic's settings", name_topics(unknown)
            )
        for sentence in [*self._refusals(set(self.refused) - refused_before), *self.sentences(wanted)]:
            _logger.warning("%s", sentence)
        return has_news

    def sentences(self, topics: Iterable[str] | None = None) -> list[str]:
        """Return the distinct warnings about these topics (by default all), each with the topics that it concerns."""
        named = sorted(self.advice if topics is None else topics)
        concerned = _topics_of((sentence, topic) for topic in named for sentence in self.advice.get(topic, ()))
        return [f"{name_topics(names)}: {sentence}" for sentence, names in concerned.items()]

    def _refusals(self, topics: Iterable[str]) -> list[str]:
        """Return a sentence for each reason, with the topics that are refused for it."""
        refused = _topics_of((self.refused[topic], topic) for topic in sorted(topics))
        way = "to ship anyway, set uploader.force.topics="
        return [
            f"{name_topics(names)}: not shipped: {reason}; {way}{','.join(names[:_MOST_NAMED])}"
            for reason, names in refused.items()
        ]

    def forget(self) -> None:
        """Read all topics' settings again at the next :meth:`ask`. Known settings stay until then."""
        self._asked.clear()

    def _is_asked(self, topic: str, topic_id: Uuid | None) -> bool:
        return topic in self._asked and topic_id in (None, self._asked[topic])

    def _take(self, topic: str, settings: Mapping[str, str]) -> None:
        refused = None if topic in self._force else refusal(settings)
        if refused is None:
            self.refused.pop(topic, None)
        else:
            self.refused.setdefault(topic, refused)
        advice = warnings(settings, self._upload_timeout_ms, has_links=self._has_links)
        self.advice[topic] = () if refused is not None else tuple(advice)


def _topics_of(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the topics by sentence."""
    topics: dict[str, list[str]] = {}
    for sentence, topic in pairs:
        topics.setdefault(sentence, []).append(topic)
    return topics


def name_topics(topics: Sequence[str]) -> str:
    """Return a text that names the topics, at most ten of them."""
    if len(topics) == 1:
        return f"topic {topics[0]}"
    more = f" and {len(topics) - _MOST_NAMED} more" if len(topics) > _MOST_NAMED else ""
    return f"{len(topics)} topics ({', '.join(topics[:_MOST_NAMED])}{more})"
