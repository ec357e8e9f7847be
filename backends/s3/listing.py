"""All objects below a prefix, in the order of their keys: as S3 lists them, or from servers that list by folders.

S3 lists keys in the order of their UTF-8 bytes. Servers on a tree of folders (SeaweedFS) list one folder after the
other: ``a/b`` before ``a-b``, although ``-`` comes before ``/``; and to start after ``a/b`` there is to skip ``a/b/c``.
Their folders are asked for one by one and put in order here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.backends.s3.errors import translated
from tieredstore.backends.s3.options import ListingOrder, S3Options
from tieredstore.errors import InvalidKey, StoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_LISTS_BY_FOLDER: Final = ("seaweedfs",)
"""What the ``Server`` header of such servers starts with."""

Item = TypeVar("Item")
Token = TypeVar("Token")

_NO_ETAG: Final = frozenset({None, "", '""'})


class Pages(Protocol):
    """``CloudStore.pages``."""

    def __call__(
        self, what: str, page: Callable[[S3Client, Token | None], tuple[Sequence[Item], Token | None]]
    ) -> Iterator[Item]:
        """The items of all pages, lazily."""
        ...


class Listing:
    """One listing of a bucket; lazy, page by page. ``pages`` is the store's."""

    def __init__(self, options: S3Options, pages: Pages) -> None:
        self._bucket = options.bucket
        self._page_size = options.page_size
        self._order = options.listing_order
        self._ask = pages

    def objects(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """The objects below ``prefix`` after ``start_after``, by their UTF-8 bytes; servers may give others too."""
        if self._order is ListingOrder.BY_FOLDER:
            return self._by_folder(prefix, start_after)
        return self._by_key(prefix, start_after)

    def _by_key(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        last = ""
        for page in self._pages(prefix, start_after=start_after):
            if self._order is ListingOrder.AUTO and _is_by_folder(page):
                yield from self._by_folder(prefix, start_after)
                return
            for info in _objects(page):
                if info.key <= last:
                    raise StoreError(
                        f"the store lists {info.key!r} after {last!r}, which is not the order of S3; if it "
                        "lists one folder after the other, say so by the option listing_order"
                    )
                last = info.key
                yield info

    def _by_folder(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Holds the names of one folder, and of those that lead there, in memory."""
        levels = [iter(self._folder(prefix))]
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
            elif isinstance(entry, ObjectInfo):
                yield entry
            elif entry > start_after or start_after.startswith(entry):
                levels.append(iter(self._folder(entry)))

    def _folder(self, prefix: str) -> list[ObjectInfo | str]:
        """The objects and the folders (as text that ends in ``/``) of one level, sorted."""
        entries: list[ObjectInfo | str] = []
        for page in self._pages(prefix, delimiter="/"):
            # A folder that is empty now lists itself, without an etag.
            entries += [info for info in _objects(page) if not (info.key.endswith("/") and info.etag in _NO_ETAG)]
            entries += [_folder_below(prefix, entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
        # Text compares by code points, and so in the order of its UTF-8 bytes.
        return sorted(entries, key=lambda entry: entry if isinstance(entry, str) else entry.key)

    def _pages(self, prefix: str, *, start_after: str = "", delimiter: str = "") -> Iterator[dict[str, Any]]:
        asked: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": self._page_size}
        if delimiter:
            asked["Delimiter"] = delimiter
        first: dict[str, Any] = {"StartAfter": start_after} if start_after else {}

        def page(client: S3Client, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
            at: dict[str, Any] = first if token is None else {"ContinuationToken": token}
            try:
                with translated(what):
                    answer: Any = client.list_objects_v2(**asked, **at)
            except InvalidKey:
                # The server cannot hold a key that starts so, and says so.
                return [], None
            following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
            # A page without keys is none, to who waits for one that brings something new.
            return [answer] if _has_entries(answer) else [], following

        what = f"the keys of {self._bucket} that start with {prefix!r}"
        return self._ask(what, page)


def _folder_below(prefix: str, folder: str) -> str:
    """``folder``, which an answer names below ``prefix``; another one would be gone into for ever."""
    if len(folder) <= len(prefix) or not folder.startswith(prefix):
        raise StoreError(f"the store names the folder {folder!r:.200} below {prefix!r}")
    return folder


def _has_entries(page: dict[str, Any]) -> bool:
    return bool(page.get("Contents") or page.get("CommonPrefixes"))


def _is_by_folder(page: dict[str, Any]) -> bool:
    server: str = page["ResponseMetadata"].get("HTTPHeaders", {}).get("server", "")
    return server.lower().startswith(_LISTS_BY_FOLDER)


def _objects(page: dict[str, Any]) -> list[ObjectInfo]:
    return [object_info(entry["Key"], entry["Size"], entry) for entry in page.get("Contents", ())]


def object_info(key: str, size: int, metadata: Any) -> ObjectInfo:
    """What an answer tells of an object, whether a listing's entry or a HEAD."""
    modified = metadata.get("LastModified")
    # Whole seconds: HEAD knows no more, and a listing must not differ from it.
    return ObjectInfo(key, size, metadata.get("ETag"), None if modified is None else int(modified.timestamp()) * 1000)


def abandoned_page(
    client: S3Client, bucket: str, prefix: str, markers: tuple[str, str] | None
) -> tuple[list[AbandonedWrite], tuple[str, str] | None]:
    """One page of unfinished uploads, and the markers of the next one."""
    at: Any = {} if markers is None else {"KeyMarker": markers[0], "UploadIdMarker": markers[1]}
    answer: Any = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **at)
    writes = [
        AbandonedWrite(entry["Key"], None, int(entry["Initiated"].timestamp() * 1000), entry["UploadId"])
        for entry in answer.get("Uploads", ())
    ]
    if not answer.get("IsTruncated"):
        return writes, None
    return writes, (answer.get("NextKeyMarker", ""), answer.get("NextUploadIdMarker", ""))
