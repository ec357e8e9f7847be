"""A batch: one object with an index and its Messages.

::

    at         size  field
    0          4     header length: bytes that follow it up to the first Message, 4 + 12·n
    4          4     n, the number of Messages
    8 + 12·i   4     i
    12 + 12·i  4     where Message i begins, from the object's first byte
    16 + 12·i  4     its size, header included
    8 + 12·n         the Messages, without gaps or trailing bytes
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tieredstore.errors import InvalidRangeError
from tieredstore.kafka.batches import Buffer
from tieredstore.limits import MAX_INT32
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.messages import (
    BARE_HEADER_SIZE,
    MessageHeader,
    MessagePlace,
    checksum,
    joined_crc,
    message_checksum,
    parse_message_header,
    split_checksum,
)

START_SIZE: Final = 8
"""Bytes at an object's beginning that give the length of its index."""

_START: Final = struct.Struct(">ii")
_ENTRY: Final = struct.Struct(">iii")
_LEAST_SPLIT: Final = 64 << 10  # for smaller Messages, reading the object again is faster than combining CRCs
MAX_BATCH_SIZE: Final = MAX_INT32
"""Maximum bytes of an object. The index states positions and sizes as signed 32-bit numbers."""


def index_size(message_count: int) -> int:
    """Return the size in bytes of the index for this number of Messages. A notification calls this size
    ``headerSize``."""
    return START_SIZE + _ENTRY.size * message_count


def parse_index_size(start: Buffer, name: str) -> int:
    """Return the size of an object's index in bytes. ``start`` has the object's first 8 bytes or more."""
    if len(start) < START_SIZE:
        raise MessageCorruptError(
            f"{name}: {len(start)} bytes are too few for a batch, whose index alone has at least {index_size(1)} bytes"
        )
    following, count = _START.unpack_from(start)
    if count < 1 or following != index_size(count) - 4:
        raise MessageCorruptError(f"{name}: byte 0: an index of {following} bytes does not match {count} Messages")
    size = index_size(count)
    if size + BARE_HEADER_SIZE * count > MAX_BATCH_SIZE:
        raise MessageCorruptError(f"{name}: byte 4: {count} Messages do not fit an object")
    return size


class BatchIndex:
    """Byte ranges of a batch's Messages. The constructor checks that the Messages follow each other without gaps.

    The index stays in its raw form, so that a maliciously large index costs no extra memory.
    """

    __slots__ = ("_entries", "name", "object_size", "size")

    def __init__(self, head: Buffer, name: str, object_size: int | None = None) -> None:
        """``head`` begins with the whole index. If ``object_size`` is given, the last Message must end there.

        Raise MessageCorruptError if the index is invalid; the error names the object and the byte.
        """
        self.name: str = name
        self.size: int = parse_index_size(head, name)
        if len(head) < self.size:
            raise MessageCorruptError(
                f"{name}: byte {len(head)}: the object ends within its index of {self.size} bytes"
            )
        self._entries = bytes(head[START_SIZE : self.size])
        end = self.size
        for place, (number, start, size) in enumerate(_ENTRY.iter_unpack(self._entries)):
            if number != place or start != end or size < BARE_HEADER_SIZE or start + size > MAX_BATCH_SIZE:
                byte = START_SIZE + place * _ENTRY.size
                raise MessageCorruptError(
                    f"{name}: byte {byte}: the index lists Message {number} ({size} bytes at byte {start}) "
                    f"instead of Message {place} at byte {end}"
                )
            end = start + size
        self.object_size: int = end
        if object_size is not None and object_size != end:
            raise MessageCorruptError(
                f"{name}: byte {end}: its Messages end here, but the object has {object_size} bytes"
            )

    def __len__(self) -> int:
        return len(self._entries) // _ENTRY.size

    def byte_range(self, number: int) -> tuple[int, int]:
        """Return the byte range (end exclusive) of a Message. Raise InvalidRangeError if the batch has no such
        Message."""
        if not 0 <= number < len(self):
            raise InvalidRangeError(f"{self.name} has no Message {number}, only {len(self)} Messages")
        _, start, size = _ENTRY.unpack_from(self._entries, number * _ENTRY.size)
        return start, start + size

    def place(self, number: int) -> MessagePlace:
        """Return the place of a Message, for error messages."""
        return MessagePlace(self.name, number, self.byte_range(number)[0])

    def messages(
        self, batch: Buffer, numbers: Iterable[int] | None = None, begin: int = 0
    ) -> Iterator[tuple[MessagePlace, memoryview]]:
        """Yield Messages of an object, by default all. ``batch`` has the object's bytes from ``begin`` on."""
        view = memoryview(batch)
        for number in range(len(self)) if numbers is None else numbers:
            start, stop = self.byte_range(number)
            yield MessagePlace(self.name, number, start), view[start - begin : stop - begin]


