"""How objects are written to Google Cloud Storage: small ones by one request, others chunk by chunk to a session.

A session shows nothing until its last chunk. The protocol:
https://cloud.google.com/storage/docs/performing-resumable-uploads (multiple chunk upload).

Apart from the store, which alone uses it: together they would pass 600 lines.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any, ClassVar, Final

import requests
from crc32c import crc32c

from tieredstore.backends.cloud.answers import shown_body, stated, stated_size, understood
from tieredstore.backends.cloud.errors import MalformedAnswer, PartsGone
from tieredstore.backends.cloud.parts import Part, PartCutter, send_parts
from tieredstore.backends.cloud.upload import WRITE_MARK, Stored, Upload
from tieredstore.backends.gcs.client import CONTENT_TYPE, GcsClient
from tieredstore.backends.gcs.errors import RefusedError, raise_for, translated
from tieredstore.backends.gcs.options import GcsOptions
from tieredstore.backends.http.session import Buffers
from tieredstore.backends.values import Prepared
from tieredstore.errors import ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable, TieredStoreError
from tieredstore.process.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

_PERSISTED: Final = re.compile(r"bytes=0-(\d{1,19})")
_INCOMPLETE: Final = 308
_ENDED: Final = frozenset({404, 410, 499})
_NOTHING: Final = frozenset({b"", b"null", b"{}"})
"""Bodies that say nothing: other servers write nothing as JSON."""
_CANCEL_TIMEOUT_S: Final = 30.0


def crc32c_text(value: int) -> str:
    """A CRC-32C as Google writes it: big-endian, in base64."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


class GcsUpload(Upload[GcsClient, GcsOptions]):
    """One write to Google Cloud Storage; its condition is a generation."""

    parts_gone: ClassVar[str] = "the server has forgotten the upload"

    @property
    def generation(self) -> int | None:
        """The generation that the object must have, 0 for none at all, None for any."""
        if self.condition.is_absent:
            return 0
        return None if self.condition.etag is None else int(self.condition.etag)

    def write_whole(self, data: memoryview) -> str:
        """By one request. The server checks a CRC-32C before it takes the object."""
        crc = crc32c(data)
        boundary = uuid.uuid4().hex
        about = {
            "name": self.key,
            "contentType": CONTENT_TYPE,
            "crc32c": crc32c_text(crc),
            "metadata": {WRITE_MARK: self.mark},
        }
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
        body = Buffers(
            f"{head}--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n".encode(), data, f"\r\n--{boundary}--".encode()
        )

        def send(client: GcsClient) -> Stored:
            # The SDK's own way copies the data, and opens a session for over 8 MiB.
            post: Any = client.session.post
            response: requests.Response = post(
                client.single_upload_url(self.generation),
                data=body,
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            )
            raise_for(response)
            stored = described(self.what, response)
            if not _is_of(stored, len(data), crc):
                # The next try sends it all once more; chunks of a session that has ended cannot be.
                self.take_back(client, stored)
                raise self._damaged()
            return stored

        return self.finished(send, len(data), crc)

    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Chunk by chunk, the next being filled while one is sent.

        After any failure the session is cancelled, so that nothing of the upload stays.
        """
        session = _Session(self)
        try:
            # One at a time: the server takes chunks only in order.
            etag = send_parts(cutter, session.send, 1, first=first)[-1]
        except BaseException:
            session.cancel()
            raise
        if etag is None:
            raise StoreError(f"{self.what}: the server did not finish the upload at its last chunk")
        return etag

    def stored(self, client: GcsClient) -> Stored:
        """By a request for the object's metadata."""
        blob = client.blob(self.key)
        blob.reload(retry=None)
        mark = (blob.metadata or {}).get(WRITE_MARK)
        return Stored(str(stated_size(blob.generation)), stated_size(blob.size), blob.crc32c, mark)

    def finished(
        self, send: Callable[[GcsClient], Stored], size: int, crc: int, deadline: Deadline | None = None
    ) -> str:
        """The etag of the object that ``send`` makes; ``size`` and ``crc`` are of all that the write sends."""
        stored = self.finish(send, size, lambda _, stored: _is_of(stored, size, crc), deadline)
        if not _is_of(stored, size, crc):
            self.step(lambda client: self.take_back(client, stored))
            raise self._damaged()
        return stored.etag

    def _damaged(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.what}: the object was damaged on its way to the server")

    def take_back(self, client: GcsClient, stored: Stored) -> None:
        """By its generation."""
        try:
            with translated(self.what):
                deleted(client, self.what, self.key, int(stored.etag))
        except (PreconditionFailed, ObjectNotFound):
            _logger.info("%s: the damaged object was gone already", self.what)


