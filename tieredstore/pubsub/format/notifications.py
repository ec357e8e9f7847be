"""Keys of batches, and notifications as JSON that MemQ's own consumer can read.

A key is ``[<hh>/]<path>/<client request id>_<server request id>_<ms>_<attempt>_<host>``. Keys show neither the order
nor the time of records; ``hh`` spreads the keys over 256 prefixes.

A notification has MemQ's fields first, in MemQ's order. Then it has fields of this project, which MemQ ignores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, cast

from Crypto.Hash import MD2
from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import from_json

from tieredstore.errors import ConfigError, excerpt, quote
from tieredstore.limits import MAX_INT32
from tieredstore.pubsub.errors import NotificationCorruptError
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import BARE_HEADER_SIZE, ProducerRequest

MOST_BYTES: Final = 1 << 20
"""Maximum bytes of a notification. For comparison: the notification of a thousand Messages from a thousand producers
has 100 KiB."""

_MOST_VALUES: Final = 50_000
# Limit the Messages of a batch that this project writes, because readers enumerate the batch's requests.
_MOST_MESSAGES: Final = 100_000
_MAX_INT64: Final = (1 << 63) - 1
_NO_NUL: Final = r"^[^\x00]*$"


def _check_batch_id(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise ValueError("is not 32 hexadecimal digits")
    return text


def _check_runs(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(numbers) % 2 or any(first > last for first, last in zip(numbers[::2], numbers[1::2], strict=True)):
        raise ValueError("is not a list of first and last ids")
    return numbers


_Size = Annotated[int, Strict(), Field(ge=1, le=MAX_INT32)]
_Number = Annotated[int, Strict(), Field(ge=-_MAX_INT64, le=_MAX_INT64)]
_Timestamp = Annotated[int, Strict(), Field(ge=-_MAX_INT64 - 1, le=_MAX_INT64)]


@dataclass(frozen=True, slots=True)
class RequestRuns:
    """A producer's address in hexadecimal, its epoch, and the first and last request id of each sequence of consecutive
    ids."""

    address: Annotated[str, Strict(), Field(max_length=254, pattern=r"^(?:[0-9a-fA-F]{2})*$")]
    epoch: _Number
    requests: Annotated[tuple[_Number, ...], AfterValidator(_check_runs)]

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """First and last request id of each sequence of consecutive ids."""
        return zip(self.requests[::2], self.requests[1::2], strict=True)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Facts that this project's writers add to a notification, so that readers need not fetch the object.

    ``crc32`` is the checksum of the whole object. ``producers`` lists the requests of its Messages. ``empty`` lists
    requests without records, which the broker has acknowledged since its last batch without storing them. Timestamps
    are in ms, or None if no record has a timestamp.
    """

    batch_id: Annotated[str, Strict(), AfterValidator(_check_batch_id), Field(alias="batchId")]
    records: Annotated[int, Strict(), Field(ge=0, le=_MAX_INT64)]
    min_timestamp: Annotated[_Timestamp | None, Field(alias="minTimestamp")]
    max_timestamp: Annotated[_Timestamp | None, Field(alias="maxTimestamp")]
    total_size: Annotated[_Size, Field(alias="totalSize")]
    crc32: Annotated[int, Strict(), Field(ge=0, le=(1 << 32) - 1)]
    producers: tuple[RequestRuns, ...] = ()
    empty: tuple[RequestRuns, ...] = ()

    def requests(self, most: int) -> Iterator[ProducerRequest]:
        """Yield the requests listed in ``producers``, at most ``most`` + 1 of each sequence of ids."""
        for runs in self.producers:
            address = bytes.fromhex(runs.address)
            for first, last in runs.pairs:
                for number in range(first, min(last, first + most) + 1):
                    yield ProducerRequest(address, runs.epoch, number)


@dataclass(frozen=True, slots=True)
class Notification:
    """One batch: its object, and its sizes. ``object_size`` is the size as MemQ counts it, without the index;
    ``total_size`` is the size of the whole object."""

    topic: Annotated[str, Strict(), Field(min_length=1, max_length=255, pattern=_NO_NUL)]
    object_size: Annotated[_Size, Field(alias="objectSize")]
    message_count: Annotated[_Size, Field(alias="numBatchMessages")]
    key: Annotated[str, Strict(), Field(min_length=1, max_length=1024, pattern=_NO_NUL)]
    bucket: Annotated[str, Strict(), Field(max_length=255, pattern=_NO_NUL)] = ""
    attempts: Annotated[int, Strict(), Field(ge=0, le=MAX_INT32, alias="numAttempts")] = 0
    facts: BatchFacts | None = None

    @property
    def header_size(self) -> int:
        """Bytes of the object's index."""
        return index_size(self.message_count)

    @property
    def total_size(self) -> int:
        """Bytes of the object."""
        return self.object_size + self.header_size

    def to_json(self) -> bytes:
        """Return the notification as stored."""
        fields: dict[str, object] = {
            "bucket": self.bucket, "key": self.key, "objectSize": self.object_size, "topic": self.topic,
            "headerSize": self.header_size, "numBatchMessages": self.message_count, "numAttempts": self.attempts,
        }  # fmt: skip
        if self.facts is not None:
            fields |= _FACTS.dump_python(self.facts, by_alias=True)
            if not self.facts.empty:
                del fields["empty"]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


