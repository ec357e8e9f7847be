"""The common errors of the clouds: classes by HTTP status, and two that only stores use internally."""

from __future__ import annotations

from typing import Final

from tieredstore.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
)

BY_STATUS: Final[dict[int, type[TieredStoreError]]] = {
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    408: StoreUnavailableError,
    412: PreconditionFailedError,
    416: RangeNotSatisfiableError,
    429: StoreThrottledError,
    500: StoreUnavailableError,
    502: StoreUnavailableError,
    503: StoreThrottledError,
    504: StoreUnavailableError,
}
"""The class of error by status, unless a cloud's own error code is more precise."""


class MaybeNoBucketError(ObjectNotFoundError):
    """Either the object or its bucket is absent: the answer does not say which."""


class MalformedAnswerError(StoreError):
    """An answer that breaks the service's protocol: it proves nothing about the operation.

    After a write the object itself is examined; every other operation fails with this StoreError.
    """


class PartsGoneError(StoreError):
    """The service no longer holds the parts of an upload: it was completed, aborted, or overtaken."""


def no_bucket(what: str, setting: str) -> StoreError:
    """Return the error for an absent bucket; ``setting`` names it."""
    return StoreError(f"{what}: the bucket does not exist; create it, or correct {setting}")
