"""An upload may be slow, but must not stall; time spent waiting for the rate limit does not count."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.wrappers.stack import LimitedStore, TokenBucket

pytestmark = pytest.mark.slow

STALL_TIMEOUT_S = 3.0


@pytest.mark.parametrize("cloud", [Cloud.GCS, Cloud.AZURE], ids=lambda cloud: cloud.value)
def test_uploads_that_wait_for_the_rate_limit_all_end(cloud: Cloud) -> None:
    part = PART_SIZES[cloud]
    # The limit is one part per second, after a free first second: each of the four uploads sends a part every 4 s.
    bucket = TokenBucket(part)
    body = bytes(2 * part + 1)
    with FaultyServer(SERVICES[cloud]()) as server, closing(store_on(server, stall_timeout_s=STALL_TIMEOUT_S)) as store:
        limited = LimitedStore(store, up=bucket)
        started = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: limited.put(key, iter([body])), map(str, range(4))))
        assert time.monotonic() - started > STALL_TIMEOUT_S
        assert {held.data for held in server.service.objects.by_key.values()} == {body}
        assert len(server.service.objects.by_key) == 4
