"""Errors of librdkafka and of the broker, in classes of ours. One place translates them."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from tieredstore.errors import (
    BatchCorrupt,
    BrokerDenied,
    BrokerError,
    BrokerUnavailable,
    ResourceNotFound,
    TieredStoreError,
)

_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_ABSENT: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
OUT_OF_RANGE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
"""The broker's log does not have the offset that was asked for, or not any more."""

OF_GROUPS: Final = frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A consumer looks for its group though it needs none here, and may have no right to it."""

_DAMAGED: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})


class Trouble:
    """What a client said of its connections while it was waited for. The client's callback notes it."""

    def __init__(self) -> None:
        self.noted: KafkaError | None = None
        self._answered = False

    def note(self, error: KafkaError) -> None:
        """Keep what tells most: that all brokers are down follows on the reason."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.noted is None:
            self.noted = error

    def forget(self) -> None:
        """An answer has come."""
        self.noted = None
        self._answered = True

    def denial(self, doing: str) -> TieredStoreError | None:
        """What the broker refused us for, or we it: librdkafka would try again for ever.

        A TLS handshake also fails where the connection is lost in it; not the first ones, if nothing ever came.
        """
        code = None if self.noted is None else self.noted.code()
        if self.noted is None or code not in _DENIED or (code == KafkaError._SSL and self._answered):
            return None
        return fault(self.noted, doing)

    def unavailable(self, doing: str, timeout_s: float) -> TieredStoreError:
        """Nothing came within ``timeout_s`` seconds."""
        if self.noted is not None and self.noted.code() != KafkaError._ALL_BROKERS_DOWN:
            return fault(self.noted, doing)
        # A listener for TLS or SASL closes the connections of clients that come without, and tells them nothing.
        return BrokerUnavailable(
            f"{doing}: no broker answered within {timeout_s:g} s; if it runs, see that security.protocol is its own"
        )


def fault(error: KafkaError, doing: str) -> TieredStoreError:
    """The error of ours for one of theirs; ``doing`` says what failed, and of what."""
    code = error.code()
    sentence = f"{doing}: {error.str() or error.name()}"
    if code in _DENIED:
        return BrokerDenied(sentence)
    if code in _ABSENT:
        return ResourceNotFound(sentence)
    if code in _DAMAGED:
        return BatchCorrupt(sentence)
    if code in _PASSING or error.retriable():
        return BrokerUnavailable(sentence)
    return BrokerError(sentence)
