"""Writing one object to S3: by one PUT below a part's size, by a multipart upload above."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import crc32c

from tieredstore.backends.cloud.parts import Part, PartCutter, send_parts
from tieredstore.backends.s3.errors import UploadGone, translated
from tieredstore.backends.s3.options import Compatibility, S3Options
from tieredstore.errors import ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.retry import Attempt

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

WRITE_MARK: Final = "tieredstore-write"
"""The user metadata that says which write made an object: how a write whose answer was lost recognises itself."""

_ABORTS: Final = 3
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_PIECE: Final = 1 << 18

Call = Callable[[str, Callable[["S3Client", Attempt], Result], Deadline], Result]


class PartBody(io.RawIOBase):
    """A part as the file that the SDK wants, without a copy; it may be sent again from its start.

    Small pieces go to the socket one by one, so each has the whole network time-out, and the deadline is looked at
    between them.
    """

    def __init__(self, data: memoryview, deadline: Deadline, what: str) -> None:
        super().__init__()
        self._data = data
        self._deadline = deadline
        self._what = what
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = -1, /) -> Any:
        """The next bytes, as a view: more than asked for, where that is little."""
        self._deadline.check(self._what)
        # http.client asks for 16 KiB at a time, sends whatever it gets, and each of these rounds costs processor time.
        stop = len(self._data) if size is None or size < 0 else self._position + max(size, _PIECE)
        piece = self._data[self._position : stop]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of any file."""
        base = (0, self._position, len(self._data))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """As of any file."""
        return self._position

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True


def _body(data: memoryview, deadline: Deadline, what: str) -> Any:
    """What the SDK sends ``data`` as. It asks before it sends a file ("100-continue"), which small bodies don't pay."""
    return bytes(data) if len(data) <= _PIECE else PartBody(data, deadline, what)


@dataclass(frozen=True)
class Condition:
    """What must hold for a write to take effect: headers of the request, and the sentence if it did not hold."""

    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    broken: str = ""


ANY: Final = Condition()
"""No condition."""


def if_absent(key: str) -> Condition:
    """The key must be free."""
    return Condition({"IfNoneMatch": "*"}, f"an object {key!r} exists already")


def if_unchanged(key: str, etag: str) -> Condition:
    """The object must still have this etag."""
    return Condition({"IfMatch": etag}, f"the object {key!r} is gone, or it is not the one of etag {etag}")


@dataclass(frozen=True, slots=True)
class Content:
    """What a write sends, to be told from other content by what a HEAD answers."""

    _size: int
    _etag: Callable[[], str | None]

    @classmethod
    def of_bytes(cls, data: memoryview) -> Content:
        """Of one request: the etag is the MD5 of the bytes."""
        return cls(len(data), lambda: hashlib.md5(data, usedforsecurity=False).hexdigest())

    @classmethod
    def of_parts(cls, size: int, parts: Sequence[Mapping[str, Any]]) -> Content:
        """Of a multipart upload: an MD5 of the MD5s that the parts' etags are."""

        def etag() -> str | None:
            digests = [str(part["ETag"]).strip('"') for part in parts]
            if not all(map(_MD5.fullmatch, digests)):
                return None
            return f"{hashlib.md5(bytes.fromhex(''.join(digests)), usedforsecurity=False).hexdigest()}-{len(parts)}"

        return cls(size, etag)

    def is_in(self, size: int, etag: str) -> bool:
        """Whether an object of this size and etag has this content; False where etags do not tell it."""
        expected = self._etag()
        return size == self._size and expected is not None and etag.strip('"') == expected