class _Session:
    """One upload session, opened by the first chunk. Chunks are sent one at a time; not thread-safe.

    After a lost connection the chunk is sent again: the server passes over bytes that it has already, and tells how far
    it came. A server that kept them twice is found out by the CRC-32C of the whole.
    """

    def __init__(self, upload: GcsUpload) -> None:
        self._upload = upload
        self._what = upload.what
        self._url: str | None = None
        self._persisted = 0
        self._crc = 0

    def send(self, part: Part) -> str | None:
        """Send one chunk; the object's etag, if it was the last."""
        if self._url is None:
            self._upload.step(self._begin)
        self._crc = crc32c(part.data, self._crc)
        stop = self._persisted + len(part.data)
        # Of the whole chunk: a server may take it bit by bit, and each bit is a request.
        deadline = self._upload.call_deadline()
        if part.is_last:
            return self._upload.finished(lambda client: self._end(client, part.data, stop), stop, self._crc, deadline)
        while self._persisted < stop:
            self._upload.step(lambda client: self._continue(client, part.data, stop), deadline=deadline)
        return None

    def cancel(self) -> None:
        """End the session. A failure to do so is logged: the server forgets sessions after a week by itself."""
        url = self._url
        if url is None:
            return
        try:
            deadline = Deadline.after(_CANCEL_TIMEOUT_S)
            status = self._upload.call("cancel", self._what, lambda client: _cancelled(client, url), deadline=deadline)
        except TieredStoreError as error:
            _logger.warning("%s: the failed upload could not be cancelled: %s", self._what, error)
        else:
            # 499 says that the session was cancelled.
            _logger.info("%s: the failed upload was cancelled: status %d", self._what, status)

    def _begin(self, client: GcsClient) -> None:
        blob = client.blob(self._upload.key)
        blob.metadata = {WRITE_MARK: self._upload.mark}
        url = blob.create_resumable_upload_session(
            content_type=CONTENT_TYPE, if_generation_match=self._upload.generation, checksum=None, retry=None
        )
        # Here, so that an interrupt right behind the answer has it cancelled.
        self._url = client.session_url(url)

    def _continue(self, client: GcsClient, data: memoryview, stop: int) -> None:
        response = self._put(client, self._rest(data, stop), "*")
        if response.status_code != _INCOMPLETE:
            raise StoreError(f"{self._what}: the server ended the upload before its last chunk")
        self._advance(response, stop)

    def _end(self, client: GcsClient, data: memoryview, stop: int) -> Stored:
        """The finished object; the server may take the last chunk bit by bit."""
        while True:
            response = self._put(client, self._rest(data, stop), str(stop))
            if response.status_code != _INCOMPLETE:
                return described(self._what, response)
            self._advance(response, stop)

    def _rest(self, data: memoryview, stop: int) -> memoryview:
        return data[len(data) - (stop - self._persisted) :]

    def _put(self, client: GcsClient, data: memoryview, total: str) -> requests.Response:
        where = f"{self._persisted}-{self._persisted + len(data) - 1}" if data else "*"
        headers = {"Content-Range": f"bytes {where}/{total}", "Content-Type": CONTENT_TYPE}
        if total != "*":
            # With it the server refuses what was damaged on the way before anybody can see it.
            headers["X-Goog-Hash"] = f"crc32c={crc32c_text(self._crc)}"
        try:
            with translated(self._what):
                response = client.session.put(self._url or "", data=data, headers=headers)
                raise_for(response)
        except ObjectNotFound as error:
            raise PartsGone(str(error)) from error
        return response

    def _advance(self, response: requests.Response, stop: int) -> None:
        held = response.headers.get("Range")
        match = _PERSISTED.fullmatch(held or "")
        persisted = int(match[1]) + 1 if match else 0
        if (held is not None and match is None) or not self._persisted <= persisted <= stop:
            sent = f"{self._persisted} to {stop}"
            raise StoreError(f"{self._what}: bytes {sent} were sent, but the server holds {held!r:.80}")
        if persisted == self._persisted:
            raise StoreUnavailable(f"{self._what}: the server took nothing of a chunk")
        self._persisted = persisted


def described(what: str, response: requests.Response) -> Stored:
    """The finished object that ``response`` describes."""
    with understood(what):
        try:
            answer: Any = response.json()
        except ValueError:
            raise MalformedAnswer(
                f"{what}: the store answered with {shown_body(response.content)}, which does not describe an object"
            ) from None
        return Stored(str(int(answer["generation"])), int(answer["size"]), str(answer["crc32c"]))


def copied(client: GcsClient, what: str, prepared: Prepared) -> None:
    """Have the server copy what is staged to its key, which must be free; of a large object it does so bit by bit."""
    token: str | None = None
    while True:
        response = client.session.post(client.copy_url(prepared.place, prepared.key, token))
        raise_for(response)
        with understood(what):
            answer: Any = response.json()
            if answer["done"] is True:
                if int(answer["resource"]["size"]) != prepared.size:
                    raise MalformedAnswer(f"{what}: the store says that a copy has another size than what was copied")
                return
            token = stated("the token of the rest", answer["rewriteToken"])


def deleted(client: GcsClient, what: str, key: str, generation: int | None = None) -> None:
    """Delete an object, if it has this generation. The SDK's own way takes any answer for a success."""
    response = client.session.delete(client.deletion_url(key, generation))
    raise_for(response)
    if response.status_code not in {requests.codes.ok, requests.codes.no_content} or (
        response.content.strip() not in _NOTHING
    ):
        raise MalformedAnswer(
            f"{what}: the store answered to a deletion with status {response.status_code} and "
            f"{shown_body(response.content)}, though such an answer has no body"
        )


def _is_of(stored: Stored, size: int, crc: int) -> bool:
    return (stored.size, stored.digest) == (size, crc32c_text(crc))


def _cancelled(client: GcsClient, url: str) -> int:
    try:
        return client.session.delete(url).status_code
    except RefusedError as error:
        # Of a session that is gone, or now is.
        if error.response.status_code in _ENDED:
            return error.response.status_code
        raise
