"""Bytes of a blob, read from the connection by one request.

The SDK's own way reads into memory of its own, several times over, and asks again after a failure in its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from azure.core.pipeline import PipelineResponse
from azure.storage.blob import BlobClient

from tieredstore.backends.azure.upload import md5_text
from tieredstore.backends.cloud.answers import stated
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, is_whole
from tieredstore.errors import StoreError, StoreUnavailable

Result = TypeVar("Result")


def download(blob: BlobClient, what: str, start: int, stop: int | None, take: Callable[[HttpAnswer], Result]) -> Result:
    """What ``take`` makes of the answer for ``start:stop``."""
    taken: list[Result] = []

    def read(response: PipelineResponse[Any, Any]) -> None:
        answer: Any = response.http_response
        # An error is the SDK's to raise; an empty blob, which has no range, is asked for again without one.
        if answer.status_code not in {200, 206}:
            return
        headers = cast("Mapping[str, str]", answer.headers)
        try:
            # A web server's page has none.
            stated("the etag", headers.get("ETag"))
            size = answered_size(what, start, stop, headers)
            taken.append(take(HttpAnswer(size, answer.internal_response.raw, what, partial(_check_md5, what, headers))))
        except BaseException:
            answer.internal_response.close()
            raise

    untyped: Any = blob
    if start == 0 and stop is None:
        untyped.download_blob(raw_response_hook=read)
    else:
        length = None if stop is None else stop - start
        untyped.download_blob(start, length, raw_response_hook=read)
    if not taken:
        raise StoreError(f"{what}: the store sent no bytes")
    return taken[-1]


def _check_md5(what: str, headers: Mapping[str, str], data: bytes | memoryview) -> None:
    """StoreUnavailable if ``data`` is a whole blob, but not what the service's MD5 is of; it has none of many blobs."""
    expected = headers.get("x-ms-blob-content-md5") or headers.get("Content-MD5")
    if expected is None or not is_whole(headers):
        return
    if md5_text(data) != expected:
        raise StoreUnavailable(f"{what}: the blob was damaged on its way from the store")
