"""Translates errors of librdkafka and brokers into this project's error classes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.errors import (
    BatchCorruptError,
    BrokerDeniedError,
    BrokerError,
    BrokerUnavailableError,
    ResourceNotFoundError,
    TieredStoreError,
    excerpt,
)

_UNKNOWN_S: Final = 5.0
"""Brokers may report an existing topic or partition as unknown for this many seconds, before it counts as absent.

Each broker learns of a new topic separately. This takes milliseconds with KRaft, and up to two seconds if the broker
lags or uses ZooKeeper. Java's clients wait longer, for the whole timeout, so they report a misspelled name only after a
minute.
"""

_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTH_DISABLED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
        KafkaError.DELEGATION_TOKEN_NOT_FOUND,
        KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
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
_PASSING_WITHOUT_NAME: Final = frozenset({-137, 103, 106, 122, 123, 129, 133})
"""Numbers of error codes for which some supported versions of the library have no name: _DESTROY_BROKER,
INCONSISTENT_TOPIC_ID, FETCH_SESSION_TOPIC_ID_ERROR, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH,
REBOOTSTRAP_REQUIRED, SHARE_SESSION_LIMIT_REACHED.
"""

_PASSING: Final = _PASSING_WITHOUT_NAME | frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._IN_PROGRESS,
        KafkaError._INTR,
        KafkaError._ISR_INSUFF,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._NODE_UPDATE,
        KafkaError._OUTDATED,
        KafkaError._PARTIAL,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,
        KafkaError._QUEUE_FULL,
        KafkaError._RESOLVE,
        KafkaError._RETRY,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.ELECTION_NOT_NEEDED,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Temporary errors: all errors that Java's clients call retriable, except errors that report an absent topic or damaged
records."""

OUT_OF_RANGE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
"""Errors that say that the broker's log lacks the requested offset."""

OF_GROUPS: Final = frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.NOT_COORDINATOR,
    }
)
"""Errors about the consumer's group. Readers ignore these errors, because a reader needs no group, and may have no
access to its group.
"""

OF_HOLES: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE})
"""librdkafka reports this error after ten fetches without new records. The cause is the last batch of a segment, if
compaction has removed the last records of that batch. The error calls the records too large, but librdkafka then
continues by itself.
"""

_SILENCE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
"""If a call fails with one of these codes, the client's last connection error explains more than the call's own
error."""

_DAMAGED: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})


class Trouble:
    """The last connection error of a client. The client's callback stores the error here, and an operation that waits
    for an answer reports it.

    ``beside_clients`` is true if this process was forked from a process with Kafka clients. The clients of this process
    may then hang.
    """

    def __init__(self, *, beside_clients: bool = False) -> None:
        self.noted: KafkaError | None = None
        self._beside_clients = beside_clients
        self._answered = False

    def note(self, error: KafkaError) -> None:
        """Keep an error, unless the kept error says more. For example, "all brokers down" follows the error that gives
        the reason, and a lost connection follows a refusal.
        """
        # Ignore errors about absent topics, because the consumer reports these itself, with the topic's name.
        if error.code() in OF_GROUPS or kind_of(error) is ResourceNotFoundError:
            return
        follows = error.code() == KafkaError._ALL_BROKERS_DOWN or self._is_final()
        if self.noted is None or not follows:
            self.noted = error

    def forget(self) -> None:
        """Forget the last error, because a broker has answered."""
        self.noted = None
        self._answered = True

    def final(self, doing: str) -> TieredStoreError | None:
        """Return the last error if waiting cannot fix it, because librdkafka would retry even denied access forever."""
        return fault(self.noted, doing) if self.noted is not None and self._is_final() else None

    def _is_final(self) -> bool:
        if self.noted is None or kind_of(self.noted) not in (BrokerDeniedError, BrokerError):
            return False
        # A failed TLS handshake is final only before the first answer, because later a lost connection may be the
        # reason.
        return self.noted.code() != KafkaError._SSL or not self._answered

    def failure(self, error: KafkaError, doing: str, timeout_s: float) -> TieredStoreError:
        """Return the error of a call, or the connection's error if that error explains more."""
        return self.unavailable(doing, timeout_s) if error.code() in _SILENCE else fault(error, doing)

    def unavailable(self, doing: str, timeout_s: float) -> TieredStoreError:
        """Return the error to raise if no broker answered within ``timeout_s`` seconds."""
        if self.noted is not None and self.noted.code() != KafkaError._ALL_BROKERS_DOWN:
            error = fault(self.noted, doing)
            # A peer that does not speak Kafka's protocol also causes BatchCorruptError, although no record is damaged.
            # So report the broker as unavailable.
            return BrokerUnavailableError(str(error)) if isinstance(error, BatchCorruptError) else error
        if self._beside_clients and not self._answered:
            # At the fork, a thread of the parent may have held a lock in librdkafka's copy of OpenSSL. In the child the
            # lock is never released, and every connection waits for it.
            return BrokerUnavailableError(
                f"{doing}: no broker answered within {timeout_s:g} s; this process was forked from a process with "
                "Kafka clients, so its own Kafka clients may hang: spawn the process instead, or fork before making "
                "the first client"
            )
        # Name the likely cause: a TLS or SASL listener closes plain connections without an answer.
        return BrokerUnavailableError(
            f"{doing}: no broker answered within {timeout_s:g} s; if a broker runs there, check security.protocol"
        )


def kind_of(error: KafkaError) -> type[TieredStoreError]:
    """Return this project's exception class for an error of librdkafka. Of the classes returned, only
    BrokerUnavailableError is retryable."""
    code = error.code()
    if code in _DENIED:
        return BrokerDeniedError
    if code in _ABSENT:
        return ResourceNotFoundError
    if code in _DAMAGED:
        return BatchCorruptError
    if not error.fatal() and (code in _PASSING or error.retriable()):
        return BrokerUnavailableError
    return BrokerError


def fault(error: KafkaError, doing: str) -> TieredStoreError:
    """Return this project's error for an error of librdkafka. ``doing`` names the failed operation."""
    return kind_of(error)(f"{doing}: {excerpt(error.str() or error.name(), 1000)}")


def unknown_s(timeout_s: float) -> float:
    """Return how long brokers may report an existing topic as unknown, at most a quarter of ``timeout_s``."""
    return min(_UNKNOWN_S, timeout_s / 4)


@contextmanager
def translate_errors(doing: str) -> Generator[None]:
    """Translate an error that a client raises in the block."""
    try:
        yield
    except KafkaException as error:
        raise fault(error.args[0], doing) from error
