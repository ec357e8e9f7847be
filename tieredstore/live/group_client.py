"""Offsets that a consumer group has committed, by a client that can belong to a group and does not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import BrokerUnavailable
from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import fault
from tieredstore.model import TopicPartition
from tieredstore.process.closing import Closing

_AGAIN_S: Final = 0.1
_FIRST_WAIT_S: Final = 1.0
"""A call in which nothing can interrupt; those that follow take as long as all before them."""


class GroupClient(Closing):
    """Asks a group's coordinator; subscribes to nothing, and so is no member. For one thread.

    Not the administrative client: librdkafka 2.x takes the whole process down where a coordinator answers that one that
    it is not the coordinator any more (its issue 5040), as each does that has only just become one.
    """

    def __init__(self, configuration: Mapping[str, str], login: tuple[str, str] | None = None) -> None:
        """``configuration`` names the group; ``login``, a user and a password, stands for what it says of these."""
        # What transactions are about to commit is waited for, whatever may be read of topics.
        own = {"enable.auto.commit": "false", "isolation.level": "read_committed"}
        self._client = LiveConsumer({**configuration, **own})
        if login is not None:
            self._client.set_sasl_credentials(*login)

    def committed(self, partitions: Sequence[TopicPartition], doing: str, timeout_s: float) -> list[KafkaPartition]:
        """What is committed of each, asked for again while that may succeed later; a negative offset for nothing.

        Errors begin with ``doing``: BrokerDenied, BrokerUnavailable (nothing came in ``timeout_s``), BrokerError.
        """
        begun = time.monotonic()
        end = begun + timeout_s
        while True:
            now = time.monotonic()
            wait_s = min(max(end - now, _AGAIN_S), max(_FIRST_WAIT_S, now - begun))
            try:
                return self._ask(partitions, doing, wait_s, timeout_s)
            except BrokerUnavailable:
                if time.monotonic() + _AGAIN_S > end:
                    raise
                time.sleep(_AGAIN_S)

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def _ask(
        self, partitions: Sequence[TopicPartition], doing: str, wait_s: float, timeout_s: float
    ) -> list[KafkaPartition]:
        trouble = self._client.trouble
        client: Any = self._client  # the library leaves types of its results open
        try:
            places: list[KafkaPartition] = client.committed(
                [KafkaPartition(*where) for where in partitions], timeout=wait_s
            )
        except KafkaException as error:
            # A client that is denied says so by its callback, which runs only while it is polled.
            self._client.poll(0)
            final = trouble.final(doing)
            if final is not None:
                raise final from error
            if error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise trouble.unavailable(doing, timeout_s) from error
            raise fault(error.args[0], doing) from error
        for place in places:
            if place.error is not None:
                raise fault(place.error, f"{doing}, for {place.topic}-{place.partition}")
        return places
