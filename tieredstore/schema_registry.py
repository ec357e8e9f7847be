"""Schemas of messages, from a registry with Confluent's protocol. Needs ``tieredstore[avro]``.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html describes the registry's protocol. Readers
request schemas by id and by subject. The schema of an id never changes, so each id is requested once. Snapshots and
restores send all their requests by :meth:`SchemaRegistry.ask`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.parse import quote as percent_encode

from tieredstore.errors import (
    ConfigError,
    RegistryDeniedError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
    StoreError,
    excerpt,
    quote,
    redact,
)
from tieredstore.format.json_object import Json
from tieredstore.installation import Extra
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import PerProcess
from tieredstore.process.retry import Attempt, RetryPolicy
from tieredstore.values.avro import AvroSchema, ReferringSchema

with Extra("a schema registry", "avro"):
    import requests

    from tieredstore.backends.http.session import BoundedAdapter, HttpLimits, configure
    from tieredstore.backends.http.sockets import within

_URL: Final = "schema.registry.url"
_OPTIONAL_PREFIX: Final = "schema.registry."
_NAMES: Final = (
    "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
)  # fmt: skip

RETRY_POLICY: Final = RetryPolicy(attempts=4, base_delay_s=0.2, max_delay_s=3.0, timeout_s=60.0, attempt_timeout_s=20.0)
_LIMITS: Final = HttpLimits(connections=4, connect_timeout_s=5.0, read_timeout_s=15.0)
_PIECE: Final = 64 * 1024
_MAX_ANSWER_BYTES: Final = 8 << 20
_MAX_REFERENCES: Final = 200
_MAX_SCHEMA_CHARACTERS: Final = 8_000_000
"""The longest schema accepted, including its references."""

_KEPT: Final = 1_000
_REFUSED_S: Final = 60.0
"""The seconds for which an id without a readable schema is not requested again, because thousands of messages may have
this id.
"""

_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"

_Answer: TypeAlias = "Mapping[str, object]"
_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The addresses of a registry, and the credentials for it."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate: tuple[str, str] | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RegistrySettings:
        """Read a client's properties under Confluent's names, with or without the prefix ``schema.registry.``.

        Raise ConfigError for unknown names, and if the address is missing.
        """
        given = {name.removeprefix(_OPTIONAL_PREFIX): text.strip() for name, text in properties.items()}
        unknown = sorted(set(given) - {"url", *_NAMES})
        if unknown:
            raise ConfigError(
                f"{quote(unknown[0])} is not a property of a schema registry; the properties are {_URL}, "
                f"{', '.join(_NAMES)}"
            )
        addresses = [text for text in (part.strip() for part in given.get("url", "").split(",")) if text]
        if not addresses:
            raise ConfigError(f"no schema registry is named: give {_URL}, as in http://registry:8081")
        plain, user_of_url = _without_user(addresses)
        user_info, token = given.get("basic.auth.user.info") or None, given.get("bearer.auth.token") or None
        if user_info is not None and ":" not in user_info:
            raise ConfigError("basic.auth.user.info has to be a user and a password, as in user:password")
        if user_info is not None and token is not None:
            raise ConfigError("basic.auth.user.info and bearer.auth.token exclude each other: give one of them")
        certificate, key = given.get("ssl.certificate.location"), given.get("ssl.key.location")
        if (certificate is None) != (key is None):
            raise ConfigError("ssl.certificate.location and ssl.key.location belong together: give both")
        return cls(
            plain,
            user_info or (None if token is not None else user_of_url),
            token,
            given.get("ssl.ca.location") or None,
            None if certificate is None or key is None else (certificate, key),
        )


class SchemaRegistry(Closing):
    """A client that gets schemas from a registry, by id or by subject. Pass it to :class:`~tieredstore.values.Avro` as
    ``lookup``.

    The client is thread-safe and picklable, and a forked child opens its own connections. After transient errors, it
    retries requests for at most a minute, then raises RegistryUnavailableError. It raises RegistryDeniedError for
    refused credentials.
    """

    def __init__(self, url: str | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Set up the client. ``url`` is one address, or several separated by commas. Its default is
        ``schema.registry.url`` in ``properties``.
        """
        named = dict(properties or {})
        if url is not None:
            named = {name: text for name, text in named.items() if name not in (_URL, "url")} | {_URL: url}
        self.settings: RegistrySettings = RegistrySettings.from_properties(named)
        self._session = PerProcess[requests.Session](partial(_session, self.settings), requests.Session.close)
        self._of_id: OrderedDict[int, AvroSchema] = OrderedDict()
        self._refused: OrderedDict[int, tuple[Deadline, SchemaNotFoundError | ConfigError]] = OrderedDict()

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self.settings.urls)})"

    def __call__(self, number: int) -> AvroSchema:
        """Return the schema with this id. Raise SchemaNotFoundError if the registry does not have it, ConfigError if it
        is unreadable.

        For a minute, raise the same error again without a request.
        """
        known = self._of_id.get(number)
        if known is not None:
            return known
        refused = self._refused.get(number)
        if refused is not None and refused[0].remaining_s() > 0:
            raise type(refused[1])(str(refused[1]))
        try:
            schema = self._schema(f"/schemas/ids/{number}", f"the schema {number}")
        except (SchemaNotFoundError, ConfigError) as error:
            _keep(self._refused, number, (Deadline.after(_REFUSED_S, RETRY_POLICY.monotonic), error))
            raise
        _keep(self._of_id, number, schema)
        return schema

    def latest(self, subject: str) -> AvroSchema:
        """Return a subject's latest schema. Values of the topic ``orders`` have the subject ``orders-value``."""
        return self._schema(
            f"/subjects/{percent_encode(subject, safe='')}/versions/latest", f"the subject {excerpt(subject)}"
        )

    def ask(
        self,
        path: str,
        what: str,
        *,
        method: Literal["DELETE", "GET", "POST", "PUT"] = "GET",
        body: Mapping[str, Json] | None = None,
        deadline: Deadline | None = None,
    ) -> object:
        """Send a request, retrying it if necessary, and return the JSON of the answer. ``what`` names the requested
        resource in errors.

        Raise SchemaNotFoundError for status 404, and RegistryError with the registry's own message if it refuses.
        """
        sent = partial(self._ask, path, what, method, body)
        return RETRY_POLICY.call(f"asking the schema registry for {what}", sent, deadline=deadline)

    def close(self) -> None:
        """Close the connections. The next request opens new connections."""
        self._session.close()

    def _schema(self, path: str, what: str) -> AvroSchema:
        # The schema and all its references share one deadline, because with separate deadlines, a slow registry could
        # take hours.
        deadline = RETRY_POLICY.deadline()
        answer = self._get(path, what, deadline)
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise ConfigError(
                f"{what} of the registry has the type {excerpt(kind)}, but only Avro is supported: read it as bytes"
            )
        text = _text_of(answer, what)
        reading = _References(what, deadline, len(text))
        self._add_references(answer, what, reading, ())
        return ReferringSchema(text, tuple(reading.texts.values())) if reading.texts else text

    def _add_references(
        self, answer: _Answer, what: str, reading: _References, above: tuple[tuple[str, int], ...]
    ) -> None:
        """Add to ``reading`` all schemas to which ``answer`` refers. Each schema comes after the schemas to which it
        refers.
        """
        for place in _places(answer, what):
            if place in reading.texts:
                continue
            if place in above or len(reading.texts) + len(above) >= _MAX_REFERENCES:
                raise ConfigError(
                    f"{reading.what} of the registry refers to itself, or to more than {_MAX_REFERENCES} schemas"
                )
            named = f"version {place[1]} of {excerpt(place[0])}"
            referred = self._get(
                f"/subjects/{percent_encode(place[0], safe='')}/versions/{place[1]}", named, reading.deadline
            )
            text = _text_of(referred, named)
            reading.count(len(text))
            self._add_references(referred, named, reading, (*above, place))
            reading.texts[place] = text

    def _get(self, path: str, what: str, deadline: Deadline) -> _Answer:
        answer = self.ask(path, what, deadline=deadline)
        if not isinstance(answer, dict):
            raise RegistryError(f"{self.settings.urls[0]} is not a schema registry: its answer is not a JSON object")
        return cast("_Answer", answer)

    def _ask(self, path: str, what: str, method: str, body: Mapping[str, Json] | None, attempt: Attempt) -> object:
        # Each attempt uses the next of the registry's addresses, because one of its servers may be down.
        url = self.settings.urls[(attempt.number - 1) % len(self.settings.urls)]
        try:
            with (
                within(attempt.deadline),
                self._session.get().request(
                    method, f"{url}{path}", json=body, stream=True, allow_redirects=False
                ) as response,
            ):
                status, content = response.status_code, read_body(response)
        except (requests.RequestException, StoreError) as error:
            # Do not chain the errors, because the traceback would show the library's arguments, with passwords.
            raise _no_answer(url, error) from None
        _check_status(status, url, what, content)
        return _parse(content, url)


