"""Amazon S3 and compatible stores, by boto3 (extra ``s3``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tieredstore.backends.base import AbandonedWrite, ObjectInfo, Prepared
from tieredstore.backends.cloud.answers import require_ms, require_size, require_text
from tieredstore.backends.cloud.errors import NotSupportedError
from tieredstore.backends.cloud.store import CloudStore, Service
from tieredstore.backends.contract.checks import checked_key
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, range_header
from tieredstore.backends.s3.client import describe_credentials, open_client
from tieredstore.backends.s3.errors import error_of, translate_errors
from tieredstore.backends.s3.lifecycle import S3Lifecycle, rule_sentences
from tieredstore.backends.s3.options import ListingOrder, S3Options
from tieredstore.backends.s3.upload import S3Upload, abort_upload
from tieredstore.backends.s3.versions import S3Versions, kept_sentences
from tieredstore.errors import AccessDeniedError, InvalidKeyError, StoreError, TieredStoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client, type_defs

    from tieredstore.backends.http.body import RawBody

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class S3BucketClient:
    """One process's client of one bucket. Thread-safe."""

    sdk: S3Client
    options: S3Options

    def close(self) -> None:
        """Close all connections."""
        self.sdk.close()

    def read(self, key: str, start: int, stop: int | None, take: Callable[[HttpAnswer], Result], what: str) -> Result:
        """Request ``start:stop``; return the result of ``take``."""
        asked: type_defs.GetObjectRequestTypeDef = {"Bucket": self.options.bucket, "Key": key}
        if header := range_header(start, stop):
            asked["Range"] = header["Range"]
        response = self.sdk.get_object(**asked)
        body = response["Body"]
        try:
            # Require an etag, because a page of a web server or proxy, sent in place of the object, has none.
            require_text("the etag", response["ETag"])
            size = answered_size(what, start, stop, response["ResponseMetadata"]["HTTPHeaders"])
            # To save copies, read below the SDK's own body, unless that body verifies a checksum.
            is_plain = type(body).__name__ == "StreamingBody"
            raw = cast("RawBody", getattr(body, "_raw_stream", body) if is_plain else body)
            return take(HttpAnswer(size, raw, what))
        finally:
            # Closing has no effect on a body that was read to its end, because such a body has already released the
            # connection.
            body.close()

    def head(self, key: str) -> ObjectInfo:
        """Return one object's metadata."""
        metadata = self.sdk.head_object(Bucket=self.options.bucket, Key=key)
        return object_info(key, metadata["ContentLength"], metadata)

    def check_bucket(self) -> None:
        """Raise ObjectNotFoundError if the bucket does not exist."""
        with suppress(NotSupportedError), translate_errors(self.options.url):
            self.sdk.head_bucket(Bucket=self.options.bucket)

    def date(self) -> str | None:
        """Return the ``Date`` header of a listing of one key."""
        answer = self.sdk.list_objects_v2(Bucket=self.options.bucket, MaxKeys=1)
        return answer["ResponseMetadata"]["HTTPHeaders"].get("date")


def _check_key(key: str) -> None:
    # HTTP clients and servers resolve the components ``.`` and ``..``, and would access another object. A URL cannot
    # contain a NUL.
    checked_key(key)
    if "\0" in key or any(part in {".", ".."} for part in key.split("/")):
        raise InvalidKeyError(f"the key {key!r} has a component . or .., or a NUL: S3 cannot address it reliably")


