"""A sealed batch under its one key: tried again and hedged, and never a second object.

Every try is the same put-if-absent under the mark of the one write: where the key is taken by the batch itself, an
earlier try has done it, whose answer was lost or is yet to come.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from random import random
from typing import Final

from tieredstore.backends.base import Buffer, ObjectStore
from tieredstore.errors import TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.errors import DeliveryFailed
from tieredstore.pubsub.queue.hedging import UsualTime

_TRIES_AT_ONCE: Final = 2
_FIRST_DELAY_S: Final = 0.1
_MOST_DELAY_S: Final = 5.0


@dataclass(slots=True)
class _Race:
    """The tries of one put."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    changed: threading.Condition = field(default_factory=threading.Condition)
    under_way: int = 0
    is_stored: bool = False
    error: TieredStoreError | None = None
    bug: BaseException | None = None
    is_unclear: bool = False


class BatchPuts:
    """Puts batches; for ``uploads`` threads that each put one at a time."""

    def __init__(self, store: ObjectStore, uploads: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._usual = UsualTime()
        # Tries that hang keep a thread each until the store's own deadline.
        self._pool = ThreadPool((_TRIES_AT_ONCE + 1) * uploads, "tieredstore-pubsub-put")

    def close(self) -> None:
        """Begin no more tries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def put(self, key: str, body: Buffer, deadline: Deadline) -> None:
        """Returns when the object is stored. DeliveryFailed if the store refuses, or at the deadline; it tells whether
        a try may have been done, or may yet be."""
        race, delay_s = _Race(), _FIRST_DELAY_S
        self._begin(race, key, body)
        while True:
            with race.changed:
                hedge_s = self._usual.hedge_after_s
                self._wait(race, lambda: race.is_stored or not race.under_way, min(hedge_s, deadline.remaining_s()))
                if race.is_stored:
                    return
                if race.bug is not None:
                    raise race.bug
                error = race.error
                if error is not None and not error.retryable:
                    raise DeliveryFailed(
                        f"{key} was not stored: {error}", maybe_stored=race.is_unclear or race.under_way > 0
                    ) from error
                if deadline.remaining_s() <= 0:
                    why = "it did not answer in time" if error is None else str(error)
                    raise DeliveryFailed(f"{key} was not stored: {why}", maybe_stored=True) from error
                under_way = race.under_way
            if under_way >= _TRIES_AT_ONCE:
                with race.changed:
                    self._wait(race, lambda: race.is_stored or race.under_way < _TRIES_AT_ONCE, deadline.remaining_s())
                continue
            if not under_way:
                time.sleep(max(0.0, min(delay_s * (0.5 + random() / 2), deadline.remaining_s())))  # noqa: S311  jitter
                delay_s = min(2 * delay_s, _MOST_DELAY_S)
            self._begin(race, key, body)

    def _wait(self, race: _Race, until: Callable[[], bool], seconds: float) -> None:
        race.changed.wait_for(until, max(0.0, seconds))

    def _begin(self, race: _Race, key: str, body: Buffer) -> None:
        with race.changed:
            race.under_way += 1
        self._pool.submit(self._try, race, key, body)

    def _try(self, race: _Race, key: str, body: Buffer) -> None:
        error: TieredStoreError | None = None
        bug: BaseException | None = None
        begin_s = self._monotonic()
        try:
            self._store.put_once(key, body, race.mark)
            self._usual.note(self._monotonic() - begin_s)
        except TieredStoreError as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001  raised where somebody waits for it
            bug = failure
        with race.changed:
            race.under_way -= 1
            if error is None and bug is None:
                race.is_stored = True
            race.error, race.bug = error or race.error, bug or race.bug
            race.is_unclear |= error is not None and error.retryable
            race.changed.notify_all()
