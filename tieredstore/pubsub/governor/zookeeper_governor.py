"""A governor elected through ZooKeeper. It uses the same nodes as MemQ, so that brokers of MemQ and of this project can
share a cluster, and either kind can govern.

::

    /brokers/<ip>                        ephemeral: a broker and its assigned topics (zookeeper_nodes)
    /topics/<topic>                      a topic's JSON
    /governor                            the governing broker's address
    /governor/_c_<uuid>-lock-<number>    ephemeral: a candidate; the least number governs, as in Curator

The candidate with the least number governs until its node disappears, because numbers only grow. The governing broker
writes only by transactions that check that its own node exists. A delayed write of an earlier governor therefore fails.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tieredstore.errors import ConfigError, CorruptDataError, FencedError, ResourceNotFoundError
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import AssignmentStrategy, BrokerSeat
from tieredstore.pubsub.governor.directory import Governor, KnownTopic
from tieredstore.pubsub.governor.zookeeper_nodes import (
    BrokerNode,
    assignment_document,
    own_node_body,
    parse_broker_node,
)

BROKERS: Final = "/brokers"
GOVERNOR: Final = "/governor"
_LOCK: Final = "lock-"
_logger: Final = logging.getLogger(__name__)

Nodes = Mapping[str, BrokerNode]
"""Living brokers by the names of their nodes."""


class ZooKeeperGovernor(Governor):
    """One broker's part in the election. If the broker is elected, it governs. The name of a broker's node is the
    broker's IP address, so a cluster has one broker per address.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        seat: Callable[[], BrokerSeat],
        topics: Callable[[], Sequence[KnownTopic]],
        strategy: AssignmentStrategy,
    ) -> None:
        """Each tick calls ``seat`` and ``topics``."""
        self._session = session
        self._seat = seat
        self._topics = topics
        self._strategy = strategy
        self._candidate = f"_c_{uuid.uuid4()}-{_LOCK}"
        self._nodes: Nodes = {}
        self._own: Mapping[str, Mapping[str, object]] = {}

    # --- answers to the broker, on its loop ---

    def serves(self, topic: str) -> bool:
        """Return True if the assignments that were read last give the topic to this broker."""
        return topic in self._own

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Return the brokers, of MemQ and of this project, to which clients write the topic's Messages."""
        own = self._seat().address.ip
        return tuple(
            node.seat.address
            for name, node in sorted(self._nodes.items())
            if node.writes and topic in node.assigned and (name != own or topic in self._own)
        )

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Return all brokers of this project that serve reads, and the brokers of MemQ to which the topic is
        assigned.
        """
        return tuple(
            node.seat.address
            for _, node in sorted(self._nodes.items())
            if node.seat.serves_reads and (node.is_own_kind or topic in node.assigned)
        )

    # --- on a separate thread ---

    def tick(self) -> None:
        """Create this broker's node if missing. Assign topics if this broker is elected. Then read the assignments."""
        for path in (BROKERS, GOVERNOR):
            self._session.provide(path)
        seat = self._seat()
        self._keep_own_node(seat)
        candidate = self._find_leader(seat)
        nodes = self._read_nodes()
        if candidate is not None:
            try:
                if self._govern(nodes, candidate):
                    nodes = self._read_nodes()
            except FencedError:
                self.generation = None
                _logger.info("%s no longer governs: its session ended", seat.name)
        self._nodes = nodes
        own = nodes.get(seat.address.ip)
        if own is not None:
            self._own = own.assigned

    def leave(self) -> bool:
        """Delete this broker's nodes. The next tick of the governing broker then gives this broker's topics to other
        brokers.
        """
        self.generation = None
        own = self._seat().address.ip
        for path in (
            f"{BROKERS}/{own}",
            *(f"{GOVERNOR}/{name}" for name in self._session.children(GOVERNOR) if name.startswith(self._candidate)),
        ):
            with contextlib.suppress(ResourceNotFoundError):
                if self._session.get(path)[1].ephemeralOwner == self._session.id:
                    self._session.delete(path)
        return any(node.writes for name, node in self._nodes.items() if name != own)

    def follow(self) -> None:
        """Read the assignments. A topic stays at this broker until another broker's node has it."""
        nodes = {name: node for name, node in self._read_nodes().items() if name != self._seat().address.ip}
        taken = {topic for node in nodes.values() if node.writes for topic in node.assigned}
        self._nodes = nodes | {name: node for name, node in self._nodes.items() if name == self._seat().address.ip}
        self._own = {topic: document for topic, document in self._own.items() if topic not in taken}

    def close(self) -> None:
        """End the session, and with it this broker's remaining nodes."""
        self._session.close()

    def _keep_own_node(self, seat: BrokerSeat) -> None:
        """If the session of this broker's node has ended, create the node again, with the broker's assignments."""
        path = f"{BROKERS}/{seat.address.ip}"
        try:
            raw, stat = self._session.get(path)
        except ResourceNotFoundError:
            pass
        else:
            if stat.ephemeralOwner == self._session.id:
                return
            self._check_own(raw, path, seat)
            self._session.delete(path)
        body = own_node_body(seat, self._own.values())
        try:
            self._session.create(path, body, ephemeral=True)
        except self._session.errors.NodeExistsError:
            _logger.info("%s: another session has just created this node", path)

    def _check_own(self, raw: bytes, path: str, seat: BrokerSeat) -> None:
        """Raise ConfigError if a node belongs to another broker at the same address. A node of an earlier session of
        this broker is no error."""
        try:
            address = parse_broker_node(raw, path).seat.address
        except CorruptDataError as error:
            _logger.warning("%s; replacing it", error)
            return
        if address.port != seat.address.port:
            raise ConfigError(
                f"another broker has the node {path}, with port {address.port}: in ZooKeeper each broker of a cluster "
                "needs a different address (pubsub.broker.advertised)"
            )

    def _find_leader(self, seat: BrokerSeat) -> str | None:
        """Return the path of this broker's candidate node if it governs; create the node if missing."""
        if not any(name.startswith(self._candidate) for name in self._session.children(GOVERNOR)):
            data = seat.address.ip.encode()
            self._session.create(f"{GOVERNOR}/{self._candidate}", data, ephemeral=True, sequence=True)
        # Order all children as Curator does: by the text after the last "lock-".
        first = min(self._session.children(GOVERNOR), key=lambda name: name.rpartition(_LOCK)[2])
        if not first.startswith(self._candidate):
            self.generation = None
            return None
        path = f"{GOVERNOR}/{first}"
        if self.generation is None:
            try:
                self.generation = int(self._session.get(path)[1].czxid)
                self._session.set_if(path, GOVERNOR, seat.address.ip.encode())
            except ResourceNotFoundError:
                self.generation = None
                return None
            _logger.info("%s governs in generation %d", seat.name, self.generation)
        return path

    def _read_nodes(self) -> dict[str, BrokerNode]:
        paths = [f"{BROKERS}/{name}" for name in self._session.children(BROKERS)]
        nodes: dict[str, BrokerNode] = {}
        for path, (raw, stat) in self._session.get_all(paths).items():
            try:
                node = parse_broker_node(raw, path, stat.version)
            except CorruptDataError as error:
                _logger.warning("%s; skipping it", error)
                continue
            nodes[node.seat.name] = node
        return nodes

    # --- governing ---

    def _govern(self, nodes: Nodes, candidate: str) -> bool:
        """Assign topics, and write changed nodes. Return True if any were written. Raise FencedError if another
        broker governs now.
        """
        topics = {known.name: known for known in self._topics()}
        assigned = self._assign(topics, nodes)
        changed = False
        for name, node in nodes.items():
            mine = {topic: holders[name] for topic, holders in assigned.items() if name in holders}
            documents = [
                assignment_document(
                    _document(topics[topic]), topics[topic].load.input_mb / max(1, len(assigned[topic])), since
                )
                for topic, since in sorted(mine.items())
            ]
            if node.writes and documents != [node.assigned[topic] for topic in sorted(node.assigned)]:
                changed = True
                self._write(candidate, name, node.body_with(documents), node.version)
        if changed:
            _logger.info("assigned %d topics to %d brokers", len(topics), len(nodes))
        return changed

    def _write(self, candidate: str, name: str, body: bytes, version: int) -> None:
        try:
            if not self._session.set_if(candidate, f"{BROKERS}/{name}", body, version):
                _logger.info("the node of broker %s has just changed: retrying at the next tick", name)
        except ResourceNotFoundError as error:
            raise FencedError(f"another broker governs now: {candidate} is gone") from error

    def _assign(self, topics: Mapping[str, KnownTopic], nodes: Nodes) -> dict[str, dict[str, int]]:
        """Return the brokers of each topic, chosen by the strategy.

        MemQ's brokers cannot store topics without a node in ZooKeeper, and this project's brokers cannot reach the
        storage of some of MemQ's topics. So first assign the topics that both kinds of brokers can store (most topics),
        then the topics that only one kind can store.
        """
        writing = {name: node for name, node in nodes.items() if node.writes}
        free = {name: float(node.seat.capacity_mb) for name, node in writing.items()}
        both = {name for name, known in topics.items() if known.document is not None and known.stored is not None}
        own = {name for name, known in topics.items() if known.document is None}
        theirs = topics.keys() - both - own
        now_ms = time.time_ns() // 1_000_000
        assigned: dict[str, dict[str, int]] = {}
        for names, brokers in (
            (both, list(writing)),
            (own, [name for name, node in writing.items() if node.is_own_kind]),
            (theirs, [name for name, node in writing.items() if not node.is_own_kind]),
        ):
            current = {
                topic: {name: node.since(topic) for name, node in writing.items() if topic in node.assigned}
                for topic in names
            }
            seats = [replace(writing[name].seat, name=name, capacity_mb=int(free[name])) for name in brokers]
            decided = self._strategy.assign([topics[name].load for name in names], seats, current, now_ms)
            for topic, holders in decided.items():
                assigned[topic] = {name: since for name, since in holders.items() if name in writing}
                for name in assigned[topic]:
                    free[name] -= topics[topic].load.input_mb / len(assigned[topic])
        return assigned


def _document(known: KnownTopic) -> Mapping[str, object]:
    """Return MemQ's JSON of a topic. For a topic that has no node in ZooKeeper, build only the fields that clients
    get."""
    if known.document is not None:
        return known.document
    return {
        "topic": known.name, "storageHandlerName": known.handler, "storageHandlerConfig": dict(known.properties),
        "batchSizeBytes": known.load.batch_bytes,
    }  # fmt: skip
