"""A client whose controller has died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tieredstore.live import faults


@dataclass(frozen=True)
class ListedTopic:
    error: None = None
    partitions: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Listing:
    """Metadata that other brokers give: the topic "orders" has one partition."""

    topics: Mapping[str, ListedTopic] = field(default_factory=lambda: {"orders": ListedTopic()})


class DeadController:
    """Admin client whose controller is dead. Its calls wait until ``list_topics`` asks the other brokers. Then
    describing a topic fails, creating it reports that it exists, and adding partitions succeeds.
    """

    def __init__(self, _: object) -> None:
        self.trouble = faults.Trouble()
        self._waiting: list[tuple[Future[Any], int | None]] = []

    def describe_topics(self, _: object, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        return self._ask(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def create_topics(self, _: Sequence[object], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        return self._ask(KafkaError.TOPIC_ALREADY_EXISTS)

    def create_partitions(self, _: Sequence[object], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        return self._ask(None)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Listing:
        assert 0 < timeout <= 60
        if topic is None:  # asking for a topic by name might create it
            for future, code in self._waiting:
                if code is None:
                    future.set_result(None)
                else:
                    future.set_exception(KafkaException(KafkaError(code)))
            self._waiting.clear()
        return Listing()

    def poll(self, timeout_s: float) -> None: ...

    def hear(self) -> None: ...

    def listen(self, _: str) -> None: ...

    def _ask(self, code: int | None) -> dict[str, Future[Any]]:
        self._waiting.append((Future(), code))
        return {"orders": self._waiting[-1][0]}
