"""Writes of single objects to S3: a body below the part size by one PUT, a larger one by a multipart upload.

This module is separate from the store, its only user, because one file for both would exceed 600 lines.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypedDict, cast

import crc32c

from tieredstore.backends.cloud.answers import require_size, require_text
from tieredstore.backends.cloud.errors import MalformedAnswerError, PartsGoneError
from tieredstore.backends.cloud.upload import WRITE_MARK, Condition, Stored, Upload
from tieredstore.backends.cloud.upload_parts import Part, PartCutter, send_parts
from tieredstore.backends.http.sockets import PIECE_BYTES, check_deadline, note_sent
from tieredstore.backends.s3.errors import translate_errors
from tieredstore.backends.s3.options import Compatibility, S3Options
from tieredstore.backends.values import Prepared
from tieredstore.errors import ObjectNotFoundError, StoreError

if TYPE_CHECKING:
    from types_boto3_s3.literals import ChecksumAlgorithmType, StorageClassType
    from types_boto3_s3.type_defs import CompletedPartTypeDef

    from tieredstore.backends.s3.store import S3BucketClient

_logger: Final = logging.getLogger(__name__)

_ABORTS: Final = 3
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class PartBody(io.RawIOBase):
    """A part of an upload in the form of a file, as the SDK requires. The part's bytes are not copied. The SDK can send
    the part again from the start.

    The part is sent in small pieces. The network timeout begins again with each piece, and the deadline is checked
    between pieces.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        super().__init__()
        self._data = data
        self._what = what
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = -1, /) -> Any:
        """Return the next bytes as a view, possibly more than ``size``."""
        # The sender requests the next piece only after it has sent the previous pieces, so count these as sent.
        note_sent(self._position)
        check_deadline(self._what)
        # Return more than the 16 KiB that http.client requests, because http.client sends everything it gets, and
        # larger pieces save processor time.
        stop = len(self._data) if size is None or size < 0 else self._position + max(size, PIECE_BYTES)
        piece = self._data[self._position : stop]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """See :class:`io.RawIOBase`."""
        base = (0, self._position, len(self._data))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """See :class:`io.RawIOBase`."""
        return self._position

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True


def sendable(data: memoryview, what: str) -> Any:
    """Return ``data`` in the form that the SDK should send. A small body is sent as bytes: before the SDK sends a file,
    it waits for a "100-continue".
    """
    return bytes(data) if len(data) <= PIECE_BYTES else PartBody(data, what)


_Sent: TypeAlias = tuple[str, str]
"""Etag and checksum of a sent part; the checksum is empty if the request had none. ``Prepared.parts`` has them as
text."""


class _Target(TypedDict):
    Bucket: str
    Key: str


class _Attributes(TypedDict, total=False):
    Metadata: dict[str, str]
    StorageClass: StorageClassType
    ChecksumAlgorithm: ChecksumAlgorithmType


class _Checksum(TypedDict, total=False):
    ChecksumCRC32C: str


class _Headers(TypedDict, total=False):
    IfMatch: str
    IfNoneMatch: str


