"""Every error of Google's SDK as one of ours."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from tieredstore.backends.cloud.errors import BY_STATUS, MaybeNoBucket, no_bucket
from tieredstore.backends.http.session import connection_failure, without_queries
from tieredstore.errors import (
    AccessDenied,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    TieredStoreError,
)

# Of an upload session only, 410 says the same as 404.
_BY_STATUS: Final = BY_STATUS | {410: ObjectNotFound}
# Of status 403, but passing.
_THROTTLED: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_NO_BUCKET: Final = "bucket does not exist"
_NO_OBJECT: Final = "No such object"


@contextmanager
def translated(what: str) -> Generator[None]:
    """Raise errors of the SDK and of the network as ours; the only place that knows their classes."""
    try:
        yield
    except api.GoogleAPICallError as error:
        # The SDK's sentence begins with the URL, which for an upload is a key to it.
        raise _answered(what, error) from None
    except auth.GoogleAuthError as error:
        raise _unauthenticated(what, error) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        failure = connection_failure(error)
        raise type(failure)(f"{what}: {failure}") from None
    except ValueError as error:
        raise StoreError(f"{what}: the SDK refused: {without_queries(error)}") from error


def raise_for(response: requests.Response) -> None:
    """Raise the SDK's error for an answer that is one."""
    if response.status_code >= 400:
        untyped: Any = api
        raise cast("Exception", untyped.from_http_response(response))


def _answered(what: str, error: api.GoogleAPICallError) -> TieredStoreError:
    status = int(error.code or 0)
    message = _message(error)
    if status == 404 and _NO_BUCKET in message:
        return no_bucket(what, "storage.gcs.bucket.name")
    error_class = _BY_STATUS.get(status, StoreError)
    if status == 404 and _NO_OBJECT not in message:
        error_class = MaybeNoBucket
    if status == 403 and _THROTTLED & _reasons(error):
        error_class = StoreUnavailable
    return error_class(f"{what}: the store answered with status {status}{f' ({message})' if message else ''}")


def _message(error: api.GoogleAPICallError) -> str:
    """What the server said, without the request's URL that the SDK puts before it."""
    response = cast("requests.Response | None", cast("Any", error).response)
    text = str(cast("Any", error).message) if response is None else response.text
    with suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["error"]["message"])
    return without_queries(text).strip().rstrip(".")[:300]


def _reasons(error: api.GoogleAPICallError) -> set[object]:
    details = cast("Sequence[object]", cast("Any", error).errors)
    return {cast("Mapping[str, object]", detail).get("reason") for detail in details if isinstance(detail, Mapping)}


def _unauthenticated(what: str, error: auth.GoogleAuthError) -> TieredStoreError:
    text = without_queries(error.args[0] if error.args else error)[:300]
    if isinstance(error, auth.TransportError) or cast("Any", error).retryable:
        return StoreUnavailable(f"{what}: no token could be fetched: {text}")
    return AccessDenied(f"{what}: there are no usable credentials: {text}")
