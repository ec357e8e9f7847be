"""Ends of leader epochs at the brokers. A consumer requests these ends, because librdkafka's administrative client has
no such request.

If a position is assigned with a leader epoch, the leader validates it (OffsetForLeaderEpoch) before any fetch. This
module assigns positions beyond the end of every log, so each answer is the error "log truncation". The error's text has
an epoch and the end offset of this epoch. The epoch is the largest in the leader's log that is not later than the given
epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import OUT_OF_RANGE, fault, translate_errors
from tieredstore.model import TopicPartition

_BEYOND: Final = 1 << 62
"""An offset beyond the end of every log."""

_ANSWER: Final = re.compile(r"broker end offset is (-1|\d+) \(offset leader epoch (-1|\d+)\)", re.ASCII)
_POLL_S: Final = 0.1
_FIRST_WAIT_S: Final = 1.0
"""Assign again after this many seconds without an answer; the time doubles at each repetition."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """An epoch in the leader's log, and its end offset (exclusive). The epoch is the largest that is not later than the
    requested epoch.

    If retention has deleted all records of that epoch, the leader returns the start of its log as the end.
    """

    epoch: int
    end: int


class EpochInquiry:
    """Asks the leaders of some partitions once where leader epochs end. The requests go through a consumer that fetches
    no records. Not thread-safe."""

    def __init__(self, consumer: LiveConsumer, epochs: Mapping[TopicPartition, int], doing: str) -> None:
        self._consumer = consumer
        self._epochs = epochs
        self._doing = doing
        self._answers: dict[TopicPartition, EpochEnd | None] = {}

    def ask(self, timeout_s: float) -> dict[TopicPartition, EpochEnd]:
        """Return the answers. The result omits a partition if its leader has no epoch up to the requested epoch.

        Raise BrokerUnavailableError if an answer is missing after ``timeout_s``. Raise BrokerDeniedError or BrokerError
        if a broker refuses a request.
        """
        end, wait_s = time.monotonic() + timeout_s, _FIRST_WAIT_S
        while waiting := self._epochs.keys() - self._answers.keys():
            if (now := time.monotonic()) > end:
                raise self._consumer.trouble.unavailable(self._doing, timeout_s)
            self._request(waiting)
            again = min(now + wait_s, end)
            while waiting - self._answers.keys() and time.monotonic() <= again:
                for message in self._consumer.consume(len(waiting), _POLL_S):
                    self._hear(message)
                if (final := self._consumer.trouble.final(self._doing)) is not None:
                    raise final
            wait_s *= 2
        return {where: answer for where, answer in self._answers.items() if answer is not None}

    def _request(self, waiting: Iterable[TopicPartition]) -> None:
        with translate_errors(self._doing):
            # The client sends no second request for a partition that it has failed, until it is assigned anew.
            self._consumer.unassign()
            self._consumer.assign(
                [KafkaPartition(*where, _BEYOND, leader_epoch=self._epochs[where]) for where in waiting]
            )

    def _hear(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None or topic is None or partition is None:
            return
        if error.code() in OUT_OF_RANGE:
            # Without an end, it is the error of a fetch: the client did not know the leader's epoch yet.
            if _ANSWER.search(error.str()) is not None:
                self._answers[topic, partition] = epoch_end_in(error.str())
            return
        broker_error = fault(error, self._doing)
        if not broker_error.retryable:
            raise broker_error
        self._consumer.trouble.note(error)


def epoch_end_in(text: str) -> EpochEnd | None:
    """Parse the text of the client's error "log truncation". Return None if the leader has no such epoch, or if the
    text names no end."""
    match = _ANSWER.search(text)
    return None if match is None or match[1] == "-1" else EpochEnd(int(match[2]), int(match[1]))
