"""Which Messages are stored already: a client that lost its connection sends them again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 600.0
MOST: Final = 200_000


class SeenMessages:
    """The headers of Messages that were stored lately: as many as 200,000, and for ten minutes.

    A header has its producer, the number of the request and the checksum of what it carried: two that are equal are the
    same Message. One without a producer is never the same as another. Used on the broker's loop alone.
    """

    def __init__(
        self, *, window_s: float = WINDOW_S, most: int = MOST, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._most = most
        self._monotonic = monotonic
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_s)

    def __contains__(self, header: bytes) -> bool:
        until_s = self._until_s.get(header)
        return until_s is not None and self._monotonic() < until_s

    def add(self, header: bytes) -> None:
        """It is stored."""
        now_s = self._monotonic()
        self._until_s[header] = now_s + self._window_s
        self._until_s.move_to_end(header)
        while self._until_s:
            oldest = next(iter(self._until_s))
            if len(self._until_s) <= self._most and self._until_s[oldest] > now_s:
                return
            del self._until_s[oldest]
