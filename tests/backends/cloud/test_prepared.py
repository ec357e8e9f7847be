"""Prepared and published objects on the clouds, with requests that fail, lie and lose their answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from tests.support.network.fault_proxy import Answer, CutRequest, Fault, FaultProxy, LoseAnswer
from tests.support.stores.clouds import ATTEMPTS, Cloud, OnEveryCloud
from tieredstore.backends.base import ObjectStore, Prepared
from tieredstore.errors import PreconditionFailedError, StoreError, StoreUnavailableError

PAGE = b"<html><body>Sign in to the network</body></html>"
BODY = b"what is prepared"


def is_publication(cloud: Cloud) -> Callable[[str, str], bool]:
    """Return a predicate for the requests that create an object."""
    if cloud.name == "gcs":
        return lambda method, path: method == "POST" and "/rewriteTo/" in path
    return cloud.finish


def prepare(store: ObjectStore, body: bytes = BODY) -> Prepared:
    return store.prepare("object", body, staging_prefix="_staging/")


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list()]


class TestPublications(OnEveryCloud):
    @pytest.fixture
    def publish(self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore) -> Callable[..., None]:
        """Return a function that publishes an object while a fault disturbs the publishing request."""

        def disturbed(prepared: Prepared, fault: Fault, times: int = 1) -> None:
            proxy.plan(fault, where=is_publication(cloud), times=times)
            store.publish(prepared)

        return disturbed

    def test_an_answer_that_is_lost_is_a_success(
        self, store: ObjectStore, direct: ObjectStore, publish: Callable[..., None]
    ) -> None:
        prepared = prepare(store)
        publish(prepared, LoseAnswer())
        assert direct.get("object") == BODY
        assert keys(direct) == ["object"]

    def test_after_answers_that_are_all_lost_it_is_published_by_the_next_process(
        self, store: ObjectStore, direct: ObjectStore, publish: Callable[..., None]
    ) -> None:
        prepared = prepare(store)
        with suppress(StoreUnavailableError):
            publish(prepared, LoseAnswer(), ATTEMPTS)
        assert direct.get("object") == BODY
        direct.publish(prepared)
        assert keys(direct) == ["object"]

    @pytest.mark.parametrize("fault", [Answer(503), CutRequest()], ids=["refused", "lost"])
    def test_what_was_not_done_is_done_by_the_next_process(
        self, store: ObjectStore, direct: ObjectStore, publish: Callable[..., None], fault: Fault
    ) -> None:
        prepared = prepare(store)
        with pytest.raises(StoreUnavailableError):
            publish(prepared, fault, ATTEMPTS)
        assert "object" not in keys(direct)
        direct.publish(prepared)
        assert direct.get("object") == BODY

    def test_a_store_that_lies_is_not_believed(
        self, store: ObjectStore, direct: ObjectStore, publish: Callable[..., None]
    ) -> None:
        prepared = prepare(store)
        with pytest.raises(StoreError):
            publish(prepared, Answer(200, PAGE), ATTEMPTS)
        assert "object" not in keys(direct)
        direct.publish(prepared)
        assert direct.get("object") == BODY

    def test_anothers_object_is_no_success_even_where_an_answer_was_lost(
        self, store: ObjectStore, direct: ObjectStore, publish: Callable[..., None]
    ) -> None:
        prepared = prepare(store)
        direct.put("object", b"another's")
        with pytest.raises(PreconditionFailedError):
            publish(prepared, LoseAnswer())
        assert direct.get("object") == b"another's"

    def test_a_preparation_that_fails_at_any_request_leaves_nothing(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        prepare(store, cloud.large)
        requests = len(proxy.seen)
        # Google's store may also ask for the bucket, once a minute.
        for number in range(requests - 1):
            proxy.plan(Answer(403), where=_later(number))
            with suppress(StoreError):
                prepare(store, cloud.large)
        assert "object" not in keys(direct)

    def test_a_small_object_costs_few_requests(self, cloud: Cloud, proxy: FaultProxy, place: str) -> None:
        with closing(cloud.make(proxy.url, place)) as store:
            prepared = prepare(store)
            prepared_by = len(proxy.seen)
            store.publish(prepared)
            published_by = len(proxy.seen) - prepared_by
        # On Google, preparing is one write; publishing is a HEAD (and the emulator's bucket), a copy and a deletion.
        assert (prepared_by, published_by) == {"s3": (2, 1), "azure": (1, 1), "gcs": (1, 4)}[cloud.name]


def _later(number: int) -> Callable[[str, str], bool]:
    left = [number]

    def is_it(_method: str, _path: str) -> bool:
        left[0] -= 1
        return left[0] == -1

    return is_it
