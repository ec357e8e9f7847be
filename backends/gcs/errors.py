"""Translation of every error of Google's SDK into one of this package's errors."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, cast

import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from tieredstore.backends.cloud.answers import show_body
from tieredstore.backends.cloud.errors import BY_STATUS, MalformedAnswerError, MaybeNoBucketError, no_bucket
from tieredstore.backends.http.sockets import connection_failure
from tieredstore.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
    redact,
)

# The server answers 410 or 404 if an upload session no longer exists.
_BY_STATUS: Final = BY_STATUS | {410: ObjectNotFoundError}
# These reasons come with status 403, but are transient.
_THROTTLED: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_NO_BUCKET: Final = "bucket does not exist"
_NO_OBJECT: Final = "No such object"


@contextmanager
def translate_errors(what: str) -> Generator[None]:
    """Convert errors of the SDK and of the network to this package's errors. Only this function knows the SDK's
    classes."""
    try:
        yield
    except RefusedError as error:
        raise _error_of_answer(what, error.response) from None
    except api.GoogleAPICallError as error:
        # Do not show the SDK's message, which begins with the URL: the URL of an upload session is a secret.
        response: requests.Response | None = getattr(error, "response", None)
        if response is not None:
            raise _error_of_answer(what, response) from None
        raise StoreError(f"{what}: the SDK failed: {redact(error)[:300]}") from None
    except auth.GoogleAuthError as error:
        raise _make_unauthenticated(what, error) from error
    except requests.JSONDecodeError as error:
        raise _unreadable(what, error) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        failure = connection_failure(error)
        raise type(failure)(f"{what}: {failure}") from None


class RefusedError(Exception):
    """An error answer that the SDK has not yet parsed."""

    def __init__(self, response: requests.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def raise_for(response: requests.Response) -> None:
    """Raise RefusedError for an error answer, without parsing its body."""
    if response.status_code >= 400:
        response.content  # noqa: B018  reads the body, so that errors are translated
        raise RefusedError(response)


def raise_first(response: requests.Response, **_: object) -> None:
    """Raise RefusedError for an error answer. Sessions call this as a hook before the SDK's parser runs, because the
    parser fails on unusual bodies.
    """
    # Leave a 401 to the SDK, which refreshes the token and repeats the request.
    if response.status_code != requests.codes.unauthorized:
        raise_for(response)


def _error_of_answer(what: str, response: requests.Response) -> TieredStoreError:
    status = response.status_code
    message, reasons = _read_reasons(response)
    if status == 404 and _NO_BUCKET in message:
        return no_bucket(what, "storage.gcs.bucket.name")
    error_class = _BY_STATUS.get(status, StoreError)
    if status == 404 and _NO_OBJECT not in message:
        error_class = MaybeNoBucketError
    if status == 403 and _THROTTLED & reasons:
        error_class = StoreThrottledError
    return error_class(f"{what}: the store answered with status {status}{f' ({message})' if message else ''}")


def _read_reasons(response: requests.Response) -> tuple[str, set[str]]:
    """Return the server's message and its reasons. If the body is not JSON, the body is the message."""
    text, reasons = response.text, set[str]()
    with suppress(ValueError, RecursionError):
        error = _of(json.loads(text), "error")
        text = str(_of(error, "message") or text)
        details = _of(error, "errors")
        named = [_of(detail, "reason") for detail in cast("list[object]", details if isinstance(details, list) else [])]
        reasons = {reason for reason in named if isinstance(reason, str)}
    return redact(text).strip().rstrip(".")[:300], reasons


def _of(value: object, name: str) -> object:
    """Return a field of a JSON object; None if ``value`` is no object or lacks the field."""
    return cast("Mapping[str, object]", value).get(name) if isinstance(value, Mapping) else None


def _unreadable(what: str, error: requests.JSONDecodeError) -> StoreError:
    """Return the error for invalid JSON: retryable if the body is truncated."""
    text = error.doc
    if text.lstrip().startswith("{"):
        return StoreUnavailableError(f"{what}: no complete answer: {str(error)[:100]}")
    return MalformedAnswerError(
        f"{what}: the store answered with {show_body(text.encode())}, which is not a JSON object"
    )


def _make_unauthenticated(what: str, error: auth.GoogleAuthError) -> TieredStoreError:
    text = redact(error.args[0] if error.args else error)[:300]
    if isinstance(error, auth.TransportError) or getattr(error, "retryable", False):
        return StoreUnavailableError(f"{what}: no token could be fetched: {text}")
    return AccessDeniedError(f"{what}: there are no usable credentials: {text}")
