"""A schema registry on the loopback interface: the parts of Confluent's protocol that readers and snapshots use."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

import fastavro

from tests.support.network.key_services import KeyService

_ROUTES = (
    ("_schema", re.compile(r"GET /schemas/ids/(\d+)")),
    ("_subjects", re.compile(r"GET /subjects")),
    ("_versions", re.compile(r"GET /subjects/([^/]+)/versions")),
    ("_version", re.compile(r"GET /subjects/([^/]+)/versions/(latest|\d+)")),
    ("_import", re.compile(r"POST /subjects/([^/]+)/versions")),
    ("_delete", re.compile(r"DELETE /subjects/([^/]+)/versions/(\d+)")),
    ("_own", re.compile(r"(GET|PUT|DELETE) /(config|mode)(?:/([^/]+))?")),
)
_Answer: TypeAlias = tuple[int, Any]


@dataclass
class RegistryService(KeyService):
    """Registry with schemas by id (from 1), and ids by subject and version. It requires ``authorization`` if this is
    set.

    The registry accepts a given id only if the subject's mode is IMPORT, as Confluent documents for ``/mode``.
    ``config`` and ``mode`` have the settings by subject; those of the whole registry are under the empty name.
    """

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    subjects: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    deleted: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    config: dict[str, str] = field(default_factory=lambda: {"": "BACKWARD"})
    mode: dict[str, str] = field(default_factory=lambda: {"": "READWRITE"})
    authorization: str | None = None

    def register(
        self, subject: str, schema: Any, *references: tuple[str, str, int | str], kind: str | None = None
    ) -> int:
        """Register a schema as a new version; return its id. A reference is a name, a subject and a version."""
        number = max(self.schemas, default=0) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        listed = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        self._store(subject, max(self.subjects.get(subject, {}), default=0) + 1, number, text, listed, kind)
        return number

    def contents(self) -> tuple[Any, ...]:
        """Return all state that an import may change."""
        return self.schemas, self.subjects, self.deleted, self.config, self.mode

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> _Answer:
        if self.authorization is not None and headers.get("Authorization") != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        bare, _, query = path.partition("?")
        for name, route in _ROUTES:
            if (match := route.fullmatch(f"{method} {bare}")) is not None:
                words = [unquote(each or "") for each in match.groups()]
                found: _Answer = getattr(self, name)(words, query, body)
                return found
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, words: list[str], _query: str, _body: object) -> _Answer:
        known = self.schemas.get(int(words[0]))
        return _refused(404, 40403, "Schema not found") if known is None else (200, known)

    def _subjects(self, _words: object, query: str, _body: object) -> _Answer:
        return 200, [subject for subject in self.subjects if self._known(subject, query)]

    def _versions(self, words: list[str], query: str, _body: object) -> _Answer:
        known = self._known(words[0], query)
        return (200, known) if known else _refused(404, 40401, f"Subject '{words[0]}' not found.")

    def _version(self, words: list[str], query: str, _body: object) -> _Answer:
        subject, named = words
        known = self._known(subject, query)
        version = known[-1] if named == "latest" and known else int(named.replace("latest", "0"))
        if version not in known:
            return _refused(404, 40401, f"Subject '{subject}' not found.")
        number = self.subjects[subject][version]
        return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number]}

    def _import(self, words: list[str], _query: str, body: dict[str, Any]) -> _Answer:
        (subject,) = words
        if self.mode.get(subject, self.mode[""]) != "IMPORT":
            return _refused(422, 42205, f"Subject {subject} is not in import mode")
        for each in body.get("references", ()):
            if each["version"] not in self.subjects.get(each["subject"], {}):
                return _refused(422, 42201, f"Invalid schema: no schema reference found for {each['name']}")
        number, version = body["id"], body["version"]
        known = self.schemas.get(number)
        if known is not None and known["schema"] != body["schema"]:
            return _refused(422, 42207, f"Overwrite new schema with id {number} is not permitted.")
        self._store(subject, version, number, body["schema"], body.get("references"), body.get("schemaType"))
        return 200, {"id": number}

    def _delete(self, words: list[str], _query: str, _body: object) -> _Answer:
        subject, version = words[0], int(words[1])
        if version not in self._known(subject, ""):
            return _refused(404, 40402, f"Version {version} not found.")
        for other, versions in self.subjects.items():
            for of, number in versions.items():
                places = [(each["subject"], each["version"]) for each in self.schemas[number].get("references", ())]
                if (subject, version) in places and (other, of) not in self.deleted:
                    return _refused(422, 42206, "One or more references exist to the schema")
        self.deleted.add((subject, version))
        return 200, version

    def _own(self, words: list[str], query: str, body: Mapping[str, str]) -> _Answer:
        method, kind, subject = words
        table, name = (self.mode, "mode") if kind == "mode" else (self.config, "compatibility")
        if method == "PUT":
            if body[name] == "IMPORT" and self._known(subject, "deleted=true") and "force=true" not in query:
                return _refused(422, 42205, "Cannot import since found existing subjects")
            table[subject] = body[name]
        elif subject not in table:
            return _refused(404, 40409, f"Subject '{subject}' does not have subject-level {name} configured")
        shown = {"compatibilityLevel" if method == "GET" and kind == "config" else name: table[subject]}
        if method == "DELETE":
            del table[subject]
        return 200, shown

    def _known(self, subject: str, query: str) -> list[int]:
        versions = sorted(self.subjects.get(subject, {}))
        return [each for each in versions if "deleted=true" in query or (subject, each) not in self.deleted]

    def _store(self, subject: str, version: int, number: int, text: str, references: Any, kind: str | None) -> None:
        more = {"references": references, "schemaType": None if kind == "AVRO" else kind}
        self.schemas[number] = {"schema": text, **{name: value for name, value in more.items() if value}}
        self.subjects.setdefault(subject, {})[version] = number


def _refused(status: int, code: int, message: str) -> _Answer:
    return status, {"error_code": code, "message": message}


def written(schema: Any, datum: Any) -> bytes:
    """Encode the datum without framing."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), datum)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    """Frame a datum of the schema with this id, like Confluent's serializers."""
    return b"\0" + number.to_bytes(4, "big") + data
