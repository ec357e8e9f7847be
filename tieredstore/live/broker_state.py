"""The current state of partitions at the brokers, for callers that ask every second. Each call returns or fails
soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, admin
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import BrokerUnavailableError, TieredStoreError
from tieredstore.live.clients import LiveAdmin, await_answer, check_configuration
from tieredstore.live.cluster import uuid_of
from tieredstore.live.faults import fault
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.model import TopicPartition, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.forks import PerProcess

_LEAST_S: Final = 0.1
"""The ends are requested with at least this timeout in seconds, even if the leaders took the whole time."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The end of a partition according to its leader: the next offset, and the leader epoch (-1 if unknown)."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """The cluster's id (None before Kafka 0.10.1), and the ids of its running brokers."""

    cluster_id: str | None
    brokers: frozenset[int]


class BrokerState(Closing):
    """Leaders, ends and settings of topics. Each call sends requests to the brokers and takes at most ``timeout_s``.

    Unlike :class:`~tieredstore.live.cluster.LiveCluster`, this class does not retry, because the caller calls again
    soon. ``properties`` have the names of Kafka's clients (``docs/how-to/read.md``). Thread-safe. Calls raise
    BrokerUnavailableError, BrokerDeniedError and BrokerError.
    """

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float = 10.0) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, "read_uncommitted")
        check_configuration(configuration)
        self._servers = configuration["bootstrap.servers"]
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, configuration))
        self._has_moved = False

    def leaders(self) -> dict[TopicPartition, int]:
        """Return the leader's broker id for each partition of the cluster, -1 for no leader. This takes one request."""
        doing = f"the leaders at {self._servers} cannot be looked up"
        listed = self._clients.get().metadata(self._timeout_s, doing)
        return {
            (name, number): partition.leader
            for name, topic in listed.topics.items()
            for number, partition in topic.partitions.items()
        }

    def members(self) -> ClusterMembers:
        """Return the cluster's id, and the ids of its running brokers. This takes one request."""
        doing = f"the cluster at {self._servers} cannot be looked up"
        listed = self._clients.get().metadata(self._timeout_s, doing)
        return ClusterMembers(listed.cluster_id, frozenset(listed.brokers))

    def ends(self, partitions: Iterable[TopicPartition], *, stable: bool) -> dict[TopicPartition, PartitionEnd]:
        """Return the high watermarks, or with ``stable`` the last stable offsets. The result omits partitions without
        a leader or an answer.

        The call sends requests for the leaders, see ``LiveAdmin.leader_errors``, and one to each leading broker.
        """
        client, places = self._clients.get(), list(partitions)
        if not places:
            return {}
        end = time.monotonic() + self._timeout_s
        leaderless = client.leader_errors(places, self._timeout_s, f"ends at {self._servers} cannot be looked up")
        wanted = {KafkaPartition(*where): admin.OffsetSpec.latest() for where in places if where not in leaderless}
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        left_s = max(_LEAST_S, end - time.monotonic())
        futures = client.list_offsets(wanted, isolation_level=level, request_timeout=left_s) if wanted else {}
        by_place = {(place.topic, place.partition): future for place, future in futures.items()}
        answers = self._answers(client, by_place)
        ends = {
            where: PartitionEnd(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch)
            for where, answer in answers.items()
            # Leave out negative offsets. If a dead leader does not answer in time, the library returns a negative
            # offset instead of an error.
            if answer.offset >= 0
        }
        # Only set the flag here, never clear it, because another thread may have set it. ``_look_anew`` clears it.
        if len(ends) < len(places):
            self._has_moved = True
        if not ends:
            error = next(iter(leaderless.values()), None)
            why = "" if error is None else f": {error.str()}"
            raise BrokerUnavailableError(
                f"{self._servers}: no leader of {len(places)} partitions returned an end offset{why}"
            )
        return ends

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the effective settings of each topic, including the cluster's and Kafka's defaults.

        The call sends one request to the controller, and one more if a broker has not answered an earlier call.
        """
        client = self._clients.get()
        self._look_anew()
        wanted = [admin.ConfigResource(admin.ResourceType.TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        futures = client.describe_configs(wanted, request_timeout=self._timeout_s)
        answers = self._answers(client, {resource.name: future for resource, future in futures.items()})
        return {
            topic: {name: entry.value for name, entry in answer.items() if entry.value is not None}
            for topic, answer in answers.items()
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, Uuid | None]:
        """Return the id of each topic: None if the topic does not exist, zero if the broker is too old for topic ids.

        The result omits topics without an answer. The call sends one request.
        """
        client = self._clients.get()
        self._look_anew()
        wanted = list(topics)
        if not wanted:
            return {}
        futures = client.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        absent: set[str] = set()
        answers = self._answers(client, futures, absent)
        return dict.fromkeys(absent) | {name: uuid_of(answer.topic_id) for name, answer in answers.items()}

    def look_anew(self) -> None:
        """Make the next call look up the leaders first. Call this if leaders have changed, because known brokers may be
        dead."""
        self._has_moved = True

    def _look_anew(self) -> None:
        """Look up leaders and the controller if a broker has not answered an earlier call.

        Without a look-up, librdkafka asks the same brokers for minutes, even if they refuse requests or are dead.
        """
        if self._has_moved:
            self._has_moved = False
            try:
                self.leaders()
            except TieredStoreError:
                self._has_moved = True
                raise

    def _answers(
        self, client: LiveAdmin, futures: Mapping[Asked, Future[Answer]], absent: set[Asked] | None = None
    ) -> dict[Asked, Answer]:
        """Return the answers that arrived in time; raise an error if none arrived. If ``absent`` is given, add the
        unknown topics to it.
        """
        end = time.monotonic() + self._timeout_s + 1.0
        answers: dict[Asked, Answer] = {}
        failure: TieredStoreError | None = None
        for what, future in futures.items():
            doing = f"{self._servers} returned nothing about {what}"
            try:
                answers[what] = await_answer(client, future, end, partial(client.listen, doing))
            except TimeoutError:
                failure = failure or BrokerUnavailableError(f"{doing}: no answer within {self._timeout_s:g} s")
            except KafkaException as error:
                if absent is not None and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    absent.add(what)
                else:
                    client.listen(doing)
                    failure = failure or fault(error.args[0], doing)
        if failure is not None and not answers and not absent:
            self._has_moved = True
            raise failure
        client.hear()
        return answers

    def close(self) -> None:
        """Close this process's client. The next call creates a new client."""
        self._clients.close()
