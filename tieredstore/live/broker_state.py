"""What the brokers say of partitions at this moment, for whoever asks again and again: one answer, or an error soon."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, admin
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import BrokerUnavailableError, TieredStoreError
from tieredstore.live.clients import LiveAdmin, await_answer, check_configuration
from tieredstore.live.cluster import uuid_of
from tieredstore.live.faults import fault
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.model import TopicPartition, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.per_process import PerProcess

# The library leaves the types of these open.
_admin: Final[Any] = admin
_TOPIC: Final = _admin.ResourceType.TOPIC


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """Where a partition ends, as its leader says: behind that offset, in this epoch (-1 if it does not tell)."""

    offset: int
    leader_epoch: int


class BrokerState(Closing):
    """Leaders, ends and settings of topics, each asked for anew, by a call that takes ``timeout_s`` at most.

    Unlike a :class:`~tieredstore.live.cluster.LiveCluster` nothing is asked twice: what fails is asked for again by a
    caller who comes every second anyway. ``properties`` have the names of Kafka's clients (``docs/how-to/read.md``).
    Thread-safe. Raises BrokerUnavailableError, BrokerDeniedError and BrokerError.
    """

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float = 10.0) -> None:
        """ConfigError for properties that cannot be used; nothing is connected to yet."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, "read_uncommitted")
        check_configuration(configuration)
        self._servers = configuration["bootstrap.servers"]
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, configuration))
        self._has_moved = False

    def leaders(self) -> dict[TopicPartition, int]:
        """The id of the broker that leads each partition of the cluster; -1 where none does. One request."""
        client, doing = self._clients.get(), f"the leaders at {self._servers} cannot be looked up"
        try:
            listed = client.metadata(self._timeout_s, doing)
        except KafkaException as error:
            raise fault(error.args[0], doing) from error
        return {
            (name, number): partition.leader
            for name, topic in listed.topics.items()
            for number, partition in topic.partitions.items()
        }

    def ends(self, partitions: Iterable[TopicPartition], *, stable: bool) -> dict[TopicPartition, PartitionEnd]:
        """The high watermarks, or with ``stable`` the last stable offsets; what was not answered is left out.

        A request for each broker that leads one of the partitions; one more where an answer was missing before.
        """
        client: Any = self._clients.get()
        self._look_anew()
        wanted = {KafkaPartition(*where): _admin.OffsetSpec.latest() for where in partitions}
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        futures = client.list_offsets(wanted, isolation_level=level, request_timeout=self._timeout_s)
        by_place = {(place.topic, place.partition): future for place, future in futures.items()}
        answers = self._answers(client, by_place)
        ends = {
            where: PartitionEnd(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch)
            for where, answer in answers.items()
            # Of one whose broker is dead the library gives an invalid offset after the time-out, and no error.
            if answer.offset >= 0
        }
        # Never unsaid here: another thread's answers may have been missing meanwhile.
        if len(ends) < len(by_place):
            self._has_moved = True
        if not ends:
            raise BrokerUnavailableError(
                f"{self._servers}: no leader of {len(by_place)} partitions tells where they end"
            )
        return ends

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings in force of each topic, those of the cluster and Kafka's own included.

        One request to the controller; one more where an answer was missing before.
        """
        client: Any = self._clients.get()
        self._look_anew()
        wanted = [_admin.ConfigResource(_TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        futures = client.describe_configs(wanted, request_timeout=self._timeout_s)
        answers = self._answers(client, {resource.name: future for resource, future in futures.items()})
        return {
            topic: {name: entry.value for name, entry in answer.items() if entry.value is not None}
            for topic, answer in answers.items()
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, Uuid | None]:
        """Return the id of each topic, None if the broker knows none of that name; zero where topics have no ids.

        What was not answered is left out. One request.
        """
        client: Any = self._clients.get()
        self._look_anew()
        wanted = list(topics)
        if not wanted:
            return {}
        futures = client.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        answers = self._answers(client, futures, absent_too=True)
        return {name: None if answer is None else uuid_of(answer.topic_id) for name, answer in answers.items()}

    def look_anew(self) -> None:
        """Who leads has changed: the next question begins with who does, and none goes to a leader that may be dead."""
        self._has_moved = True

    def _look_anew(self) -> None:
        """Ask who leads, and which broker is the controller, where an answer was missing before.

        The library goes on asking those that it knows for minutes, whatever they answer, and if they are dead.
        """
        if self._has_moved:
            self._has_moved = False
            try:
                self.leaders()
            except TieredStoreError:
                self._has_moved = True
                raise

    def _answers(
        self, client: LiveAdmin, futures: Mapping[Any, Future[Any]], *, absent_too: bool = False
    ) -> dict[Any, Any]:
        """What came in time; if nothing did, the error. What there is not is None if ``absent_too``."""
        end = time.monotonic() + self._timeout_s + 1.0
        answers: dict[Any, Any] = {}
        failure: TieredStoreError | None = None
        for what, future in futures.items():
            doing = f"{self._servers} does not tell of {what}"
            try:
                answers[what] = await_answer(client, future, end, partial(client.listen, doing))
            except TimeoutError:
                failure = failure or BrokerUnavailableError(f"{doing}: no answer for {self._timeout_s:g} s")
            except KafkaException as error:
                if absent_too and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    answers[what] = None
                else:
                    client.listen(doing)
                    failure = failure or fault(error.args[0], doing)
        if failure is not None and not answers:
            self._has_moved = True
            raise failure
        client.hear()
        return answers

    def close(self) -> None:
        """Let this process's client go; it is made again when it is needed."""
        self._clients.close()
