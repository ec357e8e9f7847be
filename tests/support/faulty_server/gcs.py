"""The part of Google Cloud Storage's JSON protocol that a store uses."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from crc32c import crc32c

from tests.support.faulty_server.objects import Held, Started, ranged
from tests.support.faulty_server.service import Cloud, Service, Step
from tests.support.faulty_server.wire import Reply, Request

_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_DATA: Final = "data"


class GcsService(Service):
    """One bucket of Google Cloud Storage."""

    cloud: ClassVar = Cloud.GCS

    def step(self, request: Request) -> Step:
        """Return the step by method, path and query."""
        query = request.query
        if "upload_id" in query:
            if request.method == "DELETE":
                return Step.ABORT
            return Step.PART if request.headers.get("content-range", "").endswith("/*") else Step.COMPLETE
        if "uploadType" in query:
            return Step.WRITE if query["uploadType"] == "multipart" else Step.BEGIN
        if not self._key(request):
            return Step.LIST if request.path.endswith("/o") else Step.BUCKET
        if request.method == "DELETE":
            return Step.DELETE
        return Step.READ if query.get("alt") == "media" else Step.HEAD

    def answer(self, request: Request) -> Reply:
        """Answer as Google would."""
        with self.objects.lock:
            if f"/b/{self.bucket}" not in request.path:
                return self.refusal(404, "notFound", "The specified bucket does not exist.")
            return self._answer(self.step(request), request, self._key(request))

    def refusal(self, status: int, code: str, message: str = "no") -> Reply:
        """Return an ``error`` with one reason."""
        error = {"code": status, "message": message, "errors": [{"reason": code, "message": message}]}
        return as_json({"error": error}).changed(status=status)

    def _key(self, request: Request) -> str:
        # The raw path: a slash within the key is written %2F.
        return unquote(urlsplit(request.target).path.partition("/o/")[2])

    def _answer(self, step: Step, request: Request, key: str) -> Reply:
        match step:
            case Step.WRITE:
                return self._written(request)
            case Step.BEGIN:
                return self._begun(request)
            case Step.PART | Step.COMPLETE | Step.ABORT:
                return self._of_upload(step, request)
            case Step.LIST:
                return self._listed(request.query)
            case Step.READ | Step.HEAD | Step.DELETE:
                return self._of_object(step, request, key)
            case _:
                return as_json({"kind": "storage#bucket", "name": self.bucket})

    def _of_object(self, step: Step, request: Request, key: str) -> Reply:
        held = self.objects.by_key.get(key)
        if held is None:
            return self.refusal(404, "notFound", f"No such object: {self.bucket}/{key}")
        if step is Step.HEAD:
            return as_json(described(key, held))
        if step is Step.READ:
            return self._read(held, request.headers.get("range"))
        wanted = request.query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != held.version:
            return self.refusal(412, "conditionNotMet")
        del self.objects.by_key[key]
        return Reply(204)

    def _read(self, held: Held, asked: str | None) -> Reply:
        part = ranged(held.data, asked)
        if part is None:
            return self.refusal(416, "requestedRangeNotSatisfiable")
        data, content_range = part
        headers = {"X-Goog-Generation": str(held.version), "X-Goog-Hash": f"crc32c={_crc(held.data)}"}
        return Reply(206 if content_range else 200, data, {**headers, "Content-Range": content_range})

    def _is_taken(self, key: str, generation: int | None) -> bool:
        held = self.objects.by_key.get(key)
        return generation is not None and generation != (0 if held is None else held.version)

    def _written(self, request: Request) -> Reply:
        boundary = request.headers["content-type"].partition("boundary=")[2].strip("'\"").encode()
        _, first, content, _ = request.body.split(b"--" + boundary, 3)
        about: Any = json.loads(first.partition(b"\r\n\r\n")[2])
        data = content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        if self._is_taken(about["name"], _generation(request)):
            return self.refusal(412, "conditionNotMet")
        return as_json(described(about["name"], self.objects.write(about["name"], data, about.get("metadata", {}))))

    def _begun(self, request: Request) -> Reply:
        about: Any = json.loads(request.body or b"{}")
        key = about.get("name") or request.query["name"]
        name = self.objects.begin(key, about.get("metadata") or {}, _generation(request))
        place = f"http://{request.headers['host']}/upload/storage/v1/b/{self.bucket}/o?uploadType=resumable"
        return Reply(200, b"", {"Location": f"{place}&upload_id={name}"})

    def _of_upload(self, step: Step, request: Request) -> Reply:
        name = request.query["upload_id"]
        upload = self.objects.uploads.get(name)
        if upload is None:
            return self.refusal(410, "gone")
        if step is Step.ABORT:
            del self.objects.uploads[name]
            return Reply(499)
        return self._continued(name, upload, request)

    def _continued(self, name: str, upload: Started, request: Request) -> Reply:
        match = _CONTENT_RANGE.fullmatch(request.headers["content-range"])
        held = upload.parts.get(_DATA, b"")
        if match is not None and match[1] is not None:
            held = upload.parts[_DATA] = held[: int(match[1])] + request.body
        if match is None or match[3] == "*" or int(match[3]) != len(held):
            return Reply(308, b"", {"Range": f"bytes=0-{len(held) - 1}" if held else None})
        if self._is_taken(upload.key, upload.generation):
            return self.refusal(412, "conditionNotMet")
        del self.objects.uploads[name]
        return as_json(described(upload.key, self.objects.write(upload.key, held, upload.metadata)))

    def _listed(self, query: dict[str, str]) -> Reply:
        most = int(query.get("maxResults", "1000"))
        start = query.get("pageToken") or query.get("startOffset", "")
        keys = [key for key in self.objects.keys_below(query.get("prefix", "")) if key >= start]
        items = [described(key, self.objects.by_key[key]) for key in keys[:most]]
        following = {"nextPageToken": keys[most]} if len(keys) > most else {}
        return as_json({"kind": "storage#objects", "items": items, **following})


def as_json(value: object) -> Reply:
    """Return a JSON answer with status 200."""
    return Reply(200, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def described(key: str, held: Held) -> dict[str, object]:
    """Return an object's description in Google's format."""
    updated = datetime.fromtimestamp(held.modified_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return {
        "kind": "storage#object",
        "name": key,
        "size": str(len(held.data)),
        "generation": str(held.version),
        "crc32c": _crc(held.data),
        "metadata": dict(held.metadata),
        "updated": updated,
    }


def _generation(request: Request) -> int | None:
    text = request.query.get("ifGenerationMatch")
    return None if text is None else int(text)


def _crc(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
