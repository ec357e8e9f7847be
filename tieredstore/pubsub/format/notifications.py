"""Notifications: what tells consumers of a batch, as JSON that MemQ's own consumer reads too.

MemQ's fields come first, in its order; behind them ours, which MemQ passes over.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias, cast

from tieredstore.errors import excerpt, quoted
from tieredstore.limits import MAX_INT32
from tieredstore.pubsub.errors import NotificationCorrupt
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import BARE_HEADER_SIZE

MOST_BYTES: Final = 1 << 20
"""Bytes of a notification at most: one of a thousand Messages of a thousand producers has 100 KiB."""

_MOST_VALUES: Final = 50_000
_MOST_MESSAGES: Final = 100_000  # of a batch of ours; whoever names their requests names each
_MAX_INT64: Final = (1 << 63) - 1
_BATCH_ID: Final = re.compile("[0-9a-f]{32}")
_MAX_KEY: Final = 1024


RequestRuns: TypeAlias = tuple[str, int, tuple[int, ...]]
"""A producer's address in hexadecimal, its epoch, and the first and last of each run of request ids."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What our writers add, so that nobody opens an object to know it. Timestamps are ms, None where no record has one.

    ``crc32`` is that of the whole object; ``producers`` are whose Messages are in it: of each its address in
    hexadecimal, its epoch, and the first and last of each run of request ids. ``empty``, likewise: requests without
    records, which the broker that wrote the batch has answered since its last one, and stored nowhere.
    """

    batch_id: str
    records: int
    min_timestamp: int | None
    max_timestamp: int | None
    total_size: int
    crc32: int
    producers: tuple[RequestRuns, ...] = ()
    empty: tuple[RequestRuns, ...] = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """One batch: where its object lies (``bucket`` and ``key``, or ``path`` of MemQ's file handler), and its sizes.

    ``object_size`` is as MemQ counts: without the index in a bucket, with it in a file. ``total_size`` is the object's.
    """

    topic: str
    object_size: int
    message_count: int
    key: str | None = None
    bucket: str = ""
    path: str | None = None
    attempts: int = 0
    facts: BatchFacts | None = None

    @property
    def header_size(self) -> int:
        """Bytes of the object's index."""
        return index_size(self.message_count)

    @property
    def total_size(self) -> int:
        """Bytes of the object."""
        return self.object_size + (self.header_size if self.path is None else 0)

    def to_json(self) -> bytes:
        """The notification as it is stored."""
        fields: dict[str, object] = {}
        if self.path is None:
            fields |= {"bucket": self.bucket, "key": self.key, "objectSize": self.object_size}
        else:
            fields |= {"path": self.path, "objectSize": self.object_size}
        fields |= {"topic": self.topic, "headerSize": self.header_size, "numBatchMessages": self.message_count}
        if self.path is None:
            fields["numAttempts"] = self.attempts
        if self.facts is not None:
            fields |= _facts_fields(self.facts)
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def parse_notification(raw: bytes, where: str) -> Notification:
    """What ``raw`` says; NotificationCorrupt, naming ``where`` it stands, if that is no batch. Fields that are not
    known are passed over."""
    fields = _Fields(_parse_object(raw, where), where)
    path = fields.text("path", most=4096) if fields.has("path") else None
    key = fields.text("key", most=_MAX_KEY) if path is None else None
    count = fields.number("numBatchMessages", 1, MAX_INT32)
    if fields.number("headerSize", 0, MAX_INT32) != index_size(count):
        raise fields.wrong("headerSize", f"does not go with {count} Messages")
    notification = Notification(
        topic=fields.text("topic", most=255),
        object_size=fields.number("objectSize", 1, MAX_INT32),
        message_count=count,
        key=key,
        bucket=fields.text("bucket", most=255, least=0) if path is None and fields.has("bucket") else "",
        path=path,
        attempts=fields.number("numAttempts", 0, MAX_INT32) if fields.has("numAttempts") else 0,
        facts=_parse_facts(fields) if fields.has("batchId") else None,
    )
    if not index_size(count) + BARE_HEADER_SIZE * count <= notification.total_size <= MAX_INT32:
        raise fields.wrong("objectSize", f"is no size of a batch of {count} Messages")
    if notification.facts is not None:
        _check_facts(notification.facts, notification, fields)
    return notification


def _check_facts(facts: BatchFacts, notification: Notification, fields: _Fields) -> None:
    if facts.total_size != notification.total_size:
        raise fields.wrong("totalSize", "does not agree with objectSize and headerSize")
    if notification.message_count > _MOST_MESSAGES:
        raise fields.wrong("numBatchMessages", f"is {notification.message_count}, of which ours have {_MOST_MESSAGES}")
    named = sum(
        last - first + 1 for _, _, runs in facts.producers for first, last in zip(runs[::2], runs[1::2], strict=True)
    )
    if named > notification.message_count:
        raise fields.wrong("producers", f"name {named} requests of {notification.message_count} Messages")


def _facts_fields(facts: BatchFacts) -> dict[str, object]:
    empty: dict[str, object] = {"empty": _runs_fields(facts.empty)} if facts.empty else {}
    return {
        "batchId": facts.batch_id,
        "records": facts.records,
        "minTimestamp": facts.min_timestamp,
        "maxTimestamp": facts.max_timestamp,
        "totalSize": facts.total_size,
        "crc32": facts.crc32,
        "producers": _runs_fields(facts.producers),
    } | empty


def _runs_fields(producers: tuple[RequestRuns, ...]) -> list[dict[str, object]]:
    return [{"address": address, "epoch": epoch, "requests": list(requests)} for address, epoch, requests in producers]


def _parse_facts(fields: _Fields) -> BatchFacts:
    batch_id = fields.text("batchId", most=32)
    if not _BATCH_ID.fullmatch(batch_id):
        raise fields.wrong("batchId", "is not 32 hexadecimal digits")
    return BatchFacts(
        batch_id=batch_id,
        records=fields.number("records", 0, _MAX_INT64),
        min_timestamp=fields.optional_number("minTimestamp"),
        max_timestamp=fields.optional_number("maxTimestamp"),
        total_size=fields.number("totalSize", 1, MAX_INT32),
        crc32=fields.number("crc32", 0, (1 << 32) - 1),
        producers=tuple(_parse_producer(fields, item) for item in fields.items("producers")),
        empty=tuple(_parse_producer(fields, item) for item in (fields.items("empty") if fields.has("empty") else ())),
    )


def _parse_producer(fields: _Fields, item: object) -> RequestRuns:
    if not isinstance(item, dict):
        raise fields.wrong("producers", "holds what is no producer")
    producer = _Fields(cast("dict[str, object]", item), fields.where)
    requests = producer.items("requests")
    numbers = tuple(number for number in requests if isinstance(number, int) and not isinstance(number, bool))
    runs = list(zip(numbers[::2], numbers[1::2], strict=False))
    if (
        len(numbers) != len(requests)
        or len(numbers) % 2
        or any(not -_MAX_INT64 < a <= b <= _MAX_INT64 for a, b in runs)
    ):
        raise producer.wrong("requests", "is no list of first and last ids")
    address = producer.text("address", most=254, least=0)
    return address, producer.number("epoch", -_MAX_INT64, _MAX_INT64), numbers


class _Fields:
    """The fields of one JSON object; what is wrong with one is NotificationCorrupt."""

    def __init__(self, values: dict[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, *, most: int, least: int = 1) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or not least <= len(value) <= most or "\0" in value:
            raise self.wrong(name, f"is {quoted(value)}, not text of up to {most} characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, "has half of a character in it") from None
        return value

    def number(self, name: str, least: int, most: int) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"is {quoted(value)}, not a number from {least} to {most}")
        return value

    def optional_number(self, name: str) -> int | None:
        return self.number(name, -_MAX_INT64 - 1, _MAX_INT64) if self.has(name) else None

    def items(self, name: str) -> list[object]:
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, f"is {quoted(value)}, not a list")
        return cast("list[object]", value)

    def wrong(self, name: str, why: str) -> NotificationCorrupt:
        return NotificationCorrupt(f"{self.where}: the notification's {name} {why}")


def _parse_object(raw: bytes, where: str) -> dict[str, object]:
    if len(raw) > MOST_BYTES:
        raise NotificationCorrupt(f"{where}: {len(raw)} bytes are no notification, which has {MOST_BYTES} at most")
    # Each value has one of these before it; what is made of them takes many times their bytes.
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise NotificationCorrupt(f"{where}: a notification of over {_MOST_VALUES} values is none")
    try:
        document = json.loads(raw.decode(), parse_constant=_refuse, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else excerpt(error)
        raise NotificationCorrupt(f"{where}: a notification that is not JSON: {why}") from error
    if not isinstance(document, dict):
        raise NotificationCorrupt(f"{where}: the notification is not a JSON object but {quoted(document)}")
    return cast("dict[str, object]", document)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _whole_number(digits: str) -> int:
    if len(digits) > 20:  # of 64 bits, with a sign
        raise ValueError(f"a number in it has {len(digits)} digits")
    return int(digits)