class Writer:
    """Writes one object of one ``put`` or ``replace``.

    ``call`` runs an operation on the client with the store's retries. Each write bears a mark of its own: when an
    attempt's answer is lost and the next one finds the condition broken, the object tells whether it was ours. One that
    bears no mark at all, as on a server that drops metadata, counts as ours if its content is.
    """

    def __init__(self, options: S3Options, key: str, condition: Condition, call: Call[Any], deadline: Deadline) -> None:
        self._options = options
        self._key = key
        self._condition = condition
        self._call = call
        self._deadline = deadline
        self._mark = uuid.uuid4().hex
        self._what = f"writing {key!r}"

    def write(self, cutter: PartCutter) -> None:
        """Write all parts of ``cutter``."""
        first = next(cutter)
        if first.is_last:
            self.write_whole(first.data)
        else:
            self._write_parts(cutter, first)

    def write_whole(self, data: memoryview) -> str:
        """Write ``data`` by one request, and return the etag."""
        extra = {**self._about_object(), **self._checksum(data), **self._condition.headers}
        content = Content.of_bytes(data)

        def once(client: S3Client, attempt: Attempt) -> str:
            body = _body(data, attempt.deadline, self._what)
            try:
                with translated(self._what):
                    answer = client.put_object(**self._target(), **extra, Body=body)
            except TieredStoreError as error:
                return self._settled(client, attempt, error, content)
            return answer["ETag"]

        return self._run(self._what, once)

    def _write_parts(self, cutter: PartCutter, first: Part) -> None:
        upload_id = self._run(f"beginning the upload of {self._key!r}", self._begin)
        try:
            sent = send_parts(
                cutter, lambda part: self._send(upload_id, part), self._options.upload_parallelism, first=first
            )
            parts = [part for part, _ in sent]
            content = Content.of_parts(sum(size for _, size in sent), parts)
            self._run(self._what, lambda client, attempt: self._complete(client, attempt, upload_id, parts, content))
        except BaseException:
            self._abort(upload_id)
            raise

    def _begin(self, client: S3Client, _: Attempt) -> str:
        checksum: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C"} if self._sends_checksums else {}
        return client.create_multipart_upload(**self._target(), **self._about_object(), **checksum)["UploadId"]

    def _send(self, upload_id: str, part: Part) -> tuple[dict[str, Any], int]:
        """What the list of parts says of a part, and its size."""
        number = part.number + 1
        what = f"{self._what}, part {number}"
        checksum = self._checksum(part.data)

        def once(client: S3Client, attempt: Attempt) -> str:
            body = _body(part.data, attempt.deadline, what)
            answer = client.upload_part(**self._target(), **checksum, UploadId=upload_id, PartNumber=number, Body=body)
            return answer["ETag"]

        try:
            etag = self._run(what, once)
        except UploadGone as error:
            raise StoreUnavailable(f"{what}: the upload was aborted by somebody else: {error}") from error
        return {"PartNumber": number, "ETag": etag, **checksum}, len(part.data)

    def _complete(
        self, client: S3Client, attempt: Attempt, upload_id: str, parts: list[dict[str, Any]], content: Content
    ) -> None:
        made: Any = {"Parts": parts}
        try:
            with translated(self._what):
                client.complete_multipart_upload(
                    **self._target(), **self._condition.headers, UploadId=upload_id, MultipartUpload=made
                )
        except TieredStoreError as error:
            self._settled(client, attempt, error, content)

    def _settled(self, client: S3Client, attempt: Attempt, error: TieredStoreError, content: Content) -> str:
        """The etag of the object if it is this write that made it; otherwise the error that says what happened.

        Only a later attempt can have been preceded by one of ours that took effect: the first one's refusal stands.
        """
        refused = isinstance(error, PreconditionFailed | ObjectNotFound) and bool(self._condition.headers)
        if not refused and not isinstance(error, UploadGone):
            raise error
        made = self._made(client, content) if attempt.number > 1 else None
        if made is not None:
            return made
        if refused:
            raise PreconditionFailed(f"{self._condition.broken}: nothing was written") from error
        raise StoreUnavailable(f"{self._what}: the upload is gone before it was completed: {error}") from error

    def _made(self, client: S3Client, content: Content) -> str | None:
        """The etag of the object that stands under the key, if it is this write's."""
        try:
            with translated(self._what):
                found = client.head_object(**self._target())
        except ObjectNotFound:
            return None
        mark = found["Metadata"].get(WRITE_MARK)
        ours = mark == self._mark or (mark is None and content.is_in(found["ContentLength"], found["ETag"]))
        return found["ETag"] if ours else None

    def _abort(self, upload_id: str) -> None:
        """Take the parts back. What made it necessary is raised on, so a failure here is only logged."""
        what = f"aborting the upload of {self._key!r}"
        try:
            # An abort races with parts whose answers were lost and which the server is still writing.
            for _ in range(_ABORTS):
                self._call(what, lambda client, _: _abort_once(client, self._target(), upload_id), self._fresh())
                if self._call(what, lambda client, _: _is_gone(client, self._target(), upload_id), self._fresh()):
                    return
            logger.warning("%s: parts of upload %s are still there", what, upload_id)
        except StoreError as error:
            logger.warning("%s: parts of upload %s may stay until a lifecycle rule: %s", what, upload_id, error)

    def _fresh(self) -> Deadline:
        # The upload's own deadline may be what failed it.
        return Deadline.after(self._options.call_timeout_s)

    def _run(self, what: str, operation: Callable[[S3Client, Attempt], Result]) -> Result:
        found: Result = self._call(what, operation, self._deadline)
        return found

    @property
    def _sends_checksums(self) -> bool:
        return self._options.compatibility is Compatibility.AWS

    def _target(self) -> dict[str, Any]:
        return {"Bucket": self._options.bucket, "Key": self._key}

    def _about_object(self) -> dict[str, Any]:
        about: dict[str, Any] = {"Metadata": {WRITE_MARK: self._mark}}
        if self._options.storage_class != "STANDARD":
            about["StorageClass"] = self._options.storage_class
        return about

    def _checksum(self, data: memoryview) -> dict[str, Any]:
        if not self._sends_checksums:
            return {}
        return {"ChecksumCRC32C": base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode("ascii")}


def _abort_once(client: S3Client, target: dict[str, Any], upload_id: str) -> None:
    try:
        with translated("aborting"):
            client.abort_multipart_upload(**target, UploadId=upload_id)
    except (UploadGone, ObjectNotFound):
        return


def _is_gone(client: S3Client, target: dict[str, Any], upload_id: str) -> bool:
    try:
        with translated("aborting"):
            client.list_parts(**target, UploadId=upload_id, MaxParts=1)
    except (UploadGone, ObjectNotFound):
        return True
    return False
