"""A batch: one object, an index and the Messages behind it.

::

    at         size  field
    0          4     header length: bytes that follow it up to the first Message, 4 + 12·n
    4          4     n, the number of Messages
    8 + 12·i   4     i
    12 + 12·i  4     where Message i begins, from the object's first byte
    16 + 12·i  4     its size, header included
    8 + 12·n         the Messages, nothing between or behind them
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tieredstore.errors import InvalidRangeError
from tieredstore.kafka.batches import Buffer
from tieredstore.limits import MAX_INT32
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format._checksums import joined_crc
from tieredstore.pubsub.format.messages import (
    BARE_HEADER_SIZE,
    MessageHeader,
    MessagePlace,
    checksum,
    message_checksum,
    parse_message_header,
    split_checksum,
)

START_SIZE: Final = 8
"""Bytes that say how long the index is."""

_START: Final = struct.Struct(">ii")
_ENTRY: Final = struct.Struct(">iii")
_LEAST_SPLIT: Final = 64 << 10  # of smaller Messages the object is read a second time sooner than their CRCs are joined
MAX_BATCH_SIZE: Final = MAX_INT32
"""Bytes of an object at most: its fields are signed, of 32 bits."""


def index_size(message_count: int) -> int:
    """Bytes of the index of so many Messages; a notification calls it ``headerSize``."""
    return START_SIZE + _ENTRY.size * message_count


def parse_index_size(start: Buffer, name: str) -> int:
    """Bytes of the index of the object ``name`` that begins with ``start``, 8 bytes or more."""
    if len(start) < START_SIZE:
        raise MessageCorruptError(f"{name}: {len(start)} bytes are no batch, whose index alone has {index_size(1)}")
    following, count = _START.unpack_from(start)
    if count < 1 or following != index_size(count) - 4:
        raise MessageCorruptError(f"{name}: byte 0: an index of {following} bytes does not go with {count} Messages")
    size = index_size(count)
    if size + BARE_HEADER_SIZE * count > MAX_BATCH_SIZE:
        raise MessageCorruptError(f"{name}: byte 4: no object holds {count} Messages")
    return size


class BatchIndex:
    """Where the Messages of a batch lie; checked when it is made: they follow each other without a gap.

    It keeps the bytes that it was given: whoever made them large finds nothing made of them.
    """

    __slots__ = ("_entries", "name", "object_size", "size")

    def __init__(self, head: Buffer, name: str, object_size: int | None = None) -> None:
        """``head`` begins with the whole index. ``object_size``: the object's; the last Message must end there.

        Raises MessageCorruptError, naming the object and the byte.
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
                    f"{name}: byte {byte}: the index has Message {number} of {size} bytes at {start} where Message "
                    f"{place} at {end} is expected"
                )
            end = start + size
        self.object_size: int = end
        if object_size is not None and object_size != end:
            raise MessageCorruptError(
                f"{name}: byte {end}: its Messages end here, and the object has {object_size} bytes"
            )

    def __len__(self) -> int:
        return len(self._entries) // _ENTRY.size

    def byte_range(self, number: int) -> tuple[int, int]:
        """The bytes of Message ``number`` in the object, half-open; InvalidRangeError if there is no such Message."""
        if not 0 <= number < len(self):
            raise InvalidRangeError(f"{self.name} has {len(self)} Messages, and no Message {number}")
        _, start, size = _ENTRY.unpack_from(self._entries, number * _ENTRY.size)
        return start, start + size

    def place(self, number: int) -> MessagePlace:
        """Where Message ``number`` lies, for errors."""
        return MessagePlace(self.name, number, self.byte_range(number)[0])

    def messages(self, batch: Buffer) -> Iterator[tuple[MessagePlace, memoryview]]:
        """The Messages of the whole object ``batch``."""
        view = memoryview(batch)
        for number in range(len(self)):
            start, stop = self.byte_range(number)
            yield MessagePlace(self.name, number, start), view[start:stop]


def read_index(read: Callable[[int, int], Buffer], name: str, size: int) -> BatchIndex:
    """The index of the object ``name`` of ``size`` bytes, by two small reads of bytes ``start:stop``."""
    head = parse_index_size(read(0, min(START_SIZE, size)), name)
    return BatchIndex(read(0, min(head, size)), name, size)


def headers_in(batch: Buffer, name: str) -> Iterator[tuple[int, MessageHeader | MessageCorruptError]]:
    """Each Message's number and its header, or what is wrong with that; MessageCorruptError for a damaged index."""
    for place, message in BatchIndex(batch, name, len(batch)).messages(batch):
        try:
            yield place.number, parse_message_header(message, place)
        except MessageCorruptError as error:
            yield place.number, error


def build_batch(messages: Sequence[Buffer]) -> bytes:
    """The object of one or more Messages. InvalidRangeError for none, or for more than 2 GiB of them."""
    return b"".join([batch_index(messages), *messages])


def fill_batch(messages: Sequence[Buffer], room: Callable[[int], memoryview]) -> memoryview:
    """As :func:`build_batch`, in memory that is asked for by the size; ``room`` may give more."""
    index = batch_index(messages)
    batch = room(len(index) + sum(map(len, messages)))
    end = 0
    for part in (index, *messages):
        batch[end : end + len(part)] = part
        end += len(part)
    return batch[:end]


def batch_index(messages: Sequence[Buffer]) -> bytes:
    """What stands before the Messages. InvalidRangeError for none, or for more than 2 GiB of them."""
    end = index_size(len(messages))
    if not messages or end + sum(map(len, messages)) > MAX_BATCH_SIZE:
        raise InvalidRangeError(f"{len(messages)} Messages of {sum(map(len, messages))} bytes are no batch")
    parts = [_START.pack(end - 4, len(messages))]
    for number, message in enumerate(messages):
        parts.append(_ENTRY.pack(number, end, len(message)))
        end += len(message)
    return b"".join(parts)


def batch_checksum(batch: Buffer, messages: Sequence[Buffer]) -> int:
    """The CRC-32 of the object ``batch`` of these Messages, which were sealed or checked: large bodies are not read."""
    crc = checksum(memoryview(batch)[: index_size(len(messages))])
    for message in messages:
        crc = message_checksum(message, crc)
    return crc


def split_checksums(batch: Buffer, name: str) -> tuple[int, Sequence[int] | None]:
    """The CRC-32 of a whole object, and of each Message's body, by reading it once; None for these where Messages are
    small, or the index is none."""
    try:
        index = BatchIndex(batch, name, len(batch))
    except MessageCorruptError:
        return checksum(batch), None
    if len(batch) < _LEAST_SPLIT * len(index):
        return checksum(batch), None
    crc, bodies = checksum(memoryview(batch)[: index.size]), list[int]()
    for _, message in index.messages(batch):
        whole, body = split_checksum(message)
        crc = joined_crc(crc, whole, len(message))
        bodies.append(body)
    return crc, bodies
