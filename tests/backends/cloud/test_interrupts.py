"""A write interrupted after any answer of the store rolls back what it has begun."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud
from tests.support.stores.faulty_stores import PART_SIZES, SERVICES, store_on
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.process.deadline import Stall

WRITES: dict[str, Callable[[ObjectStore, Body], object]] = {
    "put": lambda store, body: store.put("object", body),
    "prepare": lambda store, body: store.prepare("object", body, staging_prefix="staging/"),
}


@pytest.mark.parametrize("interrupted", range(4), ids="behind answer {}".format)
@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("cloud", [Cloud.S3, Cloud.GCS], ids=lambda cloud: cloud.value)
def test_no_upload_is_left_without_an_owner(
    cloud: Cloud, verb: str, interrupted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = itertools.count()

    def progress(_: Stall) -> None:
        if next(answers) == interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(Stall, "progress", progress)
    # Send three parts, so that even the cloud with the fewest requests, Google, gives four answers.
    body = iter([bytes(2 * PART_SIZES[cloud] + 1)])
    with FaultyServer(SERVICES[cloud]()) as server, closing(store_on(server)) as store:
        with pytest.raises(KeyboardInterrupt):
            WRITES[verb](store, body)
        assert server.service.objects.uploads == {}
