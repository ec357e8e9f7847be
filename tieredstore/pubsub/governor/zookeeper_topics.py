"""Topics that have a node in ZooKeeper, with MemQ's JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from tieredstore.errors import ConfigError, CorruptData, ResourceNotFound
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.pubsub.governor.directory import KnownTopic, TopicSource
from tieredstore.pubsub.governor.zookeeper_nodes import load_of, packet_text, parse_object
from tieredstore.pubsub.queue.memq_topics import configured_topics, parse_topic_config
from tieredstore.pubsub.queue.topics import Topics

TOPICS: Final = "/topics"
_MOST_PROPERTIES: Final = 1000
_logger: Final = logging.getLogger(__name__)


class ZooKeeperTopics(TopicSource):
    """The nodes below ``/topics``, read by a session of its own: topics are looked up while others tick."""

    def __init__(self, session: ZooKeeperSession, topics: Topics) -> None:
        self._session = session
        self._topics = topics
        self._complaints: dict[str, str] = {}

    def all(self) -> Iterable[KnownTopic]:
        """Each that can be read; others are a line in the log."""
        self._session.provide(TOPICS)
        nodes = self._session.get_all([f"{TOPICS}/{name}" for name in self._session.children(TOPICS)])
        known = (self._known(path, raw) for path, (raw, _) in nodes.items())
        return [topic for topic in known if topic is not None]

    def get(self, name: str) -> KnownTopic | None:
        """The one of that name."""
        if not name or "/" in name or name in {".", ".."} or not name.isprintable():
            return None
        try:
            raw, _ = self._session.get(f"{TOPICS}/{name}")
        except ResourceNotFound:
            return None
        return self._known(f"{TOPICS}/{name}", raw)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _known(self, path: str, raw: bytes) -> KnownTopic | None:
        name = path.rpartition("/")[2]
        try:
            document = parse_object(raw, path)
            load = load_of(document, packet_text(name, path), path)
            handler = document.get("storageHandlerName") or document.get("outputHandler") or ""
            properties: object = document.get("storageHandlerConfig") or document.get("outputHandlerConfig")
            known = KnownTopic(load, packet_text(handler, path), _texts(properties, path), document=document)
        except CorruptData as error:
            self._complain(path, str(error))
            return None
        try:
            config = parse_topic_config(raw, path, Path.cwd())
            topics = configured_topics(self._topics.store, self._topics.settings, config)
        except ConfigError as error:
            # MemQ's brokers may have it all the same.
            self._complain(path, f"this broker cannot store it: {error}")
            return known
        self._complaints.pop(path, None)
        return KnownTopic(load, known.handler, known.properties, config.topic, topics, document)

    def _complain(self, path: str, why: str) -> None:
        """Once for each reason, though topics are read every ten seconds."""
        if self._complaints.get(path) != why:
            self._complaints[path] = why
            _logger.warning("%s in ZooKeeper: %s", path, why)


def _texts(properties: object, path: str) -> tuple[tuple[str, str], ...]:
    """The handler's properties as clients are told of them."""
    if not isinstance(properties, dict):
        return ()
    given = cast("Mapping[str, Any]", properties)
    if len(given) > _MOST_PROPERTIES:
        raise CorruptData(f"{path}: its storage handler has {len(given)} properties")
    return tuple(
        (packet_text(name, path), packet_text(str(value).lower() if isinstance(value, bool) else str(value), path))
        for name, value in given.items()
        if value is not None
    )
