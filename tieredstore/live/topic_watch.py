"""Why nothing comes of a topic: of itself librdkafka tells neither that there is none, nor that one may not read it.

It asks for the metadata again and again, and keeps what the brokers answer to itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.errors import BrokerUnavailableError, ResourceNotFoundError, TieredStoreError
from tieredstore.live.clients import LiveAdmin, LiveConsumer
from tieredstore.live.faults import fault, kind_of, unknown_s
from tieredstore.model import TopicPartition

_FIRST_S: Final = 0.5
"""How long nothing comes before the brokers are asked: a log may be waited for that does not grow."""
_MOST_S: Final = 5.0
_LOOK_S: Final = 1.0
"""How long an answer is waited for; meanwhile nothing is given of what else comes."""


class TopicWatch:
    """Asks the brokers now and then about partitions of which nothing comes. For the thread of its client."""

    def __init__(self, client: LiveConsumer | LiveAdmin, timeout_s: float) -> None:
        self._client = client
        self._unknown_s = unknown_s(timeout_s)
        self._first_s = min(_FIRST_S, self._unknown_s / 4)
        self._look_s = min(_LOOK_S, timeout_s)
        self._absent_since: dict[TopicPartition, float] = {}
        self.begin()

    def begin(self) -> None:
        """Something has come: it is looked again only after a while without."""
        self._pause_s = self._first_s
        self._look_at = time.monotonic() + self._first_s
        self._absent_since.clear()

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self._look_at

    def faults(self, topic: str, partitions: Iterable[int], doing: str) -> dict[int, TieredStoreError]:
        """What keeps these partitions from being read and does not pass, by their numbers. One request.

        What is not there counts only after a while, as the brokers may not know of it yet. What passes is noted as the
        client's trouble.
        """
        errors = self.errors(topic, partitions)
        now = time.monotonic()
        faults: dict[int, TieredStoreError] = {}
        is_waited_for = False
        for number, error in errors.items():
            kind = kind_of(error)
            if kind is ResourceNotFoundError:
                since = self._absent_since.setdefault((topic, number), now)
                if now < since + self._unknown_s:
                    is_waited_for = True
                    continue
            if kind is BrokerUnavailableError:
                # As that a partition has no leader: it tells why nothing came, once the time is over.
                self._client.trouble.note(error)
            else:
                faults[number] = fault(error, doing)
        self._pause_s = self._first_s if is_waited_for else min(2 * self._pause_s, _MOST_S)
        self._look_at = now + self._pause_s
        return faults

    def errors(self, topic: str, partitions: Iterable[int]) -> dict[int, KafkaError]:
        """What the brokers say of these partitions, of those that have an error. One request."""
        try:
            listed = self._client.list_topics(topic, timeout=self._look_s).topics.get(topic)
        except KafkaException as raised:
            failure: KafkaError = raised.args[0]
            # What the client says of its connections tells more than that nothing came through them.
            return {} if kind_of(failure) is BrokerUnavailableError else dict.fromkeys(partitions, failure)
        if listed is None:
            return dict.fromkeys(partitions, KafkaError(KafkaError._UNKNOWN_TOPIC))
        if listed.error is not None:
            return dict.fromkeys(partitions, listed.error)
        errors: dict[int, KafkaError] = {}
        for number in partitions:
            known = listed.partitions.get(number)
            if known is None:
                errors[number] = KafkaError(KafkaError._UNKNOWN_PARTITION)
            # Other errors are of replicas that are away, which keeps nobody from reading.
            elif known.error is not None and known.error.code() == KafkaError.LEADER_NOT_AVAILABLE:
                errors[number] = known.error
        return errors
