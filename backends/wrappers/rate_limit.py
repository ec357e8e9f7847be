"""A limit of bytes per second, shared by all transfers that are given the same bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from tieredstore.backends.base import Body, Buffer
from tieredstore.backends.contract.bodies import open_body
from tieredstore.errors import ConfigError
from tieredstore.process.forks import ForkSafeLock


class TokenBucket:
    """Lets ``bytes_per_s`` bytes a second pass, after a burst of at most one second's worth. Thread-safe.

    A caller that takes more than there is gets a debt and waits until it is paid, so one take larger than the burst
    passes too, and takers that come later queue behind it. Pickled, it is a full bucket: each process has its own.
    """

    def __init__(
        self,
        bytes_per_s: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_s < 1:
            raise ConfigError(f"a rate limit of {bytes_per_s} bytes per second lets nothing pass; 1 is the least")
        self.bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = ForkSafeLock()
        self._tokens = float(bytes_per_s)
        self._filled_at_s = monotonic()

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes may pass."""
        with self._lock:
            now = self._monotonic()
            gained = (now - self._filled_at_s) * self.bytes_per_s
            self._tokens = min(float(self.bytes_per_s), self._tokens + gained) - count
            self._filled_at_s = now
            wait_s = -self._tokens / self.bytes_per_s
        if wait_s > 0:
            self._sleep(wait_s)

    def __reduce__(self) -> tuple[type[TokenBucket], tuple[int]]:
        return TokenBucket, (self.bytes_per_s,)


def limited(body: Body, bucket: TokenBucket) -> Generator[Buffer, None, None]:
    """The buffers of ``body``, each passed on when the bucket lets it; buffers longer than the burst are cut."""
    with open_body(body) as buffers:
        for view in buffers:
            for start in range(0, len(view), bucket.bytes_per_s):
                with view[start : start + bucket.bytes_per_s] as piece:
                    bucket.take(len(piece))
                    yield piece
