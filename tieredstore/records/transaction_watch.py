"""Whether a log holds records of transactions, told before any of them is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tieredstore.kafka.batches import first_batch_size

_ATTRIBUTES_END: Final = 23
"""Bytes up to the end of a batch's attributes; the smallest message is larger."""

_TRANSACTIONAL: Final = 16


class TransactionWatch:
    """Looks through the pieces of a log, from a batch border on, on their way to the decoder.

    ``act`` is called once, when a batch of a transaction is seen that begins before offset ``stop``, or bytes that are
    no batches: before the piece is given, so that the decoder does not meet it first.
    """

    def __init__(self, stop: int, act: Callable[[], None]) -> None:
        self._has_seen_one = False
        self._stop = stop
        self._act = act
        self._head = bytearray()
        self._to_skip = 0

    def watch(self, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        """The pieces as they are, each looked through before it is given."""
        for piece in pieces:
            self._look(piece)
            yield piece

    def _look(self, piece: memoryview) -> None:
        at = 0
        while not self._has_seen_one:
            passed = min(self._to_skip, len(piece) - at)
            self._to_skip -= passed
            at += passed
            taken = piece[at : at + _ATTRIBUTES_END - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < _ATTRIBUTES_END:
                return
            self._judge()

    def _judge(self) -> None:
        """One head; the next one lies behind its batch."""
        size = first_batch_size(self._head)
        transactional = self._head[16] == 2 and bool(self._head[22] & _TRANSACTIONAL)
        if size is None or (transactional and int.from_bytes(self._head[:8], "big", signed=True) < self._stop):
            self._has_seen_one = True
            self._act()
            return
        self._to_skip = size - _ATTRIBUTES_END
        self._head.clear()
