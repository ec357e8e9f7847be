"""Classes of the errors of librdkafka and brokers, compared with the lists of Kafka's own client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tieredstore.errors import (
    BatchCorruptError,
    BrokerDeniedError,
    BrokerError,
    BrokerUnavailableError,
    ResourceNotFoundError,
    TieredStoreError,
)
from tieredstore.live.faults import OF_GROUPS, OUT_OF_RANGE, Trouble, fault, kind_of, translate_errors, unknown_s

JAVA_RETRIES = {
    2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106,
    122, 123, 133,
}  # fmt: skip
"""Codes in `Errors` of Kafka 4.1 whose exception is a RetriableException."""

JAVA_REFUSES = {29, 30, 31, 33, 34, 53, 58, 65}
"""Codes whose exception is an AuthorizationException or an AuthenticationException."""

ABSENT = {3, 100}
TOKENS = {61, 62, 64, 66}
"""Codes of unusable delegation tokens, which are plain errors for Java's clients."""


def every_code() -> set[int]:
    """Return all error codes that this version of librdkafka names, and all others of Kafka."""
    named = {value for name, value in vars(KafkaError).items() if name.lstrip("_").isupper() and isinstance(value, int)}
    return {*named, *range(1, 134)} - {KafkaError.NO_ERROR}


def expected_kind(code: int) -> type[TieredStoreError]:
    """Return the class of a broker's error."""
    if code in ABSENT:
        return ResourceNotFoundError
    if code in JAVA_REFUSES | TOKENS:
        return BrokerDeniedError
    if code == KafkaError.INVALID_MSG:
        return BatchCorruptError
    # Java's clients no longer know BROKER_NOT_AVAILABLE. After 129, they start again from ``bootstrap.servers``.
    passes = code in JAVA_RETRIES | {KafkaError.BROKER_NOT_AVAILABLE, 129}
    return BrokerUnavailableError if passes else BrokerError


def test_what_brokers_say_is_tried_again_where_java_does() -> None:
    codes = [code for code in every_code() if code > 0]
    assert len(codes) > 130
    assert {code: kind_of(KafkaError(code)) for code in codes} == {code: expected_kind(code) for code in codes}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, BrokerDeniedError),
        (KafkaError._SSL, BrokerDeniedError),
        (KafkaError._UNKNOWN_TOPIC, ResourceNotFoundError),
        (KafkaError._UNKNOWN_PARTITION, ResourceNotFoundError),
        (KafkaError._BAD_MSG, BatchCorruptError),
        (KafkaError._BAD_COMPRESSION, BatchCorruptError),
        (KafkaError._TRANSPORT, BrokerUnavailableError),
        (KafkaError._TIMED_OUT, BrokerUnavailableError),
        (KafkaError._RESOLVE, BrokerUnavailableError),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailableError),
        (-137, BrokerUnavailableError),
        (KafkaError._INVALID_ARG, BrokerError),
        (KafkaError._UNSUPPORTED_FEATURE, BrokerError),
        (KafkaError._FATAL, BrokerError),
        (KafkaError._STATE, BrokerError),
        (KafkaError._CRIT_SYS_RESOURCE, BrokerError),
    ],
)
def test_what_the_library_says_itself(code: int, kind: type) -> None:
    error = fault(KafkaError(code), "t-0 cannot be read")
    assert type(error) is kind
    assert str(error).startswith("t-0 cannot be read: ")


def test_a_fatal_error_is_none_to_try_again() -> None:
    assert kind_of(KafkaError(KafkaError._TRANSPORT, fatal=True)) is BrokerError
    assert kind_of(KafkaError(KafkaError._STATE, retriable=True)) is BrokerUnavailableError


def test_a_client_waits_on_for_nothing_that_does_not_pass() -> None:
    ends = set[int]()
    for code in every_code():
        trouble = Trouble()
        trouble.note(KafkaError(code))
        final = trouble.final("it cannot be read")
        assert final is None or not final.retryable, code
        ends |= {code} if final is not None else set()
    kinds = {code: kind_of(KafkaError(code)) for code in every_code() - OF_GROUPS}
    assert ends == {code for code, kind in kinds.items() if kind in (BrokerDeniedError, BrokerError)}


def test_a_connection_on_which_something_else_speaks_damages_no_record() -> None:
    trouble = Trouble()
    trouble.note(KafkaError(KafkaError._BAD_MSG))
    assert trouble.final("it cannot be read") is None
    assert isinstance(trouble.unavailable("it cannot be read", 1), BrokerUnavailableError)


def test_a_refusal_is_not_hidden_by_what_follows_on_it() -> None:
    trouble = Trouble()
    for code in (KafkaError._AUTHENTICATION, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        trouble.note(KafkaError(code))
    assert isinstance(trouble.final("it cannot be read"), BrokerDeniedError)
    trouble.forget()
    assert trouble.final("it cannot be read") is None


def test_a_handshake_that_breaks_off_once_the_broker_has_answered_may_pass() -> None:
    trouble = Trouble()
    trouble.note(KafkaError(KafkaError._SSL))
    assert trouble.final("it cannot be read") is not None
    trouble.forget()
    trouble.note(KafkaError(KafkaError._SSL))
    assert trouble.final("it cannot be read") is None


def test_offsets_out_of_range_are_judged_elsewhere() -> None:
    assert not any(kind_of(KafkaError(code)) is BrokerUnavailableError for code in OUT_OF_RANGE)


def test_who_waits_longer_gives_new_topics_longer() -> None:
    assert [unknown_s(timeout_s) for timeout_s in (0.4, 4, 20, 60, 3600)] == [0.1, 1, 5, 5, 5]


def test_what_a_call_raises_is_translated() -> None:
    with pytest.raises(BrokerError, match=r"^t-0 cannot be read: ") as raised, translate_errors("t-0 cannot be read"):
        raise KafkaException(KafkaError(KafkaError._STATE))
    assert isinstance(raised.value.__cause__, KafkaException)