def read_index(read: Callable[[int, int], Buffer], name: str, size: int) -> BatchIndex:
    """Return the index of an object, by two small reads; ``read(start, stop)`` returns the object's bytes from
    ``start`` up to ``stop`` (exclusive)."""
    head = parse_index_size(read(0, min(START_SIZE, size)), name)
    return BatchIndex(read(0, min(head, size)), name, size)


def headers_in(batch: Buffer, name: str) -> Iterator[tuple[int, MessageHeader | MessageCorruptError]]:
    """Yield each Message's number and header, or the header's error. Raise MessageCorruptError for a damaged index."""
    for place, message in BatchIndex(batch, name, len(batch)).messages(batch):
        try:
            yield place.number, parse_message_header(message, place)
        except MessageCorruptError as error:
            yield place.number, error


def fill_batch(messages: Sequence[Buffer], room: Callable[[int], memoryview]) -> memoryview:
    """Return the object that holds these Messages, in memory that ``room(size)`` returns. The memory may be larger than
    ``size``."""
    index = batch_index(messages)
    batch = room(len(index) + sum(map(len, messages)))
    end = 0
    for part in (index, *messages):
        batch[end : end + len(part)] = part
        end += len(part)
    return batch[:end]


def batch_index(messages: Sequence[Buffer]) -> bytes:
    """Return the bytes before the Messages. Raise InvalidRangeError for no Messages, or more than 2 GiB."""
    end = index_size(len(messages))
    if not messages or end + sum(map(len, messages)) > MAX_BATCH_SIZE:
        raise InvalidRangeError(f"{len(messages)} Messages of {sum(map(len, messages))} bytes cannot be a batch")
    parts = [_START.pack(end - 4, len(messages))]
    for number, message in enumerate(messages):
        parts.append(_ENTRY.pack(number, end, len(message)))
        end += len(message)
    return b"".join(parts)


def batch_checksum(batch: Buffer, messages: Sequence[Buffer]) -> int:
    """Return the CRC-32 of an object. The Messages must be sealed or checked, because the checksums of large Messages
    come from their headers.
    """
    crc = checksum(memoryview(batch)[: index_size(len(messages))])
    for message in messages:
        crc = message_checksum(message, crc)
    return crc


def split_checksums(batch: Buffer, name: str) -> tuple[int, Sequence[int] | None]:
    """Return the CRC-32 of a whole object, and of each Message's body, in one pass.

    The Messages' checksums are None if the Messages are small or the index is damaged.
    """
    try:
        index = BatchIndex(batch, name, len(batch))
    except MessageCorruptError:
        return checksum(batch), None
    if len(batch) < _LEAST_SPLIT * len(index):
        return checksum(batch), None
    crc, bodies = checksum(memoryview(batch)[: index.size]), list[int]()
    for _, message in index.messages(batch):
        whole, body = split_checksum(message)
        crc = joined_crc(crc, whole, message)
        bodies.append(body)
    return crc, bodies
