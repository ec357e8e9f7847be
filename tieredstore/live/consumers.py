"""Consumers that are kept from one read to the next: each that is made costs connections and a metadata request."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException

from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import unknown_s
from tieredstore.process.forks import is_inherited

_logger: Final = logging.getLogger(__name__)

_KEPT: Final = 4
"""Idle ones of a pool; reads that go on side by side have one each, however many they are."""

_STATISTICS_MS: Final = 1000

_FETCH_WAIT_MS: Final = 20
"""How long a broker waits at the end of its log before it answers a bounded read that there is no more.

A read up to the end waits for that answer where transactions end, and the next read by the same consumer for one that
is under way: the library's 500 ms cost each of them half a second.
"""


def reading_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """That of a consumer which reads what it is told to, and commits nothing."""
    return {
        **configuration,
        "auto.offset.reset": "error",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "max.poll.interval.ms": "86400000",
        "statistics.interval.ms": str(_STATISTICS_MS),
        "topic.metadata.propagation.max.ms": str(int(unknown_s(timeout_s) * 1000)),
    }


def bounded_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """That of a consumer whose reads end where the broker's log did a moment ago."""
    return {"fetch.wait.max.ms": str(_FETCH_WAIT_MS), **reading_configuration(configuration, timeout_s)}


class ConsumerPool:
    """Lends consumers of one configuration, each to one read at a time. Safe from several threads of one process."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self._configuration = dict(configuration)
        self._idle: list[LiveConsumer] = []
        self._is_open = True

    @contextmanager
    def lent(self) -> Generator[LiveConsumer]:
        """A consumer without an assignment, for the block; one that a read failed with is not used again."""
        consumer = self._take_idle() or LiveConsumer(self._configuration)
        try:
            yield consumer
        except GeneratorExit:
            self._take_back(consumer)
            raise
        except BaseException:
            _close(consumer)
            raise
        self._take_back(consumer)

    def close(self) -> None:
        """Close the idle ones; those that are lent are closed when they come back."""
        self._is_open = False
        while (consumer := self._take_idle()) is not None:
            consumer.close()

    def _take_idle(self) -> LiveConsumer | None:
        # In one step, without a look beforehand: another thread may take the last one in between.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _can_keep(self, consumer: LiveConsumer) -> bool:
        return self._is_open and len(self._idle) < _KEPT and not is_inherited(consumer)

    def _take_back(self, consumer: LiveConsumer) -> None:
        consumer.statistics.listener = None
        if not self._can_keep(consumer):
            _close(consumer)
            return
        try:
            consumer.unassign()
        except KafkaException as error:
            _logger.debug("a consumer is not used again: %s", error)
            _close(consumer)
            return
        # What went wrong under one read would be told as the next one's trouble.
        consumer.trouble.noted = None
        self._idle.append(consumer)
        if not self._is_open:  # closed since it was looked
            self.close()


def _close(consumer: LiveConsumer) -> None:
    # A forked child has the read that borrowed it, and none of the threads that closing waits for.
    if not is_inherited(consumer):
        consumer.close()
