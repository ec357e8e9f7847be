"""The part of S3's protocol that a store uses, with the bucket in the path."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar, Final
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from tests.support.faulty_server.objects import Held, ranged
from tests.support.faulty_server.service import Cloud, Service, Step
from tests.support.faulty_server.wire import Reply, Request

_META: Final = "x-amz-meta-"
_KEYS: Final = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_NUMBERS: Final = re.compile(r"<PartNumber>(\d+)</PartNumber>")
_XML: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'


def document(name: str, content: str) -> bytes:
    """Return an S3 XML document."""
    return f'{_XML}<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{name}>'.encode()


def elements(**values: object) -> str:
    """Return elements with these names and texts."""
    return "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in values.items())


class S3Service(Service):
    """One bucket of S3."""

    cloud: ClassVar = Cloud.S3

    def step(self, request: Request) -> Step:
        """Return the step by method and query."""
        query = request.query
        if not self._key(request):
            if request.method == "GET":
                return Step.UPLOADS if "uploads" in query else Step.LIST
            return Step.BULK if "delete" in query else Step.BUCKET
        if "uploadId" in query:
            of_upload = {"PUT": Step.PART, "POST": Step.COMPLETE, "DELETE": Step.ABORT}
            return of_upload.get(request.method, Step.PARTS)
        if "uploads" in query:
            return Step.BEGIN
        of_object = {"PUT": Step.WRITE, "HEAD": Step.HEAD, "DELETE": Step.DELETE}
        return of_object.get(request.method, Step.READ)

    def answer(self, request: Request) -> Reply:
        """Answer as S3 would."""
        with self.objects.lock:
            if request.path.lstrip("/").partition("/")[0] != self.bucket:
                return self.refusal(404, "NoSuchBucket", "The specified bucket does not exist")
            return self._answer(self.step(request), request, self._key(request))

    def refusal(self, status: int, code: str, message: str = "no") -> Reply:
        """Return an ``Error`` document, which has no namespace."""
        body = f"{_XML}<Error>{elements(Code=code, Message=message)}</Error>".encode()
        return Reply(status, body, {"Content-Type": "application/xml"})

    def _key(self, request: Request) -> str:
        return request.path.lstrip("/").partition("/")[2]

    def _answer(self, step: Step, request: Request, key: str) -> Reply:
        match step:
            case Step.WRITE:
                return self._refused(request, key) or self._written(key, request.body, _metadata(request))
            case Step.BEGIN:
                return self._begun(request, key)
            case Step.PART | Step.COMPLETE | Step.ABORT | Step.PARTS:
                return self._of_upload(step, request, key)
            case Step.READ | Step.HEAD:
                return self._read(request, key)
            case Step.LIST:
                return self._listed(request.query)
            case Step.UPLOADS:
                return self._uploads(request.query.get("prefix", ""))
            case Step.DELETE | Step.BULK:
                return self._deleted(request, key)
            case Step.BUCKET:
                return Reply(200)

    def _deleted(self, request: Request, key: str) -> Reply:
        for name in _KEYS.findall(request.body.decode()):
            self.objects.by_key.pop(unescape(name), None)
        if not key:
            return Reply(200, document("DeleteResult", ""))
        self.objects.by_key.pop(key, None)
        return Reply(204)

    def _refused(self, request: Request, key: str) -> Reply | None:
        held = self.objects.by_key.get(key)
        wanted = request.headers.get("if-match")
        if "if-none-match" in request.headers and held is not None:
            return self.refusal(412, "PreconditionFailed", "At least one of the conditions did not hold")
        if wanted is not None and (held is None or wanted.strip('"') != held.digest):
            return self.refusal(412, "PreconditionFailed", "At least one of the conditions did not hold")
        return None

    def _written(self, key: str, data: bytes, metadata: dict[str, str]) -> Reply:
        return Reply(200, b"", {"ETag": f'"{self.objects.write(key, data, metadata).digest}"'})

    def _begun(self, request: Request, key: str) -> Reply:
        name = self.objects.begin(key, _metadata(request))
        content = elements(Bucket=self.bucket, Key=key, UploadId=name)
        return Reply(200, document("InitiateMultipartUploadResult", content))

    def _of_upload(self, step: Step, request: Request, key: str) -> Reply:
        upload_id = request.query["uploadId"]
        upload = self.objects.uploads.get(upload_id)
        if upload is None:
            return self.refusal(404, "NoSuchUpload", "The specified upload does not exist")
        if step is Step.PART:
            upload.parts[request.query["partNumber"]] = request.body
            return Reply(200, b"", {"ETag": f'"{_md5(request.body).hex()}"'})
        if step is Step.PARTS:
            return Reply(200, document("ListPartsResult", elements(UploadId=upload_id, IsTruncated="false")))
        if step is Step.ABORT:
            del self.objects.uploads[upload_id]
            return Reply(204)
        if refusal := self._refused(request, key):
            return refusal
        parts = [upload.parts[number] for number in _NUMBERS.findall(request.body.decode())]
        del self.objects.uploads[upload_id]
        digest = f"{_md5(b''.join(map(_md5, parts))).hex()}-{len(parts)}"
        self.objects.write(key, b"".join(parts), upload.metadata, digest)
        content = elements(Location="/", Bucket=self.bucket, Key=key, ETag=f'"{digest}"')
        return Reply(200, document("CompleteMultipartUploadResult", content))

    def _read(self, request: Request, key: str) -> Reply:
        held = self.objects.by_key.get(key)
        if held is None:
            return self.refusal(404, "NoSuchKey", "The specified key does not exist.")
        part = ranged(held.data, request.headers.get("range"))
        if part is None:
            return self.refusal(416, "InvalidRange", "The requested range is not satisfiable")
        about = {f"{_META}{name}": value for name, value in held.metadata.items()}
        headers = {"ETag": f'"{held.digest}"', "Last-Modified": held.modified_http, **about}
        data, content_range = part
        return Reply(206 if content_range else 200, data, {**headers, "Content-Range": content_range})

    def _listed(self, query: dict[str, str]) -> Reply:
        if "versioning" in query:  # never switched on
            return Reply(200, document("VersioningConfiguration", ""))
        if "versions" in query:
            return Reply(200, document("ListVersionsResult", elements(IsTruncated="false")))
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", "1000"))
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = [key for key in self.objects.keys_below(prefix) if key > after]
        page = keys[:most]
        is_truncated = len(keys) > len(page)
        return Reply(
            200, listing(((key, self.objects.by_key[key]) for key in page), page[-1] if is_truncated else None)
        )

    def _uploads(self, prefix: str) -> Reply:
        named = [(name, upload) for name, upload in self.objects.uploads.items() if upload.key.startswith(prefix)]
        content = "".join(
            f"<Upload>{elements(Key=upload.key, UploadId=name, Initiated=_iso(1_700_000_000))}</Upload>"
            for name, upload in named
        )
        return Reply(200, document("ListMultipartUploadsResult", elements(IsTruncated="false") + content))


def listing(entries: Iterable[tuple[str, Held]], token: str | None) -> bytes:
    """Return a page of a listing, with the next page's token."""
    contents = "".join(f"<Contents>{elements(Key=quote(key), **_about(held))}</Contents>" for key, held in entries)
    truncated = "" if token is None else elements(NextContinuationToken=token)
    head = elements(EncodingType="url", IsTruncated="false" if token is None else "true")
    return document("ListBucketResult", head + truncated + contents)


def _about(held: Held) -> dict[str, object]:
    return {"LastModified": _iso(held.modified_s), "ETag": f'"{held.digest}"', "Size": len(held.data)}


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _metadata(request: Request) -> dict[str, str]:
    return {name.removeprefix(_META): value for name, value in request.headers.items() if name.startswith(_META)}


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
