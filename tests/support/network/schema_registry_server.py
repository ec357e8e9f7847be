"""A schema registry on the loopback interface: the part of Confluent's protocol that readers use."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import fastavro

from tests.support.network.key_services import KeyService

_BY_ID = re.compile(r"/schemas/ids/(\d+)")
_BY_SUBJECT = re.compile(r"/subjects/([^/]+)/versions/(latest|\d+)")


@dataclass
class RegistryService(KeyService):
    """Schemas by id, counted from 1, and by subject and version. If set, ``authorization`` is required."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    subjects: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    authorization: str | None = None

    def register(
        self, subject: str, schema: Any, *references: tuple[str, str, int | str], kind: str | None = None
    ) -> int:
        """Return the id of a new version; ``references`` are names, subjects and versions."""
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if references:
            listed = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
            self.schemas[number]["references"] = listed
        if kind is not None:
            self.schemas[number]["schemaType"] = kind
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.authorization is not None and headers.get("Authorization") != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if (by_id := _BY_ID.fullmatch(path)) is not None:
            known = self.schemas.get(int(by_id[1]))
            return (404, {"error_code": 40403, "message": "Schema not found"}) if known is None else (200, known)
        if (by_subject := _BY_SUBJECT.fullmatch(path)) is not None:
            versions = self.subjects.get(subject := unquote(by_subject[1]), [])
            version = len(versions) if by_subject[2] == "latest" else int(by_subject[2])
            if not 0 < version <= len(versions):
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            number = versions[version - 1]
            return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def written(schema: Any, datum: Any) -> bytes:
    """Encode the datum without framing."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), datum)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    """Frame a datum of the schema with this id, like Confluent's serializers."""
    return b"\0" + number.to_bytes(4, "big") + data
