"""Listings of a container: pages, their order, and blocks that no blob has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from azure.storage.blob import BlobProperties

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import translated
from tieredstore.backends.azure.upload import plain_etag
from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.errors import ObjectNotFound

_FIRST_SURROGATE: Final = 0xD800


def page(
    client: AzureClient, token: str | None, *, prefix: str, size: int, with_uncommitted: bool = False
) -> tuple[Sequence[BlobProperties], str | None]:
    """One page of a listing, and the token of the next one; ``with_uncommitted``: names that have only blocks too."""
    untyped: Any = client.container
    include = ["uncommittedblobs"] if with_uncommitted else None
    listing = untyped.list_blobs(name_starts_with=prefix or None, include=include, results_per_page=size)
    pages = listing.by_page(continuation_token=token)
    blobs: Sequence[BlobProperties] = list(next(pages, ()))
    following: str | None = pages.continuation_token
    return blobs, following


def object_info(blob: BlobProperties, key: str) -> ObjectInfo:
    """What an answer tells of a blob, whether a listing's entry or a HEAD."""
    modified = round(blob.last_modified.timestamp() * 1000)
    return ObjectInfo(key, blob.size or 0, plain_etag(blob.etag or "") or None, modified)


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
