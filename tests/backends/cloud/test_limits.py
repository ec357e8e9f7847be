"""The cloud stores' requests, deadlines and dying servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.support.network.fault_proxy import Answer, CutResponse, Drip, FaultProxy, Stall, Trickle
from tests.support.stores.clouds import (
    LARGE,
    Cloud,
    OnEveryCloud,
    Operation,
    count,
    fresh_cloud,
    plan,
    quick,
    until_answered,
)
from tieredstore.backends.base import ObjectStore, find_abandoned_writes
from tieredstore.errors import StoreError, StoreUnavailableError

FAR_TOO_LONG_S = 40.0
"""Calls with a short time limit end long before this. Calls without a limit would last longer."""


class TestLimits(OnEveryCloud):
    def test_each_operation_makes_the_requests_that_it_says(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore
    ) -> None:
        def requests_of(operation: Callable[[], object]) -> int:
            before = len(proxy.seen)
            operation()
            store.close()
            return len(proxy.seen) - before

        upload = 4 + cloud.around_parts
        assert requests_of(lambda: store.put("small", b"x", if_absent=True)) == 1
        assert requests_of(lambda: store.put("large", cloud.large)) == upload
        assert requests_of(lambda: store.put("new", iter([cloud.large]), if_absent=True)) == cloud.looks + upload
        assert requests_of(lambda: store.replace("small", b"y", store.head("small").etag or "")) == 2
        assert requests_of(lambda: store.get("large")) == 1
        assert requests_of(lambda: store.get("large", 7)) == 1
        assert requests_of(lambda: store.get("large", 7, 9)) == 1
        assert requests_of(lambda: store.get_into("large", 7, bytearray(10))) == 1
        assert requests_of(lambda: list(store.list())) == 1
        assert requests_of(lambda: store.delete(["small", "new"])) == (2 if cloud.deleted_at_once == 1 else 1)
        assert requests_of(lambda: store.head("large")) == 1

    def test_a_server_that_does_not_answer_is_given_up_at_the_deadline(
        self, cloud: Cloud, proxy: FaultProxy, place: str, operation: Operation, direct: ObjectStore
    ) -> None:
        direct.put("object", b"first")
        with closing(cloud.make(proxy.url, place, quick(timeout_s=0.5), read_timeout_s=0.5)) as store:
            if operation[0] == "single_write":
                until_answered(lambda: store.head("object"))
            plan(proxy, cloud, Stall(60), operation[0], times=None)
            started = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                operation[1](store)
            assert time.monotonic() - started < FAR_TOO_LONG_S

    def test_a_server_that_answers_drop_by_drop_is_given_up_at_the_deadline(
        self, cloud: Cloud, proxy: FaultProxy, place: str, direct: ObjectStore
    ) -> None:
        direct.put("object", LARGE)
        with closing(cloud.make(proxy.url, place, quick(timeout_s=0.5))) as store:
            until_answered(lambda: store.head("object"))
            plan(proxy, cloud, Trickle(piece=100, seconds=0.05), "read", times=None)
            for read in (lambda: store.get("object"), lambda: store.get_into("object", 5, bytearray(len(LARGE) - 5))):
                started = time.monotonic()
                with pytest.raises(StoreUnavailableError, match="deadline"):
                    read()
                assert time.monotonic() - started < FAR_TOO_LONG_S

    def test_one_try_ends_at_its_own_deadline(
        self, cloud: Cloud, proxy: FaultProxy, place: str, direct: ObjectStore
    ) -> None:
        direct.put("object", LARGE)
        with closing(cloud.make(proxy.url, place, quick(attempts=20), attempt_timeout_s=2)) as store:
            store.head("object")
            plan(proxy, cloud, Trickle(piece=100, seconds=0.05), "read")
            # The first attempt is abandoned; the second (on a busy machine, a later one) gets the whole object.
            assert store.get("object") == LARGE
        assert count(cloud, proxy, "read") >= 2

    def test_an_upload_that_stands_still_is_given_up(
        self, cloud: Cloud, proxy: FaultProxy, place: str, direct: ObjectStore
    ) -> None:
        # The clock moves only while the server keeps a part waiting, so no other request can be too slow.
        ticks: list[None] = []
        retries = quick(monotonic=lambda: 100.0 * len(ticks), timeout_s=1e6)
        with closing(cloud.make(proxy.url, place, retries, stall_timeout_s=1000)) as store:
            plan(proxy, cloud, Drip(lambda: ticks.append(None)), "part", times=None)
            # The first of the parallel parts may time out a moment before the upload does, so accept both errors.
            with pytest.raises(StoreUnavailableError, match=r"progress for 1000 s|[Tt]imed? ?out"):
                store.put("object", iter([cloud.large] * 2))
        assert list(direct.list()) == []
        assert not [write for write in find_abandoned_writes(direct, "object") if write.removable]

    def test_a_range_that_is_not_the_one_asked_for_is_an_error(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore
    ) -> None:
        version = {"ETag": '"1"', "x-goog-generation": "1"}
        plan(proxy, cloud, Answer(206, b"abc", {"Content-Range": "bytes 4-6/10", **version}), "read")
        with pytest.raises(StoreError, match="sent bytes from 4"):
            store.get("object", 5, 8)
        plan(proxy, cloud, Answer(206, b"abcd", {"Content-Range": "bytes 5-8/10", **version}), "read")
        with pytest.raises(StoreError, match="sent bytes 5:9"):
            store.get("object", 5, 8)
        plan(proxy, cloud, Answer(206, b"abc", {"Content-Range": "bytes 5-8/10", **version}), "read")
        with pytest.raises(StoreError, match="Content-Range"):
            store.get("object", 5, 8)

    def test_a_server_killed_in_the_middle_of_a_download_is_a_passing_failure(self, cloud: Cloud) -> None:
        with fresh_cloud(cloud.name) as mine:
            place = mine.make_place()
            with FaultProxy(mine.endpoint_url) as proxy, closing(mine.make(proxy.url, place)) as store:
                store.put("object", LARGE)
                plan(proxy, mine, CutResponse(after=300_000, then=mine.kill), "read")
                with pytest.raises(StoreUnavailableError):
                    store.get("object")
                with pytest.raises(StoreUnavailableError):
                    store.head("object")
                with pytest.raises(StoreUnavailableError):
                    store.get_into("object", 0, bytearray(1))

    def test_a_server_killed_in_the_middle_of_an_upload_is_a_passing_failure(self, cloud: Cloud) -> None:
        with (
            fresh_cloud(cloud.name) as mine,
            closing(mine.make(mine.endpoint_url, mine.make_place())) as store,
        ):

            def body() -> Iterator[bytes]:
                yield mine.large
                mine.kill()
                yield mine.large

            with pytest.raises(StoreUnavailableError):
                store.put("object", body())
            with pytest.raises(StoreUnavailableError):
                store.put("object", b"small")
