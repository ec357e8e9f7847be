"""One request to a key management service, with a deadline, and with retries of transient errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tieredstore.errors import KeyServiceError, KeyServiceUnavailableError, TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.retry import Attempt, RetryPolicy
from tieredstore.process.thread_pool import ThreadPool

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0
"""Timeout of the SDKs between two bytes; ``POLICY`` limits the whole call."""

POLICY: Final = RetryPolicy(attempts=4, base_delay_s=0.25, max_delay_s=4.0, timeout_s=60.0, attempt_timeout_s=20.0)

_Result = TypeVar("_Result")


def ask_service(what: str, request: Callable[[], _Result], policy: RetryPolicy | None = None) -> _Result:
    """Return the result of ``request``. After the last retry or the deadline, raise KeyServiceUnavailableError; its
    message names ``what``.

    Raise KeyServiceError for an invalid answer.
    """
    return (policy or POLICY).call(what, partial(_run_within, request))


def _run_within(request: Callable[[], _Result], attempt: Attempt) -> _Result:
    # The SDKs do not limit the total time of an answer, because each byte restarts their timeout. So run the request on
    # another thread, and abandon it at the deadline.
    pool = ThreadPool(1, "tieredstore-kms")
    try:
        future = pool.submit(request)
        if not is_done(future, max(0.0, attempt.deadline.remaining_s())):
            raise KeyServiceUnavailableError("the service did not answer within the time-out")
        try:
            return outcome(future)
        except TieredStoreError:
            raise
        except Exception as error:
            # For an invalid answer, such as a proxy's page or an empty body, the SDKs may raise an error of any class.
            # So translate every error.
            raise KeyServiceError(f"the service's answer cannot be used ({type(error).__name__})") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
