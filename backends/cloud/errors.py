"""Errors that all clouds share: classes by HTTP status, and classes that only stores use internally."""

from __future__ import annotations

from typing import Final

from tieredstore.errors import (
    AccessDeniedError,
    ObjectArchivedError,
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
"""Error class by HTTP status. Callers look up the cloud's own error code first, because it is more precise."""


class MaybeNoBucketError(ObjectNotFoundError):
    """The object or its bucket is absent, and the answer does not say which of the two."""


class MalformedAnswerError(StoreError):
    """An answer that breaks the service's protocol, and so proves nothing about the operation.

    After such an answer to a write, the store examines the object to learn if the write succeeded. Every other
    operation fails with this error.
    """


class NotSupportedError(StoreError):
    """The server does not support the request, such as a bulk delete."""


class PartsGoneError(StoreError):
    """The service no longer holds an upload's parts, because the upload was completed, aborted, or overtaken by another
    write."""


def way_out(error_class: type[TieredStoreError]) -> str:
    """Return the end of the sentence of an error whose remedy the service's answer does not name; else an empty
    text."""
    return "; restore the object from the archive first" if error_class is ObjectArchivedError else ""


def no_bucket(what: str, setting: str) -> StoreError:
    """Return the error for an absent bucket; ``setting`` is the setting that names the bucket."""
    return StoreError(f"{what}: the bucket does not exist; create it, or correct {setting}")
