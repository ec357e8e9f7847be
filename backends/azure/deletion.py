"""Deleting blobs: 256 by one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import answer_error
from tieredstore.errors import ObjectNotFound, TieredStoreError


def deletion_failures(
    client: AzureClient, keys: Sequence[str], named: Callable[[str], str]
) -> Sequence[TieredStoreError]:
    """Delete a batch; an error for each key that still stands, an absent one not among them."""
    untyped: Any = client.container
    failures: list[TieredStoreError] = []
    for key, answer in zip(keys, untyped.delete_blobs(*keys, raise_on_any_failure=False), strict=True):
        if answer.status_code >= 300:
            code = answer.headers.get("x-ms-error-code") or ""
            failures.append(answer_error(named(key), answer.status_code, code, answer.reason or ""))
    return [failure for failure in failures if not isinstance(failure, ObjectNotFound)]