@dataclass(slots=True)
class _References:
    """The references of one schema, with limits of their total size and of the time for all requests."""

    what: str
    deadline: Deadline
    characters: int
    texts: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    def count(self, characters: int) -> None:
        """Add the length of one schema text. Raise ConfigError if the schema and all schemas that it refers to have
        more than 8 million characters in total.
        """
        self.characters += characters
        if self.characters > _MAX_SCHEMA_CHARACTERS:
            raise ConfigError(
                f"{self.what} of the registry, with the schemas that it refers to, has more than "
                f"{_MAX_SCHEMA_CHARACTERS:,} characters"
            )


def _places(answer: _Answer, what: str) -> Iterator[tuple[str, int]]:
    """Yield the subjects and versions that an answer refers to."""
    try:
        listed = cast("Sequence[Mapping[str, str | int]]", answer.get("references") or ())
        for reference in listed:
            yield str(reference["subject"]), int(reference["version"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RegistryError(f"the schema registry returned an invalid reference of {what}") from None


def _keep(table: OrderedDict[int, _Kept], number: int, content: _Kept) -> None:
    table[number] = content
    while len(table) > _KEPT:
        table.popitem(last=False)


def _session(settings: RegistrySettings) -> requests.Session:
    session = configure(requests.Session(), BoundedAdapter(_LIMITS), None)
    session.headers["Accept"] = _ACCEPT
    if settings.token is not None:
        session.headers["Authorization"] = f"Bearer {settings.token}"
    elif settings.user_info is not None:
        session.headers["Authorization"] = f"Basic {b64encode(settings.user_info.encode()).decode()}"
    if settings.ca_location is not None:
        session.verify = settings.ca_location
        # Ignore environment variables, because a CA bundle in REQUESTS_CA_BUNDLE would override the configured one.
        session.trust_env = False
    session.cert = settings.certificate
    return session


def _without_user(urls: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the addresses without credentials, and the credentials if an address contains any."""
    plain: list[str] = []
    user_info: str | None = None
    for url in urls:
        parts = _parts_of(url)
        if parts is None:
            raise ConfigError(
                f"{_URL} is {excerpt(redact(url))!r}, which is not an address such as http://registry:8081"
            )
        user, at, host = parts.netloc.rpartition("@")
        plain.append(f"{parts.scheme}://{host}{parts.path.rstrip('/')}")
        user_info = user_info or (unquote(user) if at else None)
    return tuple(plain), user_info


def _parts_of(url: str) -> SplitResult | None:
    """Split an address into its parts; return None if the address is invalid."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return None if not is_address or parts.query or parts.fragment else parts


def read_body(response: requests.Response) -> bytes:
    """Return the body. Raise RegistryError if it is larger than any schema."""
    pieces: list[bytes] = []
    size = 0
    for piece in response.iter_content(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_ANSWER_BYTES:
            raise RegistryError(f"the schema registry answers with more than {_MAX_ANSWER_BYTES >> 20} MiB")
    return b"".join(pieces)


def _no_answer(url: str, error: Exception) -> RegistryError:
    text = excerpt(redact(error), 300)
    if isinstance(error, requests.exceptions.SSLError):
        return RegistryDeniedError(
            f"the TLS connection to the schema registry at {url} failed, because its certificate or the client's was "
            f"not accepted: {text}"
        )
    return RegistryUnavailableError(f"the schema registry at {url} did not answer: {text}")


def _check_status(status: int, url: str, what: str, content: bytes) -> None:
    match status:
        case 200:
            return
        case 404:
            raise SchemaNotFoundError(f"the schema registry at {url} does not have {what}")
        case 401 | 403:
            raise RegistryDeniedError(f"the schema registry at {url} does not allow access to {what} (status {status})")
        case 405 | 409 | 422:
            said = excerpt(redact(content.decode("utf-8", "replace")), 300)
            raise RegistryError(f"the schema registry at {url} refuses {what} (status {status}): {said}")
        case 408 | 429 | 500 | 502 | 503 | 504:
            raise RegistryUnavailableError(f"the schema registry at {url} cannot give {what} now (status {status})")
        case _:
            raise RegistryError(f"{url} is not a schema registry: it answers with status {status}")


def _parse(body: bytes, url: str) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RegistryError(f"{url} is not a schema registry: its answer is not JSON") from None


def _text_of(answer: _Answer, what: str) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise RegistryError(f"the schema registry answers without the text of {what}")
    return text
