"""Errors of librdkafka and of the broker, in classes of ours. One place translates them."""

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
"""How long a topic or partition that should be there may be unknown to the brokers before it counts as absent.

Each broker learns for itself of what was created a moment ago: one with KRaft within milliseconds, one that lags or
asks ZooKeeper within a second or two. Java's clients wait for their whole time-out, and so tell of a misspelt name
after a minute.
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
"""Those for which not every version of the library that works here has a name: _DESTROY_BROKER, INCONSISTENT_TOPIC_ID,
FETCH_SESSION_TOPIC_ID_ERROR, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, REBOOTSTRAP_REQUIRED,
SHARE_SESSION_LIMIT_REACHED."""

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
"""What may be otherwise in a moment: all that Java's clients call retriable, but for what is absent or damaged."""

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

OF_HOLES: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE})
"""What librdkafka says after ten fetches of a partition that brought nothing but what compaction left of a batch at a
segment's end: that its records were too large. It goes on behind it by itself."""

_DAMAGED: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})


class Trouble:
    """What a client said of its connections while it was waited for. The client's callback notes it.

    ``beside_clients``: whether the process was forked from one that had clients, so that those of its own may not work.
    """

    def __init__(self, *, beside_clients: bool = False) -> None:
        self.noted: KafkaError | None = None
        self._beside_clients = beside_clients
        self._answered = False

    def note(self, error: KafkaError) -> None:
        """Keep what tells most: that all brokers are down follows on the reason, and a lost connection on a refusal."""
        # Of topics the consumer's own errors tell which one is meant.
        if error.code() in OF_GROUPS or kind_of(error) is ResourceNotFoundError:
            return
        follows = error.code() == KafkaError._ALL_BROKERS_DOWN or self._is_final()
        if self.noted is None or not follows:
            self.noted = error

    def forget(self) -> None:
        """An answer has come."""
        self.noted = None
        self._answered = True

    def final(self, doing: str) -> TieredStoreError | None:
        """What waiting does not mend, as that the broker refuses us, or we it: librdkafka would try again for ever."""
        return fault(self.noted, doing) if self.noted is not None and self._is_final() else None

    def _is_final(self) -> bool:
        if self.noted is None or kind_of(self.noted) not in (BrokerDeniedError, BrokerError):
            return False
        # A TLS handshake also fails where the connection is lost in it; not the first ones, if nothing ever came.
        return self.noted.code() != KafkaError._SSL or not self._answered

    def unavailable(self, doing: str, timeout_s: float) -> TieredStoreError:
        """Nothing came within ``timeout_s`` seconds."""
        if self.noted is not None and self.noted.code() != KafkaError._ALL_BROKERS_DOWN:
            error = fault(self.noted, doing)
            # A connection on which something else than Kafka speaks damages no record.
            return BrokerUnavailableError(str(error)) if isinstance(error, BatchCorruptError) else error
        if self._beside_clients and not self._answered:
            # A thread of the parent's may have held a lock of OpenSSL's, which is librdkafka's own copy: in the child
            # it stays locked, and each connection waits for it.
            return BrokerUnavailableError(
                f"{doing}: no broker answered within {timeout_s:g} s; this process was forked beside clients of "
                "librdkafka, after which none may work in it: spawn it, or fork before the first client is made"
            )
        # A listener for TLS or SASL closes the connections of clients that come without, and tells them nothing.
        return BrokerUnavailableError(
            f"{doing}: no broker answered within {timeout_s:g} s; if it runs, see that security.protocol is its own"
        )


def kind_of(error: KafkaError) -> type[TieredStoreError]:
    """The class of ours for one of theirs: only BrokerUnavailableError is to be tried again."""
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
    """The error of ours for one of theirs; ``doing`` says what failed, and of what."""
    return kind_of(error)(f"{doing}: {excerpt(error.str() or error.name(), 1000)}")


def unknown_s(timeout_s: float) -> float:
    """How long the brokers may not know what should be there, for one who waits ``timeout_s`` seconds for them."""
    return min(_UNKNOWN_S, timeout_s / 4)


@contextmanager
def translate_errors(doing: str) -> Generator[None]:
    """What a client raises in the block as an error of ours."""
    try:
        yield
    except KafkaException as error:
        raise fault(error.args[0], doing) from error
