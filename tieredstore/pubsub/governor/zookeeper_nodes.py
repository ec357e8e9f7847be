"""MemQ's nodes in ZooKeeper: the JSON of brokers and topics.

::

    /brokers/<ip>    {"brokerIP", "brokerPort", "instanceType", "locality", "brokerType", "totalNetworkCapacity",
                      "assignedTopics": [{…the topic's JSON, "assignmentTimestamp", "assignmentInputTrafficMB"}]}
    /topics/<topic>  the topic's JSON

A governor that writes an assignment keeps unknown fields of the node.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from tieredstore.errors import ConfigError, CorruptDataError, ResourceNotFoundError
from tieredstore.limits import MAX_INT16
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.process.log_once import LogOnce
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import BrokerSeat, TopicLoad
from tieredstore.pubsub.governor.directory import KnownTopic, TopicSource
from tieredstore.pubsub.queue.memq_topics import open_configured_topics, parse_topic_config
from tieredstore.pubsub.queue.topics import Topics

OWN_TYPE: Final = "tieredstore"
"""``instanceType`` of this project's brokers. MemQ's governor leaves it unchanged."""

_MEMQ_CAPACITY_MB: Final = 200
_BATCH_BYTES: Final = 100 << 20
_MIB: Final = 1 << 20
_READS: Final = frozenset({"READ", "READ_WRITE"})
_WRITES: Final = frozenset({"WRITE", "READ_WRITE"})


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker's node. ``assigned`` holds the JSON of its topics by name, ``version`` the node's version in
    ZooKeeper.
    """

    seat: BrokerSeat
    assigned: Mapping[str, Mapping[str, object]]
    document: Mapping[str, object]
    version: int = 0

    @property
    def is_own_kind(self) -> bool:
        """True for a broker of this project."""
        return self.document.get("instanceType") == OWN_TYPE

    @property
    def writes(self) -> bool:
        """True if the broker takes Messages."""
        return self.document.get("brokerType", "WRITE") in _WRITES

    def since(self, topic: str) -> int:
        """Return the time when the broker got a topic, in ms of the governor's clock."""
        since = self.assigned[topic].get("assignmentTimestamp")
        return since if isinstance(since, int) else 0

    def body_with(self, assigned: Iterable[Mapping[str, object]]) -> bytes:
        """Return the node's JSON with these topics assigned."""
        return _body({**self.document, "assignedTopics": list(assigned)})


def own_node_body(seat: BrokerSeat, assigned: Iterable[Mapping[str, object]]) -> bytes:
    """Return the JSON of a broker of this project, with these topics assigned."""
    address = seat.address
    return _body({
        "brokerIP": address.ip, "brokerPort": address.port, "instanceType": OWN_TYPE, "locality": address.locality,
        "assignedTopics": list(assigned), "totalNetworkCapacity": seat.capacity_mb,
        "brokerType": "READ_WRITE" if seat.serves_reads else "WRITE",
    })  # fmt: skip


def parse_broker_node(raw: bytes, path: str, version: int = 0) -> BrokerNode:
    """Parse a broker's node. Raise CorruptDataError if it is invalid."""
    document = parse_object(raw, path)
    ip, port, locality = document.get("brokerIP"), document.get("brokerPort"), document.get("locality") or ""
    # Packets give the port to clients as a signed 16-bit number, so check its range.
    if not ip or type(port) is not int or not -MAX_INT16 - 1 <= port <= MAX_INT16:
        raise CorruptDataError(f"{path} is not a valid broker node: it has no address")
    ip, locality = packet_text(ip, path), packet_text(locality, path)
    capacity = document.get("totalNetworkCapacity")
    # A MemQ broker does not state its capacity, so use MemQ's fixed number.
    capacity_mb = capacity if type(capacity) is int and capacity > 0 else _MEMQ_CAPACITY_MB
    assigned: dict[str, Mapping[str, object]] = {}
    topics: object = document.get("assignedTopics") or ()
    if not isinstance(topics, list | tuple):
        raise CorruptDataError(f"{path} is not a valid broker node: its topics are not a list")
    for topic in cast("Sequence[object]", topics):
        name = cast("dict[str, object]", topic).get("topic") if isinstance(topic, dict) else None
        if not isinstance(name, str):
            raise CorruptDataError(f"{path} is not a valid broker node: one of its topics has no name")
        assigned[name] = cast("dict[str, object]", topic)
    address = BrokerAddress(locality, ip, port)
    seat = BrokerSeat(path.rpartition("/")[2], address, capacity_mb, document.get("brokerType") in _READS)
    return BrokerNode(seat, assigned, document, version)


def parse_object(raw: bytes, path: str) -> dict[str, object]:
    """Return the JSON object of a node. Raise CorruptDataError for anything else."""
    try:
        document: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{path} is not JSON") from error
    if not isinstance(document, dict):
        raise CorruptDataError(f"{path} is not a JSON object")
    return cast("dict[str, object]", document)


