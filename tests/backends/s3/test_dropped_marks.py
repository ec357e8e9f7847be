"""Lost answers on a server that keeps no metadata: there the content tells a write's own object from another's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import requests

from tests.support.network.fault_proxy import Answer, FaultProxy, LoseAnswer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import LARGE, PART, Cloud, OnClouds, plan, quick
from tests.support.stores.s3_stores import MIB, impatient_store, options_for
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.s3.options import Compatibility
from tieredstore.backends.s3.upload import Content
from tieredstore.errors import PreconditionFailed, StoreUnavailable

S3_MARK = "x-amz-meta-tieredstore-write"
AZURE_MARK = "x-ms-meta-tieredstore_write"
OF_TWO_PARTS = b"".join(bytes([number]) * MIB for number in range(7))
BODIES = pytest.mark.parametrize("body", [b"small", OF_TWO_PARTS], ids=["small", "of parts"])


class Forgetful:
    """A bucket behind a proxy that hides the marks, seen by ``store``; ``direct`` sees them."""

    def __init__(self, server: S3Server, proxy: FaultProxy, stack: ExitStack) -> None:
        self.proxy = proxy
        # Other compatibility than that of the conformance runs: SeaweedFS answers both.
        options = options_for(server, server.make_bucket(), compatibility=Compatibility.S3_COMPATIBLE)
        self.direct = stack.enter_context(closing(impatient_store(options)))
        self.store = stack.enter_context(closing(impatient_store(replace(options, endpoint_url=proxy.url))))

    def lose_answer(self, body: bytes) -> None:
        if len(body) < 5 * MIB:
            self.proxy.plan(LoseAnswer(), method="PUT")
        else:
            self.proxy.plan(LoseAnswer(), method="POST", path="uploadId=")


@pytest.fixture(params=["minio", "seaweedfs"])
def forgetful(request: pytest.FixtureRequest) -> Iterator[Forgetful]:
    server: S3Server = request.getfixturevalue(request.param)
    with FaultProxy(server.endpoint_url) as proxy, ExitStack() as stack:
        proxy.hidden_headers = {S3_MARK}
        yield Forgetful(server, proxy, stack)


@BODIES
@pytest.mark.parametrize("if_absent", [True, False])
def test_a_put_to_s3_whose_answer_was_lost_has_succeeded(forgetful: Forgetful, body: bytes, if_absent: bool) -> None:
    forgetful.lose_answer(body)
    forgetful.store.put("object", iter([body]), if_absent=if_absent)
    assert forgetful.direct.get("object") == body


@BODIES
def test_another_content_in_s3_is_a_conflict(forgetful: Forgetful, body: bytes) -> None:
    other = bytes(len(body))
    landed = [False]

    def rival() -> Iterator[bytes]:
        yield body
        forgetful.direct.put("object", other)
        landed[0] = True

    forgetful.lose_answer(body)
    with pytest.raises(PreconditionFailed):
        forgetful.store.put("object", rival(), if_absent=True)
    assert landed[0]
    assert forgetful.direct.get("object") == other


def test_a_replace_in_s3_whose_answer_was_lost_gives_the_new_etag(forgetful: Forgetful) -> None:
    forgetful.direct.put("object", b"old")
    old = forgetful.direct.head("object").etag or ""
    forgetful.proxy.plan(LoseAnswer(), method="PUT")
    new = forgetful.store.replace("object", b"new", old)
    assert new == forgetful.direct.head("object").etag != old
    forgetful.proxy.plan(LoseAnswer(), method="PUT")
    with pytest.raises(PreconditionFailed):
        forgetful.store.replace("object", b"newer", old)


@pytest.mark.parametrize("odd", ["", "0" * 31, "0" * 33, "G" * 32, "opaque", "0" * 32 + "-2"])
def test_parts_without_an_md5_for_an_etag_tell_nothing(odd: str) -> None:
    digest = hashlib.md5(b"", usedforsecurity=False)
    plain = Content.of_parts(2, [{"ETag": f'"{digest.hexdigest()}"'}] * 2)
    whole = hashlib.md5(digest.digest() * 2, usedforsecurity=False).hexdigest()
    assert plain.is_in(2, f'"{whole}-2"')
    assert not plain.is_in(3, f'"{whole}-2"')
    opaque = Content.of_parts(2, [{"ETag": f'"{digest.hexdigest()}"'}, {"ETag": f'"{odd}"'}])
    assert not any(opaque.is_in(2, etag) for etag in ("", '""', odd, f'"{whole}-2"'))


class TestClouds(OnClouds):
    @pytest.fixture
    def forget(self, cloud: Cloud, proxy: FaultProxy, place: str) -> Callable[[], None]:
        """What hides the mark of the object ``object``, as it is now."""

        def forget() -> None:
            if cloud.name == "azure":
                proxy.hidden_headers = {AZURE_MARK}
                return
            about = requests.get(f"{cloud.endpoint_url}/storage/v1/b/{place}/o/object", timeout=60)
            if about.ok:
                described = {name: value for name, value in about.json().items() if name != "metadata"}
                headers = {"Content-Type": "application/json"}
                plan(proxy, cloud, Answer(200, json.dumps(described).encode(), headers), "head")

        return forget

    @pytest.fixture
    def store(self, cloud: Cloud, place: str, proxy: FaultProxy, forget: Callable[[], None]) -> Iterator[ObjectStore]:
        """The store, whose tries are parted by ``forget``."""

        def between(_: float) -> None:
            forget()

        with closing(cloud.make(proxy.url, place, quick(sleep=between))) as store:
            yield store

    @pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "of parts"])
    @pytest.mark.parametrize("if_absent", [True, False])
    def test_a_put_whose_answer_was_lost_has_succeeded(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore, body: bytes, if_absent: bool
    ) -> None:
        self.lose_last(cloud, proxy, body)
        store.put("object", body, if_absent=if_absent)
        assert direct.get("object") == body

    @pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "of parts"])
    def test_another_content_is_not_taken_for_this_writes(
        self,
        cloud: Cloud,
        proxy: FaultProxy,
        direct: ObjectStore,
        place: str,
        forget: Callable[[], None],
        body: bytes,
    ) -> None:
        other = bytes(len(body))

        def overwritten(_: float) -> None:
            direct.put("object", other)
            forget()

        self.lose_last(cloud, proxy, body)
        # Of parts that are gone nobody knows whether they made the object that was there before.
        refusal = PreconditionFailed if body == b"small" else (PreconditionFailed, StoreUnavailable)
        with closing(cloud.make(proxy.url, place, quick(sleep=overwritten))) as store, pytest.raises(refusal):
            store.put("object", body, if_absent=True)
        assert direct.get("object") == other

    def test_a_replace_whose_answer_was_lost_gives_the_etag_of_what_it_wrote(
        self, cloud: Cloud, proxy: FaultProxy, store: ObjectStore, direct: ObjectStore
    ) -> None:
        direct.put("object", b"first")
        etag = direct.head("object").etag or ""
        plan(proxy, cloud, LoseAnswer(), "single_write")
        assert store.replace("object", b"changed", etag) == direct.head("object").etag

    def lose_last(self, cloud: Cloud, proxy: FaultProxy, body: bytes) -> None:
        """Lose the answer to the request that makes the object."""
        if len(body) <= PART:
            plan(proxy, cloud, LoseAnswer(), "single_write")
        elif cloud.name == "azure":
            plan(proxy, cloud, LoseAnswer(), "finish")
        else:
            left = [4]

            def is_fourth(method: str, path: str) -> bool:
                left[0] -= cloud.part(method, path)
                return left[0] == 0

            proxy.plan(LoseAnswer(), where=is_fourth)
