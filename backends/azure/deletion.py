"""Deleting blobs: 256 by one request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from azure.core.pipeline import PipelineResponse

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import answer_error
from tieredstore.backends.cloud.errors import MalformedAnswer
from tieredstore.errors import ObjectNotFound, TieredStoreError

_NUMBER: Final = re.compile(rb"^Content-ID:\s*(\d{1,9})\s*$", re.IGNORECASE | re.MULTILINE)


def deletion_failures(
    client: AzureClient, keys: Sequence[str], named: Callable[[str], str]
) -> Sequence[TieredStoreError]:
    """Delete a batch; an error for each key that still stands, an absent one not among them."""
    untyped: Any = client.container
    failures: list[TieredStoreError] = []
    check = partial(_check_numbers, len(keys))
    answers = list(untyped.delete_blobs(*keys, raise_on_any_failure=False, raw_response_hook=check))
    for key, answer in zip(keys, answers, strict=True):
        if answer.status_code >= 300:
            code = answer.headers.get("x-ms-error-code") or ""
            failures.append(answer_error(named(key), answer.status_code, code, answer.reason or ""))
    return [failure for failure in failures if not isinstance(failure, ObjectNotFound)]


def _check_numbers(count: int, response: PipelineResponse[Any, Any]) -> None:
    """MalformedAnswer unless each request of the batch has its answer, in their order, by which the SDK goes."""
    answer: Any = response.http_response
    if answer.status_code >= 300:
        return
    body: bytes = answer.body()
    numbers = [int(number) for number in _NUMBER.findall(body)]
    if numbers and numbers != list(range(count)):
        raise MalformedAnswer(
            f"the store answered to {count} deletions of a batch with answers to the numbers {numbers!r:.200}"
        )