class S3ObjectStore(CloudStore[S3BucketClient, S3Options]):
    """Objects in one bucket. The etag of an object is S3's own.

    A body below ``part_size`` takes one PUT. A longer body takes a multipart upload; on failure the upload is aborted.
    A killed process leaves parts: ``abandoned_writes`` shows them, and a lifecycle rule can remove them.

    Without permission to list the bucket, S3 answers "access denied" for an absent key. The store then raises
    AccessDeniedError.
    """

    service = Service(
        read_options=S3Options.from_settings,
        identity=lambda options: options.url,
        open_client=lambda options: S3BucketClient(open_client(options), options),
        translate_errors=translate_errors,
        check_key=_check_key,
        # An empty text would be no condition, and a star would match every object.
        is_etag=lambda text: text not in {"", "*"},
        kept=kept_sentences,
        rules=rule_sentences,
        caller=lambda client: describe_credentials(client.options),
        upload=S3Upload,
        # ``replace`` writes a buffer, such as shared state, by one PUT, because all servers support If-Match for a PUT.
        # Some do not support it for the completion of a multipart upload.
        replaces_whole=True,
    )

    def lifecycle(self) -> S3Lifecycle:
        """Return the bucket's lifecycle rules. A change replaces all rules, and S3 cannot make it conditional."""
        return S3Lifecycle(self)

    def versions(self) -> S3Versions:
        """Return the versions of the bucket's objects; only the current ones if the bucket never had versioning."""
        return S3Versions(self)

    def _by_key(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix, start_after=start_after):
            if self.options.listing_order is ListingOrder.AUTO and page.is_by_folder:
                yield from self._by_folder(prefix, start_after)
                return
            yield from page.objects

    def _by_folder(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """List objects folder by folder. Memory holds the names in the current folder and in its parents."""
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
        """Return the objects and the folders (as text that ends in ``/``) of one level, sorted."""
        entries: list[ObjectInfo | str] = []
        for page in self._pages(prefix, delimiter="/"):
            # Some servers list an emptied folder. So leave out the entry of the listed folder itself, which has no
            # etag.
            entries += [info for info in page.objects if not (info.key.endswith("/") and info.etag in _NO_ETAG)]
            # SeaweedFS strips a slash off the prefix, so it also returns folders outside of the prefix.
            entries += [folder for folder in page.folders if not _is_beside(prefix, folder)]
        # Stores sort by UTF-8 bytes. Python compares text by code points, which gives the same order.
        return sorted(entries, key=lambda entry: entry if isinstance(entry, str) else entry.key)

    def _pages(self, prefix: str, *, start_after: str = "", delimiter: str = "") -> Iterator[_Page]:
        what = f"listing {self.options.bucket}{f' under {prefix!r}' if prefix else ''}"

        def page(token: str | None, client: S3BucketClient) -> tuple[list[_Page], str | None]:
            asked: type_defs.ListObjectsV2RequestTypeDef = {"Bucket": self.options.bucket, "Prefix": prefix}
            asked["MaxKeys"] = self.options.page_size
            if delimiter:
                asked["Delimiter"] = delimiter
            if token is not None:
                asked["ContinuationToken"] = token
            elif start_after:
                asked["StartAfter"] = start_after
            try:
                with translate_errors(what):
                    answer = client.sdk.list_objects_v2(**asked)
            except InvalidKeyError:
                # The server refuses the prefix because no key can start with it, so the listing is empty.
                return [], None
            listed = _Page.of(answer)
            following = None
            if answer["IsTruncated"]:
                following = require_text("the next page's token", answer["NextContinuationToken"])
            # Return no item for a page without keys, because such a page must not count as progress.
            return [listed] if listed.objects or listed.folders else [], following

        return self.pages(what, page)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects with one request per page; with ``ListingOrder.BY_FOLDER``, per page of each folder."""
        is_by_folder = self.options.listing_order is ListingOrder.BY_FOLDER
        infos = (self._by_folder if is_by_folder else self._by_key)(prefix, start_after or "")
        hint = "; if the store lists folder by folder, set storage.s3.listing.order"
        return self.check_listing(infos, prefix, start_after, hint)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete up to 1,000 keys with one request; key by key on a server without bulk deletes."""
        has_bulk = True
        parallelism, stall = self.options.upload_parallelism, self.stall()

        def delete_batch(batch: Sequence[str]) -> Sequence[TieredStoreError]:
            nonlocal has_bulk
            in_bulk = [key for key in batch if has_bulk and not _NOT_FOR_XML.search(key)]
            failures: list[TieredStoreError] = []
            if in_bulk:
                try:
                    failures += self.delete_together(in_bulk, _delete_objects)
                except NotSupportedError:
                    has_bulk = False
            by_url = [key for key in batch if not has_bulk or _NOT_FOR_XML.search(key)]
            return [*failures, *self.delete_singly(by_url, _delete_object, parallelism, stall)]

        self.delete_batches(keys, delete_batch)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Yield the unfinished multipart uploads, including live ones; S3 does not return their sizes here.

        MinIO supports only two prefixes: a whole key, and the empty prefix. With the empty prefix, MinIO lists the
        uploads that began since the server started. So if a prefix gives no upload, list the uploads of the whole
        bucket.
        """
        is_any = False
        for write in self._uploads(prefix):
            is_any = True
            yield write
        if prefix and not is_any:
            with suppress(AccessDeniedError):  # without permission to list the whole bucket, keep the result so far
                yield from (write for write in self._uploads("") if write.key.startswith(prefix))

    def _uploads(self, prefix: str) -> Iterator[AbandonedWrite]:
        uploads = self.pages(self.identity, lambda at, client: abandoned_page(client, prefix, at))
        return (write for write in uploads if write.key.startswith(prefix))

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Abort the upload. If its writer is alive, the write fails."""
        upload_id = write.place if isinstance(write, Prepared) else write.id
        what = self.name_object(write.key)
        return self.call("abort", what, lambda client: abort_upload(client, write.key, upload_id))


_LISTS_BY_FOLDER: Final = ("seaweedfs",)
"""Start of the ``Server`` header of servers that list by folder."""

_NO_ETAG: Final = frozenset({None, "", '""'})


def _is_beside(prefix: str, folder: str) -> bool:
    """Return True if no key in ``folder`` begins with ``prefix``.

    Raise StoreError if ``folder`` is ``prefix`` itself or a folder above it. Otherwise the listing of such a folder
    would name the folder again, and the recursion would not end.
    """
    if prefix.startswith(folder):
        raise StoreError(f"the store's listing of {prefix!r} names the folder {folder!r:.200}, which is not below it")
    return not folder.startswith(prefix)


@dataclass(frozen=True, slots=True)
class _Page:
    """One parsed answer to a listing."""

    objects: list[ObjectInfo]
    folders: list[str]
    is_by_folder: bool

    @classmethod
    def of(cls, answer: type_defs.ListObjectsV2OutputTypeDef) -> _Page:
        server = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("server", "")
        return cls(
            [object_info(entry.get("Key"), entry.get("Size"), entry) for entry in answer.get("Contents", ())],
            [require_text("a folder", entry.get("Prefix")) for entry in answer.get("CommonPrefixes", ())],
            server.lower().startswith(_LISTS_BY_FOLDER),
        )


def object_info(
    key: str | None, size: int | None, metadata: type_defs.ObjectTypeDef | type_defs.HeadObjectOutputTypeDef
) -> ObjectInfo:
    """Convert a listing's entry, or the answer to a HEAD, to an ``ObjectInfo``."""
    modified = metadata.get("LastModified")
    # Round down to seconds, because a HEAD gives only seconds. A listing must give the same time as a HEAD.
    modified_ms = None if modified is None else int(modified.timestamp()) * 1000
    return ObjectInfo(require_text("the key", key), require_size(size), metadata.get("ETag"), modified_ms)


def abandoned_page(
    client: S3BucketClient, prefix: str, markers: tuple[str, str] | None
) -> tuple[list[AbandonedWrite], tuple[str, str] | None]:
    """Return one page of unfinished uploads, and the markers that the request for the next page must send."""
    asked: type_defs.ListMultipartUploadsRequestTypeDef = {"Bucket": client.options.bucket, "Prefix": prefix}
    if markers is not None:
        asked["KeyMarker"], asked["UploadIdMarker"] = markers
    answer = client.sdk.list_multipart_uploads(**asked)
    writes = [
        AbandonedWrite(
            key=require_text("the key", entry.get("Key")),
            size=None,
            started_ms=require_ms(entry.get("Initiated")),
            id=require_text("the upload's id", entry.get("UploadId")),
        )
        for entry in answer.get("Uploads", ())
    ]
    if not answer.get("IsTruncated"):
        return writes, None
    marker = require_text("the next page's marker", answer["NextKeyMarker"])
    return writes, (marker, answer.get("NextUploadIdMarker", ""))


# Keys with these characters are deleted by URL, one by one. A bulk delete cannot be used for them, because its XML
# cannot contain some of these characters. A parser may change the rest.
_NOT_FOR_XML: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


def _delete_object(client: S3BucketClient, key: str) -> object:
    return client.sdk.delete_object(Bucket=client.options.bucket, Key=key)


def _delete_objects(client: S3BucketClient, keys: Sequence[str]) -> dict[str, TieredStoreError]:
    objects: list[type_defs.ObjectIdentifierTypeDef] = [{"Key": key} for key in keys]
    answer = client.sdk.delete_objects(Bucket=client.options.bucket, Delete={"Objects": objects, "Quiet": True})
    entries = [entry for entry in answer.get("Errors", ()) if entry.get("Code") != "NoSuchKey"]
    return {entry.get("Key", ""): _error_of_entry(entry) for entry in entries}


def _error_of_entry(entry: type_defs.ErrorTypeDef) -> TieredStoreError:
    # An entry of a bulk delete has no status. With status 0, an unknown code becomes a plain StoreError.
    return error_of(f"deleting {entry.get('Key')!r}", str(entry.get("Code", "?")), str(entry.get("Message", "")), 0)
