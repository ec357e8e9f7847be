"""Translation of every error of botocore, urllib3 and the socket into one of this package's errors."""

from __future__ import annotations

import http.client
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import urllib3.exceptions
from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from tieredstore.backends.cloud.errors import (
    BY_STATUS,
    MalformedAnswerError,
    MaybeNoBucketError,
    NotSupportedError,
    PartsGoneError,
    no_bucket,
    way_out,
)
from tieredstore.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
    excerpt,
    redact,
)

# Look up S3's error code before the status, because several codes share a status. An entry of a bulk delete has no
# status at all.
_BY_CODE: Final[dict[str, type[TieredStoreError]]] = {
    "NoSuchKey": ObjectNotFoundError,
    "NoSuchBucket": StoreError,
    "NoSuchUpload": PartsGoneError,
    # This code means lost parts. A server also sends the code if it crashed during the completion of an upload, after
    # it had moved parts.
    "InvalidPart": PartsGoneError,
    "InvalidRange": RangeNotSatisfiableError,
    "PreconditionFailed": PreconditionFailedError,
    # The request conflicted with another write to the same key, so a retry can succeed.
    "ConditionalRequestConflict": StoreUnavailableError,
    "OperationAborted": StoreUnavailableError,
    # The following codes have status 400, but are transient: the body was damaged or truncated in transit, or came too
    # slowly.
    "BadDigest": StoreUnavailableError,
    "IncompleteBody": StoreUnavailableError,
    "RequestTimeout": StoreUnavailableError,
    "XAmzContentSHA256Mismatch": StoreUnavailableError,
    "XAmzContentChecksumMismatch": StoreUnavailableError,
    "InternalError": StoreUnavailableError,
    "ServiceUnavailable": StoreThrottledError,
    # Error codes about permission; some of them come with status 400.
    "AccessDenied": AccessDeniedError,
    "ExpiredToken": AccessDeniedError,
    "InvalidToken": AccessDeniedError,
    "InvalidAccessKeyId": AccessDeniedError,
    "SignatureDoesNotMatch": AccessDeniedError,
    # This code has status 403, but is not about permission.
    "InvalidObjectState": ObjectArchivedError,
    "KeyTooLongError": InvalidKeyError,
    "KeyTooLong": InvalidKeyError,
    "InvalidObjectName": InvalidKeyError,
    "XMinioInvalidObjectName": InvalidKeyError,
    "XMinioInvalidResourceName": InvalidKeyError,
    "NotImplemented": NotSupportedError,
    "MethodNotAllowed": NotSupportedError,
    "XMinioStorageFull": StoreError,
}
_BY_STATUS: Final = BY_STATUS | {
    405: NotSupportedError,
    425: StoreUnavailableError,
    501: NotSupportedError,
}
_THROTTLED: Final = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
)

_NETWORK: Final = (
    aws.ConnectionError,
    aws.HTTPClientError,
    aws.ResponseStreamingError,
    aws.IncompleteReadError,
    aws.ReadTimeoutError,
    ResponseParserError,
    aws.FlexibleChecksumError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
_IDENTITY: Final = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.TokenRetrievalError,
    aws.UnauthorizedSSOTokenError,
    aws.SSOTokenLoadError,
    aws.MetadataRetrievalError,
)


def class_for(code: str, status: int) -> type[TieredStoreError]:
    """Return the error class for S3's error ``code`` or, if the code is unknown, for the HTTP status."""
    if code in _THROTTLED or status == 429:
        return StoreThrottledError
    return _BY_CODE.get(code) or _BY_STATUS.get(status, StoreError)


def error_of(what: str, code: str, message: str, status: int) -> TieredStoreError:
    """Return the error for S3's answer. ``what`` names the operation and its object."""
    if code == "NoSuchBucket":
        return no_bucket(what, "the bucket's name")
    # The answer to a HEAD has no body, and so no error code. In place of the code the SDK gives the status.
    error_class = MaybeNoBucketError if code == "404" else class_for(code, status)
    sentence = excerpt(message.strip().rstrip("."), 300) if message and message != code else ""
    with_status = f", status {status}" if status else ""
    answer = f"{excerpt(code)}{f' ({sentence})' if sentence else ''}{with_status}"
    return error_class(f"{what}: the store answered {answer}{way_out(error_class)}")


@contextmanager
def translate_errors(what: str) -> Generator[None, None, None]:
    """Convert errors of the SDK and of the network to this package's errors. Only this function knows the SDK's
    classes."""
    try:
        yield
    except aws.ClientError as error:
        raise _error_of_answer(what, error) from error
    except _IDENTITY as error:
        raise AccessDeniedError(f"{what}: the request could not be signed: {redact(error)}") from error
    except _NETWORK as error:
        raise _not_answered(what, error) from error
    except aws.BotoCoreError as error:
        raise StoreError(f"{what}: the SDK refused: {redact(error)}") from error


def _error_of_answer(what: str, error: aws.ClientError) -> TieredStoreError:
    answer = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # Convert the fields to text, because if a field occurs several times, the SDK returns a list.
    return error_of(what, str(answer.get("Code", status)), str(answer.get("Message", "")), status)


def _not_answered(what: str, error: Exception) -> TieredStoreError:
    if isinstance(error, aws.HTTPClientError) and isinstance(error.kwargs.get("error"), MalformedAnswerError):
        return MalformedAnswerError(f"{what}: {error.kwargs['error']}")
    if isinstance(error, aws.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StoreError(f"{what}: the server's certificate is not trusted: {redact(error)}")
    return StoreUnavailableError(f"{what}: no complete answer: {redact(error)}")
