"""How objects are written to Google Cloud Storage: small ones by one request, others chunk by chunk to a session.

A session shows nothing until its last chunk. The protocol:
https://cloud.google.com/storage/docs/performing-resumable-uploads (multiple chunk upload).
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import requests
from crc32c import crc32c

from tieredstore.backends.cloud.parts import Part, PartCutter, send_parts
from tieredstore.backends.gcs.client import CONTENT_TYPE, GcsClient
from tieredstore.backends.gcs.errors import raise_for, translated
from tieredstore.backends.http.session import Buffers, within
from tieredstore.errors import ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.retry import Attempt, RetryPolicy

logger = logging.getLogger(__name__)

WRITE_MARK: Final = "tieredstore-write"
"""The metadata that holds the mark of the write that made an object."""

_PERSISTED: Final = re.compile(r"bytes=0-(\d{1,19})")
_INCOMPLETE: Final = 308
_CANCEL_TIMEOUT_S: Final = 30.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Write:
    """One ``put`` or ``replace``: of which object, under which condition, and until when.

    ``if_generation_match``: the generation that the object must have, 0 for none at all, None for any. ``mark`` is put
    into the object's metadata: so a write whose answer was lost knows its object from one that another wrote. An object
    that bears no mark at all, as on a server that drops metadata, counts as this write's if its content is.
    """

    client: GcsClient
    key: str
    what: str
    if_generation_match: int | None
    retry: RetryPolicy
    deadline: Deadline
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def call(self, operation: Callable[[Attempt], Result]) -> Result:
        """One step of the write, tried again after passing failures."""

        def attempt(attempt: Attempt) -> Result:
            with within(attempt.deadline), translated(self.what):
                return operation(attempt)

        return self.retry.call("write", attempt, deadline=self.deadline)

    def finish(self, operation: Callable[[], Stored | None], size: int, crc: int) -> Stored | None:
        """What the last step of a write makes; None if ``operation`` says that it was not the last.

        Where it is refused and was tried before, the earlier answer may be what was lost: then the object is looked at.
        ``size`` and ``crc`` are of all that the write sends.
        """

        def attempt(attempt: Attempt) -> Stored | None:
            try:
                with translated(self.what):
                    return operation()
            except (PreconditionFailed, ObjectNotFound) as refusal:
                found = self._found_if_ours(size, crc) if attempt.number > 1 else None
                if found is None:
                    raise
                logger.info("%s: was written by a try whose answer was lost (%s)", self.what, refusal)
                return found

        return self.call(attempt)

    def _found_if_ours(self, size: int, crc: int) -> Stored | None:
        blob = self.client.blob(self.key)
        try:
            with translated(self.what):
                blob.reload(retry=None)
        except ObjectNotFound:
            return None
        mark = (blob.metadata or {}).get(WRITE_MARK)
        stored = Stored(blob.generation or 0, blob.size or 0, blob.crc32c or "")
        ours = mark == self.mark or (mark is None and stored.is_of(size, crc))
        return stored if ours else None

    def verified(self, stored: Stored, size: int, crc: int) -> Stored:
        """``stored``, if it is what was sent; else it is deleted, and StoreUnavailable raised."""
        if not stored.is_of(size, crc):
            self._remove(stored.generation)
            raise StoreUnavailable(f"{self.what}: the object was damaged on its way to the server")
        return stored

    def _remove(self, generation: int) -> None:
        try:
            with translated(self.what):
                self.client.blob(self.key).delete(if_generation_match=generation, retry=None)
        except (PreconditionFailed, ObjectNotFound):
            logger.info("%s: the damaged object was gone already", self.what)


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished object, as the server describes it."""

    generation: int
    size: int
    crc32c: str

    def is_of(self, size: int, crc: int) -> bool:
        """Whether its content has this size and CRC-32C."""
        return (self.size, self.crc32c) == (size, crc32c_text(crc))


