"""Translation of every error of Azure's SDK into one of this package's errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from azure.core import exceptions as azure

from tieredstore.backends.cloud.errors import BY_STATUS, MalformedAnswerError, PartsGoneError, way_out
from tieredstore.backends.http.sockets import connection_failure
from tieredstore.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
    excerpt,
    redact,
)

# Look up the service's error code before the status, because several codes share a status.
_BY_CODE: Final[dict[str, type[TieredStoreError]]] = {
    "BlobNotFound": ObjectNotFoundError,
    "ContainerNotFound": StoreError,
    "ContainerBeingDeleted": StoreError,
    "ContainerDisabled": StoreError,
    "BlobAlreadyExists": PreconditionFailedError,
    "ConditionNotMet": PreconditionFailedError,
    "InvalidRange": RangeNotSatisfiableError,
    "InvalidBlockList": PartsGoneError,
    # The following codes have status 400, but are transient: the body was damaged or truncated in transit.
    "Md5Mismatch": StoreUnavailableError,
    "IncompleteBody": StoreUnavailableError,
    "BlobArchived": ObjectArchivedError,
    "BlobBeingRehydrated": ObjectArchivedError,
    # The following codes have status 409, but are about the caller's permission.
    "AccountIsDisabled": AccessDeniedError,
    "InsufficientAccountPermissions": AccessDeniedError,
    # The following codes have status 412, although no condition of our request failed: the blob has a lease.
    "LeaseIdMissing": AccessDeniedError,
}
_NO_CONTAINER: Final = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"})


@contextmanager
def translate_errors(what: str) -> Generator[None]:
    """Convert errors of the SDK and of the network to this package's errors. Only this function knows the SDK's
    classes."""
    try:
        yield
    except azure.DecodeError as error:
        # The answer may be truncated, so let the caller retry. In an answer without a Content-Length, the SDK notices
        # only that the XML is incomplete.
        raise StoreUnavailableError(f"{what}: the answer could not be read: {error.message[:300]}") from error
    except azure.HttpResponseError as error:
        raise _error_of_response(what, error) from error
    except (azure.ServiceRequestError, azure.ServiceResponseError) as error:
        failure = connection_failure(error)
        raise type(failure)(f"{what}: {failure}") from None
    except azure.AzureError as error:
        raise StoreError(f"{what}: the SDK failed: {redact(error)[:300]}") from error


def answer_error(what: str, status: int, code: str, message: str) -> TieredStoreError:
    """Return the error for an answer with this status and error code; ``code`` is empty if the service gives none."""
    if code in _NO_CONTAINER:
        return StoreError(
            f"{what}: the container does not exist, or is being deleted; create it, or correct "
            "storage.azure.container.name"
        )
    # Treat any other status as an error, even one below 300: a status that the operation does not define does not prove
    # a success.
    error_class = _BY_CODE.get(code) or BY_STATUS.get(status, MalformedAnswerError if status < 300 else StoreError)
    reason = " ".join(part for part in (excerpt(code), f"({excerpt(message, 300)})" if message else "") if part)
    answer = f"{status}{f', {reason}' if reason else ''}"
    return error_class(f"{what}: the store answered with status {answer}{way_out(error_class)}")


def _error_of_response(what: str, error: azure.HttpResponseError) -> TieredStoreError:
    status = error.status_code
    if status is None:
        return _error_without_answer(what, error)
    code = vars(error).get("error_code") or ""
    # Keep only the first line, because the SDK appends the request id, the time and the whole answer on further
    # lines.
    message = redact(error.message).partition("\n")[0].strip().rstrip(".")[:300]
    return answer_error(what, status, str(getattr(code, "value", code)), message)


def _error_without_answer(what: str, error: azure.HttpResponseError) -> TieredStoreError:
    text = redact(error.message).partition("\n")[0][:300]
    if isinstance(error, azure.ClientAuthenticationError):
        return AccessDeniedError(f"{what}: there are no usable credentials: {text}")
    return StoreUnavailableError(f"{what}: the answer could not be read: {text}")
