"""An upload may be slow, but must not stall; time spent waiting for the rate limit does not count."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.wrappers.stack import LimitedStore, TokenBucket
from tieredstore.process.deadline import Deadline, Stall

pytestmark = pytest.mark.slow

STALL_TIMEOUT_S = 3000.0
SECOND_S = 1000.0
"""Seconds that pass on the stores' clock during one second of the token bucket. No real request takes as long, however
busy the machine is.
"""


class QuietClock:
    """Clock that moves only in ``sleep``, and only while each thread with a request under way is sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._changed = threading.Condition()
        self._asking: list[int] = []
        self._sleeping: set[int] = set()

    @contextmanager
    def request(self) -> Generator[None]:
        thread = threading.get_ident()
        with self._changed:
            self._asking.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._asking.remove(thread)
                self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._sleeping.add(thread)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._sleeping.issuperset(self._asking), 120)
            self.now_s += seconds
            self._sleeping.remove(thread)


@pytest.mark.parametrize("cloud", [Cloud.GCS, Cloud.AZURE], ids=lambda cloud: cloud.value)
def test_uploads_that_wait_for_the_rate_limit_all_end(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, under_way = QuietClock(), Stall.under_way

    @contextmanager
    def watched(stall: Stall) -> Generator[Deadline]:
        with clock.request(), under_way(stall) as deadline:
            yield deadline

    monkeypatch.setattr(Stall, "under_way", watched)
    part = PART_SIZES[cloud]
    # The limit is one part per second, after a free first second. The four uploads share the limit, so each sends a
    # part every 4 s.
    bucket = TokenBucket(
        part, monotonic=lambda: clock.now_s / SECOND_S, sleep=lambda seconds: clock.sleep(seconds * SECOND_S)
    )
    body = bytes(2 * part + 1)
    with (
        FaultyServer(SERVICES[cloud]()) as server,
        closing(store_on(server, monotonic=lambda: clock.now_s, stall_timeout_s=STALL_TIMEOUT_S)) as store,
    ):
        limited = LimitedStore(store, up=bucket)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: limited.put(key, iter([body])), map(str, range(4))))
        assert clock.now_s > STALL_TIMEOUT_S
        assert {held.data for held in server.service.objects.by_key.values()} == {body}
        assert len(server.service.objects.by_key) == 4
