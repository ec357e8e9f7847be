"""What a stored batch says: a look at one object, its Messages one by one."""

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
    """Where the bytes of one object are; ``read`` gives the bytes ``start:stop``, which are there."""

    name: str
    size: int
    read: Callable[[int, int], bytes]

    def index(self) -> BatchIndex:
        """The index of the object, by two small reads; MessageCorruptError if it does not hold together."""
        return read_index(self.read, self.name, self.size)


@dataclass(frozen=True, slots=True)
class InspectedMessage:
    """One Message: where it lies, its header, and what is wrong with it; no header where that is what is wrong."""

    place: MessagePlace
    size: int
    header: MessageHeader | None
    damage: str | None


def inspect_messages(source: BatchSource, index: BatchIndex, decoder: BatchDecoder) -> Iterator[InspectedMessage]:
    """Each Message in its order, by one read each. Only what was decoded to its last record counts as undamaged."""
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
    """The records of the object, a Message held at a time."""
    for number in range(len(index)):
        yield from decoder.decode_message(source.read(*index.byte_range(number)), index.place(number))