_FACTS: Final = TypeAdapter(BatchFacts)
_NOTIFICATION: Final = TypeAdapter(Notification)


def parse_notification(raw: bytes, where: str) -> Notification:
    """Parse a notification. Raise NotificationCorruptError, naming ``where``, if it is invalid.

    Unknown fields are ignored."""
    fields = {name: value for name, value in _parse_object(raw, where).items() if value is not None}
    if "path" in fields:
        raise NotificationCorruptError(f"{where}: its path names a file of MemQ's file handler, which is in no store")
    try:
        facts = None
        if "batchId" in fields:
            facts = _FACTS.validate_python({"minTimestamp": None, "maxTimestamp": None, **fields})
        notification = _NOTIFICATION.validate_python({**fields, "facts": facts})
        _check(notification, fields.get("headerSize"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        value = None if first["type"] == "missing" else first["input"]
        reason = first.get("ctx", {}).get("error")
        why = str(reason) if isinstance(reason, ValueError) else f"is {quote(value)}: {first['msg']}"
        raise NotificationCorruptError(
            f"{where}: the notification's {'.'.join(map(str, first['loc']))} {why}"
        ) from error
    except ValueError as error:
        raise NotificationCorruptError(f"{where}: the notification's {error}") from error
    return notification


def _check(notification: Notification, header_size: object) -> None:
    """Raise ValueError for inconsistent fields."""
    count, facts = notification.message_count, notification.facts
    if header_size != index_size(count):
        raise ValueError(f"headerSize does not match {count} Messages")
    if not index_size(count) + BARE_HEADER_SIZE * count <= notification.total_size <= MAX_INT32:
        raise ValueError(f"objectSize is impossible for a batch of {count} Messages")
    if facts is None:
        return
    if facts.total_size != notification.total_size:
        raise ValueError("totalSize does not match objectSize and headerSize")
    if count > _MOST_MESSAGES:
        raise ValueError(f"numBatchMessages is {count}, above the limit of {_MOST_MESSAGES}")
    named = sum(last - first + 1 for each in facts.producers for first, last in each.pairs)
    if named > count:
        raise ValueError(f"producers list {named} requests for {count} Messages")


def _parse_object(raw: bytes, where: str) -> dict[str, object]:
    if len(raw) > MOST_BYTES:
        raise NotificationCorruptError(f"{where}: a notification of {len(raw)} bytes is larger than {MOST_BYTES}")
    # Limit the number of JSON values, because a parsed value takes many times the memory of its text. Count commas and
    # brackets, because each value follows one of them.
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise NotificationCorruptError(f"{where}: a notification has more than {_MOST_VALUES} values")
    try:
        document: object = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise NotificationCorruptError(f"{where}: a notification is not JSON: {excerpt(error)}") from error
    if not isinstance(document, dict):
        raise NotificationCorruptError(f"{where}: a notification is {quote(document)}, not a JSON object")
    return cast("dict[str, object]", document)


PREFIXES: Final = tuple(f"{number:02x}" for number in range(256))
"""All values of ``hh``."""

_NAME: Final = re.compile(r"(-?\d{1,20})_(-?\d{1,20})_(\d{1,20})_(\d{1,10})_([^/]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The parts of a key. The two ids belong to the batch's first Message; ``ms`` is the time at which writing the
    batch began."""

    path: str
    client_request_id: int
    server_request_id: int
    ms: int
    attempt: int
    host: str
    is_hashed: bool = True

    def __str__(self) -> str:
        name = f"{self.client_request_id}_{self.server_request_id}_{self.ms}_{self.attempt}_{self.host}"
        hashed = f"{key_hash(self.client_request_id)}/" if self.is_hashed else ""
        return f"{hashed}{self.path}/{name}"


def parse_batch_key(key: str, path: str) -> BatchKey | None:
    """Parse a key under ``path``. Return None if MemQ's S3 handler would never write such a key."""
    folder, _, name = key.rpartition("/")
    fields = _NAME.fullmatch(name)
    hashed = folder != path
    if fields is None or (hashed and folder[2:] != f"/{path}"):
        return None
    client, server, ms, attempt = map(int, fields.groups()[:4])
    if hashed and folder[:2] != key_hash(client):
        return None
    return BatchKey(path, client, server, ms, attempt, fields[5], hashed)


def check_path(path: str) -> str:
    """Return ``path``. Raise ConfigError if keys below it could be confused with keys below another path."""
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or len(path.encode("utf-8", "replace")) > 512 or "\0" in path:
        raise ConfigError(f"invalid path {path!r}: use names separated by single /, at most 512 bytes")
    return path


def key_hash(client_request_id: int) -> str:
    """Return ``hh`` of a key: the first two hexadecimal digits of the MD2 hash of the request id in decimal."""
    digest = MD2.new(str(client_request_id).encode()).hexdigest()  # noqa: S303  it only spreads keys, as in MemQ
    return digest[:2]
