"""All objects below a prefix, in the order of their keys: as S3 lists them, or from servers that list by folders.

S3 lists keys in the order of their UTF-8 bytes. Servers on a tree of folders (SeaweedFS) list one folder after the
other: ``a/b`` before ``a-b``, although ``-`` comes before ``/``; and to start after ``a/b`` there is to skip ``a/b/c``.
Their folders are asked for one by one and put in order here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.errors import InvalidKey, StoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_LISTS_BY_FOLDER: Final = ("seaweedfs",)
"""What the ``Server`` header of such servers starts with."""

_NO_ETAG: Final = frozenset({None, "", '""'})

Call = Callable[[str, Callable[["S3Client"], Any]], Any]


class ListingOrder(enum.Enum):
    """In which order a server lists. ``AUTO``: by folder if the server's name is known for it, by key otherwise."""

    AUTO = "auto"
    BY_KEY = "by-key"
    BY_FOLDER = "by-folder"


class Listing:
    """One listing of a bucket; lazy, page by page. ``call`` runs a request with the store's retries."""

    def __init__(self, bucket: str, call: Call, order: ListingOrder) -> None:
        self._bucket = bucket
        self._call = call
        self._order = order

    def objects(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """The objects whose key starts with ``prefix`` and is greater than ``start_after``, by their UTF-8 bytes."""
        after = b"" if start_after is None else start_after.encode()
        if self._order is ListingOrder.BY_FOLDER:
            found = self._by_folder(prefix, after)
        else:
            found = self._by_key(prefix, start_after or "", after)
        # Some servers look at neither as S3 does.
        return (info for info in found if info.key.startswith(prefix) and info.key.encode() > after)

    def _by_key(self, prefix: str, start_after: str, after: bytes) -> Iterator[ObjectInfo]:
        last = b""
        for page in self._pages(prefix, start_after=start_after):
            if self._order is ListingOrder.AUTO and _is_by_folder(page):
                yield from self._by_folder(prefix, after)
                return
            for info in _objects(page):
                key = info.key.encode()
                if key <= last:
                    raise StoreError(
                        f"the store lists {info.key!r} after {last.decode()!r}, which is not the order of S3; if it "
                        "lists one folder after the other, say so by the option listing_order"
                    )
                last = key
                yield info

    def _by_folder(self, prefix: str, after: bytes) -> Iterator[ObjectInfo]:
        """Holds the names of one folder, and of those that lead there, in memory."""
        levels = [iter(self._folder(prefix))]
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
            elif isinstance(entry, ObjectInfo):
                yield entry
            elif entry.encode() > after or after.startswith(entry.encode()):
                levels.append(iter(self._folder(entry)))

    def _folder(self, prefix: str) -> list[ObjectInfo | str]:
        """The objects and the folders (as text that ends in ``/``) of one level, sorted."""
        found: list[ObjectInfo | str] = []
        for page in self._pages(prefix, delimiter="/"):
            # A folder that is empty now lists itself, without an etag.
            found += [info for info in _objects(page) if not (info.key.endswith("/") and info.etag in _NO_ETAG)]
            found += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
        return sorted(found, key=lambda entry: (entry if isinstance(entry, str) else entry.key).encode())

    def _pages(self, prefix: str, *, start_after: str = "", delimiter: str = "") -> Iterator[dict[str, Any]]:
        asked: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix}
        if start_after:
            asked["StartAfter"] = start_after
        if delimiter:
            asked["Delimiter"] = delimiter
        while True:
            try:
                page: dict[str, Any] = self._call(f"listing {prefix!r}", lambda client: client.list_objects_v2(**asked))
            except InvalidKey:
                # The server cannot hold a key that starts so, and says so.
                return
            yield page
            if not page.get("IsTruncated") or "NextContinuationToken" not in page:
                return
            asked.pop("StartAfter", None)
            asked["ContinuationToken"] = page["NextContinuationToken"]


def _is_by_folder(page: dict[str, Any]) -> bool:
    server: str = page["ResponseMetadata"].get("HTTPHeaders", {}).get("server", "")
    return server.lower().startswith(_LISTS_BY_FOLDER)


def _objects(page: dict[str, Any]) -> list[ObjectInfo]:
    return [object_info(entry["Key"], entry["Size"], entry) for entry in page.get("Contents", ())]


def object_info(key: str, size: int, found: Any) -> ObjectInfo:
    """What an answer tells of an object, whether a listing's entry or a HEAD."""
    modified = found.get("LastModified")
    # Whole seconds: HEAD knows no more, and a listing must not differ from it.
    return ObjectInfo(key, size, found.get("ETag"), None if modified is None else int(modified.timestamp()) * 1000)
