"""The part of Azure Blob Storage's protocol that a store uses, with the account in the path."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import ClassVar, Final
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.support.faulty_server.objects import Held, Started, ranged
from tests.support.faulty_server.service import Cloud, Service, Step
from tests.support.faulty_server.wire import Reply, Request

ACCOUNT: Final = "account"
"""Account name; any base64 text is accepted as its key."""

_META: Final = "x-ms-meta-"
_LATEST: Final = re.compile(r"<(?:Latest|Uncommitted)>(.*?)</")
_DELETED: Final = re.compile(r"Content-ID:\s*(\S+).*?DELETE\s+(\S+)\s+HTTP", re.DOTALL | re.IGNORECASE)
_XML: Final = '<?xml version="1.0" encoding="utf-8"?>'


class AzureService(Service):
    """One container of an Azure account."""

    cloud: ClassVar = Cloud.AZURE

    def step(self, request: Request) -> Step:
        """Return the step by method and query."""
        comp = request.query.get("comp", "")
        by_comp = {"block": Step.PART, "list": Step.LIST, "batch": Step.BULK}
        if comp in by_comp:
            return by_comp[comp]
        if comp == "blocklist":
            return Step.COMPLETE if request.method == "PUT" else Step.PARTS
        if not self._key(request):
            return Step.BUCKET
        of_blob = {"PUT": Step.WRITE, "HEAD": Step.HEAD, "DELETE": Step.DELETE}
        return of_blob.get(request.method, Step.READ)

    def answer(self, request: Request) -> Reply:
        """Answer as Azure would."""
        with self.objects.lock:
            if not f"{request.path}/".startswith(f"/{ACCOUNT}/{self.bucket}/"):
                return self.refusal(404, "ContainerNotFound", "The specified container does not exist.")
            return self._answer(self.step(request), request, self._key(request))

    def refusal(self, status: int, code: str, message: str = "no") -> Reply:
        """Return an ``Error`` document, with its code in a header as well."""
        body = f"{_XML}<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()
        return Reply(status, body, {"Content-Type": "application/xml", "x-ms-error-code": code})

    def _key(self, request: Request) -> str:
        return _key_in(request.path)

    def _answer(self, step: Step, request: Request, key: str) -> Reply:
        match step:
            case Step.WRITE:
                return self._refused(request, key) or self._written(key, request.body, _metadata(request))
            case Step.PART:
                blocks = self.objects.uploads.setdefault(key, Started(key, {}))
                blocks.parts[request.query["blockid"]] = request.body
                return Reply(201)
            case Step.COMPLETE:
                return self._refused(request, key) or self._completed(request, key)
            case Step.PARTS:
                return self._blocks(request.query.get("blocklisttype", "committed"), key)
            case Step.READ | Step.HEAD:
                return self._read(request, key)
            case Step.DELETE:
                held = self.objects.by_key.pop(key, None)
                return Reply(202) if held else self.refusal(404, "BlobNotFound", "The specified blob does not exist.")
            case Step.LIST:
                return self._listed(request.query)
            case Step.BULK:
                return self._batch(request)
            case _:
                return Reply(200)

    def _refused(self, request: Request, key: str) -> Reply | None:
        held = self.objects.by_key.get(key)
        wanted = request.headers.get("if-match")
        if "if-none-match" in request.headers and held is not None:
            return self.refusal(409, "BlobAlreadyExists", "The specified blob already exists.")
        if wanted is not None and (held is None or wanted != etag_of(held)):
            return self.refusal(412, "ConditionNotMet", "The condition is not met.")
        return None

    def _written(self, key: str, data: bytes, metadata: dict[str, str]) -> Reply:
        held = self.objects.write(key, data, metadata)
        return Reply(201, b"", {"ETag": etag_of(held), "Last-Modified": held.modified_http})

    def _completed(self, request: Request, key: str) -> Reply:
        names = _LATEST.findall(request.body.decode())
        blocks = self.objects.uploads.get(key, Started(key, {})).parts
        if not all(name in blocks for name in names):
            return self.refusal(400, "InvalidBlockList", "The specified block list is invalid.")
        self.objects.uploads.pop(key, None)
        return self._written(key, b"".join(blocks[name] for name in names), _metadata(request))

    def _blocks(self, kind: str, key: str) -> Reply:
        upload = self.objects.uploads.get(key)
        if upload is None and key not in self.objects.by_key:
            return self.refusal(404, "BlobNotFound", "The specified blob does not exist.")
        blocks = {} if upload is None else upload.parts
        listed = "".join(f"<Block><Name>{name}</Name><Size>{len(data)}</Size></Block>" for name, data in blocks.items())
        shown = listed if kind in {"all", "uncommitted"} else ""
        content = f"<CommittedBlocks/><UncommittedBlocks>{shown}</UncommittedBlocks>"
        return as_xml(f"<BlockList>{content}</BlockList>")

    def _read(self, request: Request, key: str) -> Reply:
        held = self.objects.by_key.get(key)
        if held is None:
            return self.refusal(404, "BlobNotFound", "The specified blob does not exist.")
        part = ranged(held.data, request.headers.get("x-ms-range") or request.headers.get("range"))
        if part is None:
            return self.refusal(416, "InvalidRange", "The range specified is invalid.")
        data, content_range = part
        about = {f"{_META}{name}": value for name, value in held.metadata.items()}
        headers = {"ETag": etag_of(held), "Last-Modified": held.modified_http, "x-ms-blob-type": "BlockBlob", **about}
        if request.method == "HEAD" or content_range is None:
            headers["Content-MD5"] = _md5(held.data)
        return Reply(206 if content_range else 200, data, {**headers, "Content-Range": content_range})

    def _listed(self, query: dict[str, str]) -> Reply:
        most, start = int(query.get("maxresults", "5000")), query.get("marker", "")
        keys = {key for key in self.objects.keys_below(query.get("prefix", "")) if key >= start}
        if "uncommittedblobs" in query.get("include", ""):
            keys |= {key for key in self.objects.uploads if key.startswith(query.get("prefix", "")) and key >= start}
        ordered = sorted(keys)
        page = [(key, self.objects.by_key.get(key)) for key in ordered[:most]]
        return as_xml(listing(page, ordered[most] if len(ordered) > most else ""))

    def _batch(self, request: Request) -> Reply:
        parts: list[str] = []
        for number, target in _DELETED.findall(request.body.decode("latin-1")):
            gone = self.objects.by_key.pop(_key_in(unquote(target.partition("?")[0])), None)
            parts.append(sub_answer(number, 202 if gone else 404, None if gone else "BlobNotFound"))
        return batch_reply(parts)


def numbers_of(request: Request) -> list[str]:
    """Return the numbers of a batch's requests."""
    return [number for number, _ in _DELETED.findall(request.body.decode("latin-1"))]