def crc32c_text(value: int) -> str:
    """A CRC-32C as Google writes it: big-endian, in base64."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def write_whole(write: Write, data: memoryview) -> int:
    """Write an object by one request; its generation. The server checks a CRC-32C before it takes the object."""
    crc = crc32c(data)
    boundary = uuid.uuid4().hex
    about = {
        "name": write.key,
        "contentType": CONTENT_TYPE,
        "crc32c": crc32c_text(crc),
        "metadata": {WRITE_MARK: write.mark},
    }
    head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
    body = Buffers(
        f"{head}--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n".encode(), data, f"\r\n--{boundary}--".encode()
    )
    # The SDK's own way copies the data, and opens a session for over 8 MiB.
    post: Any = write.client.session.post

    def send() -> Stored:
        url = write.client.single_upload_url(write.if_generation_match)
        response: requests.Response = post(
            url, data=body, headers={"Content-Type": f"multipart/related; boundary={boundary}"}
        )
        raise_for(response)
        return write.verified(_described(write.what, response), len(data), crc)

    stored = write.finish(send, len(data), crc)
    return 0 if stored is None else write.verified(stored, len(data), crc).generation


def write_chunks(write: Write, cutter: PartCutter, first: Part) -> int:
    """Write an object chunk by chunk, the next being filled while one is sent; its generation.

    After any failure the session is cancelled, so that nothing of the upload stays.
    """
    upload = _ResumableUpload(write)
    try:
        # One at a time: the server takes chunks only in order.
        results = send_parts(cutter, upload.send, 1, first=first)
    except BaseException:
        upload.cancel()
        raise
    generation = results[-1]
    if generation is None:
        raise StoreError(f"{write.what}: the server did not finish the upload at its last chunk")
    return generation


class _ResumableUpload:
    """One upload session, opened by the first chunk. Chunks are sent one at a time; not thread-safe.

    After a lost connection the chunk is sent again: the server passes over bytes that it has already, and tells how far
    it came. A server that kept them twice is found out by the CRC-32C of the whole.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._url: str | None = None
        self._persisted = 0
        self._crc = 0

    def send(self, part: Part) -> int | None:
        """Send one chunk; the object's generation, if it was the last."""
        if self._url is None:
            self._url = self._begin()
        self._crc = crc32c(part.data, self._crc)
        stop = self._persisted + len(part.data)
        try:
            return self._send(part.data, stop, is_last=part.is_last)
        except ObjectNotFound as error:
            raise StoreUnavailable(f"{self._write.what}: the server has forgotten the upload") from error

    def _send(self, data: memoryview, stop: int, *, is_last: bool) -> int | None:
        while True:
            rest = data[len(data) - (stop - self._persisted) :]
            if is_last:
                stored = self._finish(rest, stop)
                if stored is not None:
                    return self._write.verified(stored, stop, self._crc).generation
            else:
                self._continue(rest, stop)
                if self._persisted == stop:
                    return None

    def cancel(self) -> None:
        """End the session. A failure to do so is logged: the server forgets sessions after a week by itself."""
        if self._url is None:
            return
        try:
            with within(Deadline.after(_CANCEL_TIMEOUT_S)), translated(self._write.what):
                response = self._write.client.session.delete(self._url)
        except TieredStoreError as error:
            logger.warning("%s: the failed upload could not be cancelled: %s", self._write.what, error)
        else:
            # 499 says that the session was cancelled.
            logger.info("%s: the failed upload was cancelled: status %d", self._write.what, response.status_code)

    def _begin(self) -> str:
        write = self._write
        blob = write.client.blob(write.key)
        blob.metadata = {WRITE_MARK: write.mark}
        told = write.call(
            lambda _: blob.create_resumable_upload_session(
                content_type=CONTENT_TYPE, if_generation_match=write.if_generation_match, checksum=None, retry=None
            )
        )
        return write.client.session_url(told)

    def _continue(self, rest: memoryview, stop: int) -> None:
        def send(_: Attempt) -> None:
            response = self._put(rest, "*")
            if response.status_code != _INCOMPLETE:
                raise StoreError(f"{self._write.what}: the server ended the upload before its last chunk")
            self._advance(response, stop)

        self._write.call(send)

    def _finish(self, rest: memoryview, stop: int) -> Stored | None:
        """The finished object; None if the server took only a part of the chunk."""

        def send() -> Stored | None:
            response = self._put(rest, str(stop))
            if response.status_code != _INCOMPLETE:
                return _described(self._write.what, response)
            self._advance(response, stop)
            return None

        return self._write.finish(send, stop, self._crc)

    def _put(self, data: memoryview, total: str) -> requests.Response:
        where = f"{self._persisted}-{self._persisted + len(data) - 1}" if data else "*"
        headers = {"Content-Range": f"bytes {where}/{total}", "Content-Type": CONTENT_TYPE}
        if total != "*":
            # With it the server refuses what was damaged on the way before anybody can see it.
            headers["X-Goog-Hash"] = f"crc32c={crc32c_text(self._crc)}"
        response = self._write.client.session.put(self._url or "", data=data, headers=headers)
        raise_for(response)
        return response

    def _advance(self, response: requests.Response, stop: int) -> None:
        told = response.headers.get("Range")
        found = _PERSISTED.fullmatch(told or "")
        persisted = int(found[1]) + 1 if found else 0
        if (told is not None and found is None) or not self._persisted <= persisted <= stop:
            sent = f"{self._persisted} to {stop}"
            raise StoreError(f"{self._write.what}: bytes {sent} were sent, but the server holds {told!r:.80}")
        if persisted == self._persisted:
            raise StoreUnavailable(f"{self._write.what}: the server took nothing of a chunk")
        self._persisted = persisted


def _described(what: str, response: requests.Response) -> Stored:
    """The finished object that ``response`` describes."""
    try:
        told: Any = response.json()
        return Stored(int(told["generation"]), int(told["size"]), str(told["crc32c"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{what}: the server's answer does not describe an object") from error