class S3Upload(Upload["S3BucketClient", S3Options]):
    """One write to S3. S3 checks the condition of a multipart upload when the upload is completed."""

    # Do not check the condition before the upload, because a late refusal wastes one transfer, but a HEAD would slow
    # down every upload.
    looks_first: ClassVar = False

    def write_whole(self, data: memoryview) -> str:
        """Write by one PUT."""
        about, checksum, headers = self._about_object(), self._checksum(data), _headers(self.condition)

        def send(client: S3BucketClient) -> Stored:
            body = sendable(data, self.what)
            answer = client.sdk.put_object(**self._target(), **about, **checksum, **headers, Body=body)
            etag = require_text("the etag", answer["ETag"])
            # One of two things proves that the server has the bytes: our checksum, or an etag that is the MD5 of the
            # bytes. Other etags, such as those of encrypted objects, prove nothing.
            is_proved = bool(checksum) and answer.get("ChecksumCRC32C") == checksum.get("ChecksumCRC32C")
            if not is_proved and not _is_md5_of(data, etag):
                raise MalformedAnswerError(f"{self.what}: the store answered with an etag of {etag!r:.80}")
            return Stored(etag)

        return self.finish(send, len(data), lambda _, stored: _is_md5_of(data, stored.etag)).etag

    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Write the object by a multipart upload; abort that upload on failure."""
        with self._multipart_upload() as upload_id:
            sent = send_parts(
                cutter, lambda part: self._send(upload_id, part), self.options.upload_parallelism, first=first
            )
            stored = self._complete(upload_id, [part for part, _ in sent], sum(size for _, size in sent))
        if stored.is_earlier and self.is_shared:
            # An earlier attempt has made the object, so the parts of this upload are not needed.
            self._abort(upload_id)
        return stored.etag

    def prepare(self, cutter: PartCutter, staging_prefix: str) -> tuple[str, tuple[str, ...]]:  # noqa: ARG002  parts are hidden
        """Send all parts of a multipart upload without completing it; abort it on failure."""
        with self._multipart_upload() as upload_id:
            sent = send_parts(cutter, lambda part: self._send(upload_id, part), self.options.upload_parallelism)
        return upload_id, tuple(" ".join(filter(None, part)) for part, _ in sent)

    def publish(self, prepared: Prepared) -> None:
        """Complete the multipart upload."""
        parts = [(etag, checksum) for etag, _, checksum in (text.partition(" ") for text in prepared.parts)]
        self._complete(prepared.place, parts, prepared.size, is_publication=True)

    def look_up(self, client: S3BucketClient) -> Stored:
        """Read etag, size, and the mark of the write that made the object (see ``WRITE_MARK``), by a HEAD request."""
        metadata = client.sdk.head_object(**self._target())
        size = require_size(metadata["ContentLength"])
        return Stored(metadata["ETag"], size, mark=metadata["Metadata"].get(WRITE_MARK))

    def delete_unchanged(self, client: S3BucketClient, etag: str) -> None:
        """Delete the object if it still has the etag and the server supports the condition."""
        client.sdk.delete_object(**self._target(), IfMatch=etag)

    @contextmanager
    def _multipart_upload(self) -> Generator[str]:
        """Begin a multipart upload. Abort it if the block fails, or on an interrupt right after the server's answer."""
        about, begun = self._about_object(), list[str]()
        if self._sends_checksums:
            about["ChecksumAlgorithm"] = "CRC32C"

        def begin(client: S3BucketClient) -> None:
            answer = client.sdk.create_multipart_upload(**self._target(), **about)
            begun.append(require_text("the upload's id", answer["UploadId"]))

        try:
            self.step(begin)
            yield begun[-1]
        except BaseException:
            for upload_id in begun:
                self._abort(upload_id)
            raise

    def _send(self, upload_id: str, part: Part) -> tuple[_Sent, int]:
        """Send a part; return its etag and checksum, and its size."""
        number = part.number + 1
        what = f"{self.what}, part {number}"
        checksum = self._checksum(part.data)

        def send(client: S3BucketClient) -> str:
            body = sendable(part.data, what)
            answer = client.sdk.upload_part(
                **self._target(), **checksum, UploadId=upload_id, PartNumber=number, Body=body
            )
            return require_text("the etag", answer["ETag"])

        return (self.step(send, what), checksum.get("ChecksumCRC32C", "")), len(part.data)

    def _complete(self, upload_id: str, parts: Sequence[_Sent], size: int, *, is_publication: bool = False) -> Stored:
        etags = [etag for etag, _ in parts]
        entries = [_part_entry(number, *part) for number, part in enumerate(parts, 1)]

        def send(client: S3BucketClient) -> Stored:
            answer = client.sdk.complete_multipart_upload(
                **self._target(), **_headers(self.condition), UploadId=upload_id, MultipartUpload={"Parts": entries}
            )
            etag = require_text("the etag", answer["ETag"])
            if not is_of_parts(etags, etag):
                raise MalformedAnswerError(f"{self.what}: the store answered with an etag of {etag!r:.80}")
            return Stored(etag)

        return self.finish(send, size, lambda _, stored: is_of_parts(etags, stored.etag), is_publication=is_publication)

    def _abort(self, upload_id: str) -> None:
        """Abort the upload. Only log a failure, because the original error is raised afterwards."""
        where = (self.key, upload_id)
        try:
            # Abort until no part is left, because the server may still be writing parts whose answers were lost. Use
            # a new deadline, because the upload's deadline may have passed.
            deadline = self.store.retries.deadline()
            for _ in range(_ABORTS):
                self.store.call("abort", self.what, lambda client: abort_upload(client, *where), deadline=deadline)
                if self.store.call("abort", self.what, lambda client: _is_gone(client, *where), deadline=deadline):
                    return
            _logger.warning("%s: parts of upload %s are still there", self.what, upload_id)
        except StoreError as error:
            _logger.warning(
                "%s: parts of upload %s may stay until a lifecycle rule removes them: %s", self.what, upload_id, error
            )

    @property
    def _sends_checksums(self) -> bool:
        return self.options.compatibility is Compatibility.AWS

    def _target(self) -> _Target:
        return {"Bucket": self.options.bucket, "Key": self.key}

    def _about_object(self) -> _Attributes:
        about: _Attributes = {"Metadata": {WRITE_MARK: self.mark}}
        if self.options.storage_class != "STANDARD":
            # A server may have storage classes that the SDK does not know; the SDK sends any name.
            about["StorageClass"] = cast("StorageClassType", self.options.storage_class)
        return about

    def _checksum(self, data: memoryview) -> _Checksum:
        if not self._sends_checksums:
            return {}
        return {"ChecksumCRC32C": base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode("ascii")}


