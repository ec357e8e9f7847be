"""All objects below a prefix, in the order of their keys: as S3 lists them, or from servers that list by folders.

S3 lists keys in the order of their UTF-8 bytes. Servers on a tree of folders (SeaweedFS) list one folder after the
other: ``a/b`` before ``a-b``, although ``-`` comes before ``/``; and to start after ``a/b`` there is to skip ``a/b/c``.
Their folders are asked for one by one and put in order here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.backends.cloud.answers import stated, stated_size
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
            if self._order is ListingOrder.AUTO and page.is_by_folder:
                yield from self._by_folder(prefix, start_after)
                return
            for info in page.objects:
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
            entries += [info for info in page.objects if not (info.key.endswith("/") and info.etag in _NO_ETAG)]
            # SeaweedFS takes a slash off the prefix, and so names folders that are none of it.
            entries += [folder for folder in page.folders if not _is_beside(prefix, folder)]
        # Text compares by code points, and so in the order of its UTF-8 bytes.
        return sorted(entries, key=lambda entry: entry if isinstance(entry, str) else entry.key)

    def _pages(self, prefix: str, *, start_after: str = "", delimiter: str = "") -> Iterator[_Page]:
        asked: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": self._page_size}
        if delimiter:
            asked["Delimiter"] = delimiter
        first: dict[str, Any] = {"StartAfter": start_after} if start_after else {}

        def page(client: S3Client, token: str | None) -> tuple[list[_Page], str | None]:
            at: dict[str, Any] = first if token is None else {"ContinuationToken": token}
            try:
                with translated(what):
                    answer: Any = client.list_objects_v2(**asked, **at)
            except InvalidKey:
                # The server cannot hold a key that starts so, and says so.
                return [], None
            listed = _Page.of(answer)
            following = None
            if answer["IsTruncated"]:
                following = stated("the next page's token", answer["NextContinuationToken"])
            # A page without keys is none, to who waits for one that brings something new.
            return [listed] if listed.objects or listed.folders else [], following

        what = f"the keys of {self._bucket} that start with {prefix!r}"
        return self._ask(what, page)


def _is_beside(prefix: str, folder: str) -> bool:
    """Whether a folder has nothing of ``prefix``; StoreError for one that leads back up, and so round for ever."""
    if prefix.startswith(folder):
        raise StoreError(f"the store names the folder {folder!r:.200} below {prefix!r}")
    return not folder.startswith(prefix)


@dataclass(frozen=True, slots=True)
class _Page:
    """One answer to a listing, looked through."""

    objects: list[ObjectInfo]
    folders: list[str]
    is_by_folder: bool

    @classmethod
    def of(cls, answer: dict[str, Any]) -> _Page:
        server: str = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("server", "")
        return cls(
            [object_info(entry["Key"], entry["Size"], entry) for entry in answer.get("Contents", ())],
            [stated("a folder", entry["Prefix"]) for entry in answer.get("CommonPrefixes", ())],
            server.lower().startswith(_LISTS_BY_FOLDER),
        )


def object_info(key: str, size: int, metadata: Any) -> ObjectInfo:
    """What an answer tells of an object, whether a listing's entry or a HEAD."""
    modified = metadata.get("LastModified")
    # Whole seconds: HEAD knows no more, and a listing must not differ from it.
    modified_ms = None if modified is None else int(modified.timestamp()) * 1000
    return ObjectInfo(stated("the key", key), stated_size(size), metadata.get("ETag"), modified_ms)


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
    return writes, (stated("the next page's marker", answer["NextKeyMarker"]), answer.get("NextUploadIdMarker", ""))
