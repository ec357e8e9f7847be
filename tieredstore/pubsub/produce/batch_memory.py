"""Memory in which Messages become a batch where they come to lie: each behind the one before, the index before all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from tieredstore.errors import InvalidRange
from tieredstore.kafka.batches import Buffer
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import batch_index, index_size

_LEAST_MESSAGE: Final = 64  # bytes; the index of so many Messages is the most that stands before a batch


class BatchMemory:
    """Room for one batch of ``size`` bytes, of ``messages`` Messages at most; more bytes, if one Message is larger.

    Not for two threads at a time; what was laid stays as it is.
    """

    def __init__(self, pool: SlabPool, size: int, messages: int, *, least: int = 0, first: int | None = None) -> None:
        """``least``: bytes that the first Message may have. ``first``: bytes to begin with, where not all may be
        needed: then Messages can be added, and memory moves as it grows."""
        self._pool = pool
        self.most_messages = min(messages, size // _LEAST_MESSAGE + 1)
        self._first = self._end = index_size(self.most_messages)
        # A byte less: blocks of a pool, whose sizes are round, are more than what is asked for.
        self._most = size - 1
        self._size = max(self._most, self._first + least)
        self._memory = memoryview(pool.slab(self._size if first is None else min(self._size, self._first + first)))
        self._sizes: list[int] = []

    @property
    def left(self) -> int:
        """Bytes of Messages that can come yet."""
        most = self._most if self._sizes else self._size
        return max(0, most - self._end) if len(self._sizes) < self.most_messages else 0

    @property
    def messages(self) -> int:
        """How many it holds."""
        return len(self._sizes)

    @property
    def used(self) -> int:
        """Bytes of the Messages that it holds."""
        return self._end - self._first

    def body(self, most: int, head: int) -> BodyWriter:
        """For the records of the next Message, which are to lie behind ``head`` bytes of its header: ``most`` bytes of
        them, or what is left. It is no Message of the batch before it is :meth:`hold`."""
        return BodyWriter(min(most, self.left - head), self._memory[self._end : self._size], head)

    def hold(self, size: int) -> None:
        """The Message in the room that :meth:`body` gave last is one of the batch, and has so many bytes."""
        self._end += size
        self._sizes.append(size)

    def add(self, message: Buffer) -> None:
        """A copy of a whole Message, as one of the batch."""
        start = self._end
        self.hold(len(message))
        if self._end > len(self._memory):
            grown = memoryview(self._pool.slab(min(self._size, max(self._end, 2 * len(self._memory)))))
            grown[self._first : start] = self._memory[self._first : start]
            self._memory = grown
        self._memory[start : self._end] = message

    def stored(self) -> list[memoryview]:
        """The Messages, where they lie: to be asked for when no more will be added."""
        ends = list(accumulate(self._sizes, initial=self._first))
        return [self._memory[start:end] for start, end in pairwise(ends)]

    def batch(self, messages: Sequence[Buffer]) -> memoryview:
        """The object of all Messages that it holds, which are ``messages``."""
        if list(map(len, messages)) != self._sizes:
            raise InvalidRange(f"{len(messages)} Messages are not the {self.messages} that lie here")
        index = batch_index(messages)
        start = self._first - len(index)
        self._memory[start : self._first] = index
        return self._memory[start : self._end]


def room_for(messages_of_a_batch: int, batch_bytes: int, message_bytes: int) -> int:
    """How many Messages a batch may come to have, whose Messages end when a record does not fit: two that follow each
    other are larger than one may be."""
    return max(1, min(messages_of_a_batch, 2 * (batch_bytes // message_bytes) + 2))
