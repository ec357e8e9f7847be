"""Producers and consumers of batches accept every kind of source, and close only what they have opened."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tieredstore as ts
from tests.api.test_sources import KINDS
from tieredstore.pubsub import open_topics


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_and_a_consumer_take_each_kind_of_source(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "store.properties").write_text(f"storage.backend.class=filesystem\nstorage.root={root}\n")
    with ts.open(root) as bucket:
        source = KINDS[kind](root, bucket)
        with open_topics(source) as topics:
            topics.create("events")
        for _ in range(2):
            with ts.BatchProducer(source, "events") as producer:
                assert producer.send("value", key="key").result(60).partition == 0
        with ts.BatchConsumer(source, "events") as consumer:
            found = [(record.key, record.value) for record in itertools.islice(consumer.records(60), 2)]
        assert found == [(b"key", b"value")] * 2
        # The bucket of the caller stays open.
        assert bucket.topics() == []
        assert list(bucket.manager.store.list("none/")) == []
