"""Ends of leader epochs at the brokers. A consumer requests these ends, because librdkafka's administrative client has
no such request.

If a consumer seeks with a leader epoch, the leader validates the position (OffsetForLeaderEpoch) before any fetch. This
module seeks beyond the end of every log, so each answer is the error "log truncation". The error's text has an epoch
and the end offset of this epoch. The epoch is the largest in the leader's log that is not later than the given epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import OUT_OF_RANGE, fault, translate_errors
from tieredstore.model import TopicPartition

_BEYOND: Final = 1 << 62
"""An offset beyond the end of every log."""

_ANSWER: Final = re.compile(r"broker end offset is (\d+) \(offset leader epoch (\d+)\)", re.ASCII)
_POLL_S: Final = 0.1
_FIRST_WAIT_S: Final = 1.0
"""Seek again after this many seconds without an answer; the time doubles at each repetition."""


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
        self._unsought = set(epochs)
        self._answers: dict[TopicPartition, EpochEnd | None] = {}

    def ask(self, timeout_s: float) -> dict[TopicPartition, EpochEnd]:
        """Return the answers. The result omits a partition if its leader has no epoch up to the requested epoch. It
        also omits a partition if the leader's answer was not understood.

        Raise BrokerUnavailableError if an answer is missing after ``timeout_s``. Raise BrokerDeniedError or BrokerError
        if a broker refuses a request.
        """
        end, wait_s = time.monotonic() + timeout_s, _FIRST_WAIT_S
        places = [KafkaPartition(*where, _BEYOND) for where in self._epochs]
        with translate_errors(self._doing):
            self._consumer.assign(places)
            self._consumer.pause(places)
        again = time.monotonic() + wait_s
        while waiting := self._epochs.keys() - self._answers.keys():
            self._seek()
            for message in self._consumer.consume(len(waiting), _POLL_S):
                self._hear(message)
            now = time.monotonic()
            if (final := self._consumer.trouble.final(self._doing)) is not None:
                raise final
            if now > end and len(self._answers) < len(self._epochs):
                raise self._consumer.trouble.unavailable(self._doing, timeout_s)
            if now > again:
                wait_s *= 2
                again, self._unsought = now + wait_s, set(waiting)
        return {where: answer for where, answer in self._answers.items() if answer is not None}

    def _seek(self) -> None:
        for where in list(self._unsought - self._answers.keys()):
            try:
                self._consumer.seek(KafkaPartition(*where, _BEYOND, leader_epoch=self._epochs[where]))
            except KafkaException:
                continue  # the assignment is not active yet: seek again later
            self._unsought.discard(where)

    def _hear(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None or topic is None or partition is None:
            return
        if error.code() in OUT_OF_RANGE:
            self._answers[topic, partition] = epoch_end_in(error.str())
            return
        broker_error = fault(error, self._doing)
        if not broker_error.retryable:
            raise broker_error
        self._consumer.trouble.note(error)


def epoch_end_in(text: str) -> EpochEnd | None:
    """Parse the text of the client's error "log truncation"; return None if its wording is unknown."""
    match = _ANSWER.search(text)
    return None if match is None else EpochEnd(int(match[2]), int(match[1]))
