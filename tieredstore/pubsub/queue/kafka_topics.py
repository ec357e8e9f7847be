"""Administration of a queue's Kafka topic: create, grow and truncate it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tieredstore.live.clients import LiveAdmin, await_answer
from tieredstore.live.faults import fault, translate_errors
from tieredstore.live.properties import client_configuration
from tieredstore.process.closing import Closing
from tieredstore.process.per_process import PerProcess

T = TypeVar("T")
_OF_CONSUMERS: Final = ("group.id", "check.crcs", "fetch.", "queued.", "isolation.level", "allow.auto.create.topics")


class TopicAdmin(Closing):
    """Admin requests for one topic, each with timeout ``timeout_s``."""

    def __init__(self, properties: Mapping[str, str], name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, self.configuration(properties)))

    @staticmethod
    def configuration(properties: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration for librdkafka clients that do not consume."""
        configuration = client_configuration(properties, "read_uncommitted")
        return {name: value for name, value in configuration.items() if not name.startswith(_OF_CONSUMERS)}

    def close(self) -> None:
        """Close the client."""
        self._clients.close()

    def provide(self, partitions: int) -> None:
        """Create the topic with the broker's defaults, or add partitions if the topic has fewer."""
        doing = f"cannot create topic {self._name}"
        topics = [NewTopic(self._name, partitions)]
        if self._has_done(doing, KafkaError.TOPIC_ALREADY_EXISTS, lambda client: client.create_topics(topics)):
            return
        with translate_errors(doing):
            listed = self._clients.get().list_topics(self._name, timeout=self._timeout_s).topics[self._name]
        if listed.error is None and len(listed.partitions) < partitions:
            more = [NewPartitions(self._name, partitions)]
            doing = f"cannot add partitions to topic {self._name} (to have {partitions})"
            self._has_done(doing, KafkaError.INVALID_PARTITIONS, lambda client: client.create_partitions(more))

    def delete_records(self, partition: int, offset: int) -> None:
        """Delete the records before ``offset``, like Kafka's retention. The partition then begins at ``offset``."""
        place = TopicPartition(self._name, partition, offset)
        doing = f"cannot delete records of {self._name}-{partition} before {offset}"
        self._has_done(doing, None, lambda client: client.delete_records([place]))

    def _has_done(
        self,
        doing: str,
        but_for: int | None,
        ask: Callable[[LiveAdmin], dict[str, Future[T]] | dict[TopicPartition, Future[T]]],
    ) -> bool:
        """Send a request. Return True on success, and False if the broker answers with the error code ``but_for``;
        raise other errors."""
        client = self._clients.get()
        (future,) = ask(client).values()

        def listen() -> None:
            # The client reports denied access by a callback, which runs only during a call of ``poll``.
            client.poll(0)
            if (final := client.trouble.final(doing)) is not None:
                raise final

        try:
            await_answer(client, future, time.monotonic() + self._timeout_s, listen)
        except KafkaException as error:
            if but_for is not None and error.args[0].code() == but_for:
                return False
            raise fault(error.args[0], doing) from error
        except TimeoutError as error:
            raise client.trouble.unavailable(doing, self._timeout_s) from error
        return True
