"""What the clouds' errors have in common: classes by HTTP status, and two that only a store's inside knows."""

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
"""The class of error for an answer's status, where a cloud's own error code does not say it better."""


class MaybeNoBucketError(ObjectNotFoundError):
    """An answer that does not tell whether the object is absent, or its bucket."""


class MalformedAnswerError(StoreError):
    """An answer that is not what the service's protocol says: it tells nothing of what was done.

    Of a write the object itself is looked at then; everything else ends in it, told as a StoreError.
    """


class PartsGoneError(StoreError):
    """The service does not hold the parts of an upload (any more): it was completed, aborted, or overtaken."""


def no_bucket(what: str, setting: str) -> StoreError:
    """The error for a bucket that is not there; ``setting`` is what names it."""
    return StoreError(f"{what}: the bucket does not exist; create it, or correct {setting}")