def packet_text(value: object, path: str) -> str:
    """Return ``value`` if it is a text that fits a packet. Raise CorruptDataError otherwise."""
    try:
        if isinstance(value, str) and len(value.encode()) <= MAX_INT16:
            return value
    except UnicodeEncodeError:
        pass
    raise CorruptDataError(f"{path}: {value!r:.60} is not a text of at most {MAX_INT16} bytes, as MemQ's packets need")


def load_of(document: Mapping[str, object], topic: str, path: str) -> TopicLoad:
    """Return a topic's load from its JSON, with MemQ's defaults.

    Raise CorruptDataError if the JSON belongs to another topic, or has invalid numbers."""
    if document.get("topic") != topic:
        raise CorruptDataError(f"{path} names the topic {document.get('topic')!r:.80}, but belongs to {topic}")
    batch_bytes = _amount(document, "batchSizeBytes", 0, path) or _amount(document, "batchSizeMB", 0, path) * _MIB
    multiplier = _amount(document, "clusteringMultiplier", 3, path)
    if batch_bytes < 0 or multiplier <= 0:
        raise CorruptDataError(
            f"{path}: the size of batches ({batch_bytes:g} bytes) or clusteringMultiplier ({multiplier:g}) is too small"
        )
    traffic = max(0.0, _amount(document, "inputTrafficMB", 0, path))
    return TopicLoad(topic, int(batch_bytes) or _BATCH_BYTES, traffic, multiplier)


def assignment_document(topic: Mapping[str, object], share_mb: float, since_ms: int) -> dict[str, object]:
    """Return a topic's JSON, as stored in the node of a broker that has the topic."""
    return {**topic, "assignmentTimestamp": since_ms, "assignmentInputTrafficMB": share_mb}


def _amount(document: Mapping[str, object], name: str, default: float, path: str) -> float:
    value = document.get(name)
    if value is None:
        return default
    try:
        amount = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        amount = None
    if amount is None or not abs(amount) < 1e18:
        raise CorruptDataError(f"{path}: {name} is {value!r:.60}, expected a number")
    return amount


def _body(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


TOPICS: Final = "/topics"
_MOST_PROPERTIES: Final = 1000
_logger: Final = logging.getLogger(__name__)


class ZooKeeperTopics(TopicSource):
    """The topics below ``/topics``. They have a separate ZooKeeper session, so that look-ups can run during the
    governor's ticks.
    """

    def __init__(self, session: ZooKeeperSession, topics: Topics) -> None:
        self._session = session
        self._topics = topics
        self._once = LogOnce(_logger)

    def all(self) -> Iterable[KnownTopic]:
        """Return all valid topics; log why a topic is invalid."""
        self._session.provide(TOPICS)
        nodes = self._session.get_all([f"{TOPICS}/{name}" for name in self._session.children(TOPICS)])
        known = (self._describe(path, raw) for path, (raw, _) in nodes.items())
        return [topic for topic in known if topic is not None]

    def get(self, name: str) -> KnownTopic | None:
        """Return the topic of this name."""
        if not name or "/" in name or name in {".", ".."} or not name.isprintable():
            return None
        try:
            raw, _ = self._session.get(f"{TOPICS}/{name}")
        except ResourceNotFoundError:
            return None
        return self._describe(f"{TOPICS}/{name}", raw)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _describe(self, path: str, raw: bytes) -> KnownTopic | None:
        name = path.rpartition("/")[2]
        try:
            document = parse_object(raw, path)
            load = load_of(document, packet_text(name, path), path)
            handler = document.get("storageHandlerName") or document.get("outputHandler") or ""
            properties: object = document.get("storageHandlerConfig") or document.get("outputHandlerConfig")
            known = KnownTopic(load, packet_text(handler, path), _texts(properties, path), document=document)
        except CorruptDataError as error:
            self._once.warn(f"{path} in ZooKeeper: {error}")
            return None
        try:
            config = parse_topic_config(raw, path, Path.cwd())
            topics = open_configured_topics(self._topics.store, self._topics.settings, config)
        except ConfigError as error:
            # Only log a warning, because MemQ's brokers may be able to store the topic.
            self._once.warn(f"{path} in ZooKeeper: this broker cannot store the topic: {error}")
            return known
        return replace(known, stored=(topics, config.topic))


def _texts(properties: object, path: str) -> tuple[tuple[str, str], ...]:
    """Return the properties of a topic's storage handler as pairs of texts, for metadata answers to clients."""
    if not isinstance(properties, dict):
        return ()
    given = cast("Mapping[str, object]", properties)
    if len(given) > _MOST_PROPERTIES:
        raise CorruptDataError(
            f"{path}: its storage handler has {len(given)} properties; at most {_MOST_PROPERTIES} are allowed"
        )
    return tuple(
        (packet_text(name, path), packet_text(str(value).lower() if isinstance(value, bool) else str(value), path))
        for name, value in given.items()
        if value is not None
    )
