"""The cloud stores on a network that throttles, denies and cuts connections."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.support.network.fault_proxy import Answer, CutRequest, CutResponse, Fault, FaultProxy, LoseAnswer
from tests.support.stores.clouds import ATTEMPTS, LARGE, Cloud, OnEveryCloud, Operation, count, operations, plan
from tests.support.waiting import wait_until
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import AccessDeniedError, InvalidKeyError, StoreError, StoreUnavailableError, TieredStoreError
from tieredstore.process.retry import RetryPolicy

RIGHT_HASHES = {
    "gcs": {"X-Goog-Generation": "1", "X-Goog-Hash": "crc32c=OFKvfQ==,md5=AAAA"},
    "azure": {"Content-Range": "bytes 0-4/5", "x-ms-blob-content-md5": "fpGixGMvoxf1mCNv72bsxA==", "ETag": '"0x1"'},
}
"""Headers of an object with the content ``right``. S3 is missing, because its clients ask for no checksums by default.
"""

IMPOSSIBLE_KEYS = {
    "s3": ["a/../b", "..", "./a", "a/.", "nul\0"],
    "gcs": [".", "..", "a\nb", "a\rb", ".well-known/acme-challenge/x"],
    "azure": ["../other", "a/../b", "a/.", "./a", "..", "a\\b", "a\x01", "a\x7f", "a\nb", "\ufffe"],
}
"""Keys that the service refuses, or would return changed."""


class TestRetries(OnEveryCloud):
    @pytest.mark.parametrize("fault", [Answer(500), Answer(503), CutRequest(), CutRequest(after=100_000)], ids=str)
    def test_a_passing_failure_is_tried_again(
        self,
        cloud: Cloud,
        proxy: FaultProxy,
        store: ObjectStore,
        direct: ObjectStore,
        operation: Operation,
        fault: Fault,
    ) -> None:
        direct.put("object", b"first")
        plan(proxy, cloud, fault, operation[0], times=2)
        operation[1](store)
        assert proxy.fault_for("GET", "nothing is planned any more") is None
        if operation[0] == "deletion":
            assert [*direct.list()] == []
        else:
            assert direct.get("object") in {b"first", b"new", b"small", cloud.large}

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_each_status_of_a_passing_failure_is_one(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, status: int
    ) -> None:
        plan(proxy, cloud, Answer(status), "single_write", times=2)
        store.put("object", b"data")
        plan(proxy, cloud, Answer(status), "read", times=2)
        assert store.get("object") == b"data"
        assert (count(cloud, proxy, "single_write"), count(cloud, proxy, "read")) == (3, 3)

    def test_tries_are_spaced_by_full_jitter(self, cloud: Cloud, proxy: FaultProxy, place: str) -> None:
        slept: list[float] = []
        retries = RetryPolicy(attempts=6, base_delay_s=0.1, max_delay_s=1.0, sleep=slept.append, random=lambda: 0.5)
        plan(proxy, cloud, Answer(503), "read", times=None)
        with closing(cloud.make(proxy.url, place, retries)) as store, pytest.raises(StoreUnavailableError):
            store.get("object")
        assert slept == [0.05, 0.1, 0.2, 0.4, 0.5]

    @pytest.mark.parametrize("status", [503, 429])
    def test_a_lasting_failure_is_reported_as_retryable_when_tries_are_used_up(
        self,
        cloud: Cloud,
        proxy: FaultProxy,
        store: ObjectStore,
        direct: ObjectStore,
        operation: Operation,
        status: int,
    ) -> None:
        direct.put("object", b"first")
        plan(proxy, cloud, Answer(status), operation[0], times=None)
        with pytest.raises(StoreUnavailableError, match=f"{ATTEMPTS} of {ATTEMPTS} tries.*status {status}") as caught:
            operation[1](store)
        assert caught.value.retryable
        # Do not count parts, because they are sent in parallel, and a failed part prevents retries of the others.
        assert operation[0] == "part" or count(cloud, proxy, operation[0]) == ATTEMPTS
        proxy.heal()
        assert direct.get("object") == b"first"

    def test_a_denied_request_is_not_tried_again(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore, operation: Operation
    ) -> None:
        direct.put("object", b"first")
        # Fail only once, so that a further attempt would succeed and be noticed.
        plan(proxy, cloud, Answer(403), operation[0])
        with pytest.raises(AccessDeniedError, match="403"):
            operation[1](store)
        assert operation[0] == "part" or count(cloud, proxy, operation[0]) == 1
        assert direct.get("object") == b"first"

    def test_an_answer_cut_short_is_asked_for_again(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        direct.put("object", LARGE)
        plan(proxy, cloud, CutResponse(after=300_000), "read", times=2)
        assert store.get("object") == LARGE
        plan(proxy, cloud, CutResponse(after=0), "read", times=1)
        plan(proxy, cloud, CutResponse(after=1), "read", times=1)
        buffer = bytearray(len(LARGE) - 7)
        store.get_into("object", 7, buffer)
        assert buffer == LARGE[7:]

    def test_an_answer_that_is_always_cut_short_is_unavailable_not_short(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        direct.put("object", LARGE)
        plan(proxy, cloud, CutResponse(after=300_000), "read", times=None)
        with pytest.raises(StoreUnavailableError):
            store.get("object")
        with pytest.raises(StoreUnavailableError):
            store.get_into("object", 0, bytearray(len(LARGE)))
        wait_until(lambda: count(cloud, proxy, "read") == 2 * ATTEMPTS)

    def test_a_whole_object_that_was_damaged_on_its_way_is_fetched_again(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore
    ) -> None:
        if cloud.name == "s3":
            pytest.skip("its checksums are those of the SDK")
        store.put("object", b"right")
        damaged = Answer(206 if cloud.name == "azure" else 200, b"wrong", RIGHT_HASHES[cloud.name])
        plan(proxy, cloud, damaged, "read", times=2)
        assert store.get("object") == b"right"
        plan(proxy, cloud, damaged, "read", times=2)
        buffer = bytearray(5)
        store.get_into("object", 0, buffer)
        assert buffer == b"right"
        plan(proxy, cloud, damaged, "read", times=3)
        with pytest.raises(StoreUnavailableError, match="damaged"):
            store.get("object")

    def test_a_key_that_would_not_come_back_as_it_was_is_invalid(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore
    ) -> None:
        operations: list[Callable[[str], object]] = [
            *(store.get, store.head),
            lambda key: store.put(key, b"x"),
            lambda key: store.delete([key]),
            lambda key: store.replace(key, b"x", "1"),
        ]
        for key in IMPOSSIBLE_KEYS[cloud.name]:
            for operation in operations:
                with pytest.raises(InvalidKeyError):
                    operation(key)
        assert proxy.seen == []

    def test_what_could_be_deleted_is_when_some_could_not(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        keys = [f"{number:03}" for number in range(300)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: direct.put(key, b"x"), keys))
        plan(proxy, cloud, Answer(403), "deletion")
        denied = min(cloud.deleted_at_once, len(keys))
        with pytest.raises(AccessDeniedError, match=rf"{denied} objects?\b"):
            store.delete(keys)
        assert len(list(direct.list())) == denied

    def test_a_listing_goes_on_after_a_failure_in_the_middle(
        self, cloud: Cloud, proxy: FaultProxy, direct: ObjectStore, store: ObjectStore
    ) -> None:
        for key in ("one", "three", "two"):
            direct.put(key, b"x")
        plan(proxy, cloud, CutResponse(after=20), "page")
        assert [info.key for info in store.list()] == ["one", "three", "two"]

    def test_a_missing_place_is_no_missing_object(self, cloud: Cloud) -> None:
        with closing(cloud.make(cloud.endpoint_url, "nowhere")) as store:
            attempts: list[Callable[[], object]] = [
                lambda: store.get("object"),
                lambda: store.get_into("object", 0, bytearray(1)),
                lambda: store.head("object"),
                lambda: store.put("object", b"x"),
                lambda: store.put("object", b"x", if_absent=True),
                lambda: store.put("object", cloud.large),
                lambda: store.replace("object", b"x", "1234"),
                lambda: list(store.list()),
                lambda: store.delete(["object"]),
            ]
            for attempt in attempts:
                with pytest.raises(StoreError, match="does not exist") as caught:
                    attempt()
                assert type(caught.value) is StoreError
                assert not caught.value.retryable

    def test_a_failed_upload_leaves_the_old_object(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        direct.put("object", b"old")
        for request in ("part", "finish"):
            plan(proxy, cloud, Answer(503), request, times=None)
            with pytest.raises(StoreUnavailableError):
                store.put("object", cloud.large)
            proxy.heal()
            assert direct.get("object") == b"old"
        assert [info.key for info in direct.list()] == ["object"]

    def test_no_error_tells_the_query_of_a_url(self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore) -> None:
        errors: list[str] = []
        for fault in (Answer(503), CutRequest(), LoseAnswer()):
            for request, operation in operations(cloud).values():
                plan(proxy, cloud, fault, request, times=None)
                try:
                    operation(store)
                except TieredStoreError as error:
                    errors.append("".join(traceback.format_exception(error)))
                proxy.heal()
        assert len(errors) > 10
        assert not [text for text in errors if "upload_id=" in text or "comp=" in text or "alt=media" in text]