def sub_answer(number: str, status: int, code: str | None = None) -> str:
    """Return the answer to one request of a batch."""
    lines = [
        "Content-Type: application/http",
        f"Content-ID: {number}",
        "",
        f"HTTP/1.1 {status} {'Accepted' if status < 300 else 'No'}",
        *([] if code is None else [f"x-ms-error-code: {code}"]),
        "x-ms-version: 2021-12-02",
        "",
        "",
    ]
    return "\r\n".join(lines)


def batch_reply(parts: Iterable[str]) -> Reply:
    """Return the answer to a batch."""
    body = "".join(f"--batchresponse\r\n{part}\r\n" for part in parts) + "--batchresponse--\r\n"
    return Reply(202, body.encode(), {"Content-Type": "multipart/mixed; boundary=batchresponse"})


def as_xml(content: str) -> Reply:
    """Return an XML answer with status 200."""
    return Reply(200, f"{_XML}{content}".encode(), {"Content-Type": "application/xml"})


def listing(entries: Iterable[tuple[str, Held | None]], marker: str) -> str:
    """Return a page of a listing, with the next page's marker."""
    blobs = "".join(f"<Blob><Name>{escape(key)}</Name>{_properties(held)}</Blob>" for key, held in entries)
    return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"


def _properties(held: Held | None) -> str:
    if held is None:
        return "<Properties><Content-Length>0</Content-Length><BlobType>BlockBlob</BlobType></Properties>"
    about = {"Last-Modified": held.modified_http, "Etag": etag_of(held).strip('"'), "Content-Length": len(held.data)}
    content = "".join(f"<{name}>{value}</{name}>" for name, value in about.items())
    return f"<Properties>{content}<BlobType>BlockBlob</BlobType></Properties>"


def etag_of(held: Held) -> str:
    """Return the etag as headers write it."""
    return f'"0x8D{held.version:012X}"'


def _key_in(path: str) -> str:
    return "/".join(path.split("/")[3:])


def _metadata(request: Request) -> dict[str, str]:
    return {name.removeprefix(_META): value for name, value in request.headers.items() if name.startswith(_META)}


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
