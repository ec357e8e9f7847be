"""Inspection of a stored batch: one object, Message by Message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import BatchIndex, read_index
from tieredstore.pubsub.format.messages import MessageHeader, MessagePlace, parse_message_header

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.pubsub.format.decoder import BatchDecoder


@dataclass(frozen=True, slots=True)
class BatchSource:
    """One object; ``read`` returns its bytes ``start:stop``."""

    name: str
    size: int
    read: Callable[[int, int], bytes]

    def index(self) -> BatchIndex:
        """Return the index of the object, by two small reads. Raise MessageCorruptError if it is damaged."""
        return read_index(self.read, self.name, self.size)


@dataclass(frozen=True, slots=True)
class InspectedMessage:
    """One Message: its place, its header and its damage. The header is None if it cannot be parsed."""

    place: MessagePlace
    size: int
    header: MessageHeader | None
    damage: str | None


def inspect_messages(source: BatchSource, index: BatchIndex, decoder: BatchDecoder) -> Iterator[InspectedMessage]:
    """Read and yield each Message in order. A Message counts as undamaged only if all of its records can be decoded."""
    for number in range(len(index)):
        start, stop = index.byte_range(number)
        place, header, damage = index.place(number), None, None
        message = source.read(start, stop)
        try:
            header = parse_message_header(message, place)
            for _ in decoder.decode_message(message, place):
                pass
        except MessageCorruptError as error:
            damage = str(error)
        yield InspectedMessage(place, stop - start, header, damage)


def decode_messages(source: BatchSource, index: BatchIndex, decoder: BatchDecoder) -> Iterator[pa.RecordBatch]:
    """Yield the records of the object, reading one Message at a time."""
    numbers = range(len(index))
    return decoder.decode_messages((index.place(at), memoryview(source.read(*index.byte_range(at)))) for at in numbers)
