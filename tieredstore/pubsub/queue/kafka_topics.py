"""The Kafka topic of a queue: made, grown and cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tieredstore.live.clients import LiveAdmin, await_answer
from tieredstore.live.faults import fault, translate_errors
from tieredstore.live.properties import client_configuration
from tieredstore.process.closing import Closing
from tieredstore.process.per_process import PerProcess

_OF_CONSUMERS: Final = ("group.id", "check.crcs", "fetch.", "queued.", "isolation.level", "allow.auto.create.topics")


class TopicAdmin(Closing):
    """What is done to one topic, each by a request that takes ``timeout_s`` at most."""

    def __init__(self, properties: Mapping[str, str], name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, self.configuration(properties)), _forget)

    @staticmethod
    def configuration(properties: Mapping[str, str]) -> dict[str, str]:
        """What librdkafka's clients that read nothing are given."""
        configuration = client_configuration(properties, "read_uncommitted")
        return {name: value for name, value in configuration.items() if not name.startswith(_OF_CONSUMERS)}

    def close(self) -> None:
        """Let the client go."""
        self._clients.close()

    def provide(self, partitions: int) -> None:
        """Make the topic, with the broker's own settings, or give it so many partitions if it has fewer."""
        doing = f"the topic {self._name} cannot be made"
        topics = [NewTopic(self._name, partitions)]
        if self._has_done(doing, KafkaError.TOPIC_ALREADY_EXISTS, lambda client: client.create_topics(topics)):
            return
        with translate_errors(doing):
            listed = self._clients.get().list_topics(self._name, timeout=self._timeout_s).topics[self._name]
        if listed.error is None and len(listed.partitions) < partitions:
            more = [NewPartitions(self._name, partitions)]
            doing = f"the topic {self._name} cannot have {partitions} partitions"
            self._has_done(doing, KafkaError.INVALID_PARTITIONS, lambda client: client.create_partitions(more))

    def delete_records(self, partition: int, offset: int) -> None:
        """What Kafka's retention does: the partition begins at ``offset`` afterwards."""
        place = TopicPartition(self._name, partition, offset)
        doing = f"records of {self._name}-{partition} before {offset} cannot be deleted"
        self._has_done(doing, None, lambda client: client.delete_records([place]))

    def _has_done(self, doing: str, but_for: int | None, ask: Callable[[Any], dict[Any, Any]]) -> bool:
        """True when it is done; False if the broker answers with the code ``but_for``."""
        client = self._clients.get()
        (future,) = ask(client).values()

        def listen() -> None:
            # A client that is denied says so by its callback, which runs only while it is polled.
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


def _forget(client: LiveAdmin) -> None:
    """It ends with its last reference."""
    del client