def _is_md5_of(data: memoryview, etag: str) -> bool:
    """Return True if the etag is the MD5 of the bytes, as after one PUT without encryption."""
    return etag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()


def is_of_parts(part_etags: Sequence[str], etag: str) -> bool:
    """Return True if the etag is that of a multipart upload: an MD5 of the MD5s in the parts' etags. If a part's etag
    is no digest, return False."""
    digests = [one.strip('"') for one in part_etags]
    if not all(map(_MD5.fullmatch, digests)):
        return False
    whole = hashlib.md5(bytes.fromhex("".join(digests)), usedforsecurity=False).hexdigest()
    return etag.strip('"') == f"{whole}-{len(digests)}"


def _headers(condition: Condition) -> _Headers:
    """Return the condition as arguments of the SDK."""
    if condition.is_absent:
        return {"IfNoneMatch": "*"}
    return {} if condition.etag is None else {"IfMatch": condition.etag}


def _part_entry(number: int, etag: str, checksum: str) -> CompletedPartTypeDef:
    entry: CompletedPartTypeDef = {"PartNumber": number, "ETag": etag}
    if checksum:
        entry["ChecksumCRC32C"] = checksum
    return entry


def abort_upload(client: S3BucketClient, key: str, upload_id: str) -> bool:
    """Abort an upload; return False if it does not exist."""
    try:
        with translate_errors("aborting"):
            client.sdk.abort_multipart_upload(Bucket=client.options.bucket, Key=key, UploadId=upload_id)
    except (PartsGoneError, ObjectNotFoundError):
        return False
    return True


def _is_gone(client: S3BucketClient, key: str, upload_id: str) -> bool:
    try:
        with translate_errors("aborting"):
            client.sdk.list_parts(Bucket=client.options.bucket, Key=key, UploadId=upload_id, MaxParts=1)
    except (PartsGoneError, ObjectNotFoundError):
        return True
    return False
