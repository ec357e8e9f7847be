"""Listings of a container: pages, their order, and blocks that no blob has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

from azure.core.pipeline import PipelineResponse
from azure.storage.blob import BlobProperties

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import translated
from tieredstore.backends.azure.upload import plain_etag
from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.backends.cloud.answers import breaks_off, shown_body, stated, stated_ms, stated_size
from tieredstore.backends.cloud.errors import MalformedAnswer
from tieredstore.errors import ObjectNotFound

_ROOT: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?(?:<\?xml[^>]*>)?\s*<EnumerationResults[\s>]")
_MARKER: Final = re.compile(rb"<NextMarker\s*/?>")
_FIRST_SURROGATE: Final = 0xD800


def page(
    client: AzureClient, token: str | None, *, prefix: str, size: int, with_uncommitted: bool = False
) -> tuple[Sequence[BlobProperties], str | None]:
    """One page of a listing, and the token of the next one; ``with_uncommitted``: names that have only blocks too."""
    untyped: Any = client.container
    include = ["uncommittedblobs"] if with_uncommitted else None
    listing = untyped.list_blobs(
        name_starts_with=prefix or None, include=include, results_per_page=size, raw_response_hook=_check_document
    )
    pages = listing.by_page(continuation_token=token)
    blobs: Sequence[BlobProperties] = list(next(pages))
    for blob in blobs:
        stated("the name", blob.name)
    following: str | None = pages.continuation_token
    return blobs, following


def info_page(
    client: AzureClient, token: str | None, *, prefix: str, size: int
) -> tuple[Sequence[ObjectInfo], str | None]:
    """One page of objects, and the token of the next one."""
    blobs, following = page(client, token, prefix=prefix, size=size)
    return [object_info(blob, blob.name or "") for blob in blobs], following


def listing_date(client: AzureClient) -> str | None:
    """The ``Date`` of a listing of one blob."""
    dates: list[str | None] = []

    def note(response: PipelineResponse[Any, Any]) -> None:
        _check_document(response)
        answer: Any = response.http_response
        dates.append(answer.headers.get("Date"))

    untyped: Any = client.container
    next(untyped.list_blobs(results_per_page=1, raw_response_hook=note).by_page())
    return dates[-1]


def _check_document(response: PipelineResponse[Any, Any]) -> None:
    """MalformedAnswer for a success that is not a page of a listing: the SDK takes any XML for an empty one."""
    answer: Any = response.http_response
    body: bytes = answer.body()
    if answer.status_code >= 300 or breaks_off(body):
        return
    if _ROOT.match(body[:4096]) is None or (b"</EnumerationResults>" in body and _MARKER.search(body) is None):
        raise MalformedAnswer(
            f"the store answered to a listing with status {answer.status_code} and {shown_body(body)}, which is no "
            "page of one"
        )


def object_info(blob: BlobProperties, key: str) -> ObjectInfo:
    """What an answer tells of a blob, whether a listing's entry or a HEAD."""
    modified_ms = stated_ms(cast("object", blob.last_modified))
    return ObjectInfo(key, stated_size(blob.size), plain_etag(blob.etag or "") or None, modified_ms)


def abandoned_at(client: AzureClient, blob: BlobProperties) -> AbandonedWrite | None:
    """The blocks of a name that no list has made a blob of; None if there are none, or if there is a blob."""
    name = blob.name or ""
    untyped: Any = client.blob(name)
    try:
        with translated(name):
            committed, uncommitted = untyped.get_block_list("all")
    except ObjectNotFound:
        return None
    if committed or not uncommitted:
        return None
    # The SDK's type has it always; of a name without a blob not every server tells it.
    modified: Any = blob.last_modified
    started_ms = None if modified is None else round(modified.timestamp() * 1000)
    return AbandonedWrite(name, sum(block.size for block in uncommitted), started_ms, name, removable=False)


def in_key_order(infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """A listing in the order of UTF-8, of one in that or in the order of UTF-16, which Azurite and .NET sort by.

    The two differ only in what follows a key's first character from U+D800 on, and keys that are alike up to there come
    one after the other in both: so only these are held together.
    """
    for _, alike in groupby(infos, key=lambda info: _before_surrogates(info.key)):
        yield from sorted(alike, key=lambda info: info.key)


def _before_surrogates(key: str) -> str:
    """``key`` up to its first character that UTF-16 and UTF-8 may sort differently."""
    at = next((at for at, character in enumerate(key) if ord(character) >= _FIRST_SURROGATE), len(key))
    return key[:at]
