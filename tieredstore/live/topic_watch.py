"""Checks of topics from which no messages arrive, because librdkafka reports neither a missing topic nor denied access.

In both cases, librdkafka only repeats its metadata requests, and hides the brokers' errors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.errors import BrokerUnavailableError, ResourceNotFoundError, TieredStoreError
from tieredstore.live.clients import LiveConsumer, partition_errors
from tieredstore.live.faults import fault, kind_of, unknown_s
from tieredstore.model import TopicPartition

_FIRST_S: Final = 0.5
"""Ask the brokers after this many seconds without messages. Usually no messages arrive simply because the log does not
grow."""
_MOST_S: Final = 5.0
_LOOK_S: Final = 1.0
"""Wait at most this many seconds for an answer, because no message is read during the wait."""


class TopicWatch:
    """Asks the brokers at intervals about partitions from which no messages arrive. Use it only on its client's
    thread."""

    def __init__(self, client: LiveConsumer, timeout_s: float) -> None:
        self._client = client
        self._unknown_s = unknown_s(timeout_s)
        self._first_s = min(_FIRST_S, self._unknown_s / 4)
        self._look_s = min(_LOOK_S, timeout_s)
        self._absent_since: dict[TopicPartition, float] = {}
        self.begin()

    def begin(self) -> None:
        """Restart the wait before the next check of the partitions, because a message has arrived."""
        self._pause_s = self._first_s
        self._look_at = time.monotonic() + self._first_s
        self._absent_since.clear()

    @property
    def is_due(self) -> bool:
        """True if the wait before the next check is over."""
        return time.monotonic() >= self._look_at

    def faults(self, topic: str, partitions: Iterable[int], doing: str) -> dict[int, TieredStoreError]:
        """Return the permanent errors of these partitions, by partition number. This takes one request.

        A missing topic is an error only after a few seconds, because brokers may not know a new topic yet. Temporary
        errors are kept in the client's ``trouble``.
        """
        errors = self._errors(topic, partitions)
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
                # Keep a temporary error, such as a partition without a leader, so that a caller can report it if its
                # timeout passes.
                self._client.trouble.note(error)
            else:
                faults[number] = fault(error, doing)
        self._pause_s = self._first_s if is_waited_for else min(2 * self._pause_s, _MOST_S)
        self._look_at = now + self._pause_s
        return faults

    def _errors(self, topic: str, partitions: Iterable[int]) -> dict[int, KafkaError]:
        """Return the brokers' errors about these partitions."""
        try:
            listed = self._client.list_topics(topic, timeout=self._look_s)
        except KafkaException as raised:
            failure: KafkaError = raised.args[0]
            # If no broker answers, report nothing here, because the client's connection error explains more.
            return {} if kind_of(failure) is BrokerUnavailableError else dict.fromkeys(partitions, failure)
        errors = partition_errors(listed, ((topic, number) for number in partitions))
        return {number: error for (_, number), error in errors.items()}
