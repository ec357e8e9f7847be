"""Topics whose batches ``pubsub gc`` could not tell from orphans."""

from __future__ import annotations

import pytest

from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    orders_on,
    publish,
    read_values,
    topics_on,
)
from tieredstore.errors import ConfigError
from tieredstore.pubsub.queue.topics import Topics


def copy_definitions(topics: Topics, cluster: str) -> Topics:
    """Return another cluster of the same store, which has a copy of all definitions."""
    other = topics_on(topics.store, cluster=cluster)
    for name in topics.names():
        definition = topics.store.get(topics.folder.key("topics", f"{name}.json"))
        topics.store.put(other.folder.key("topics", f"{name}.json"), definition)
    return other


def test_a_copied_topic_writes_no_batches_that_gc_of_the_original_would_delete() -> None:
    prod = orders_on(cluster="prod/eu")
    publish(prod, [b"a"])
    other = copy_definitions(prod, "test")
    with pytest.raises(ConfigError, match=r"prod/eu/topics/orders\.json defines a topic of another cluster"):
        publish(other, [b"b"])
    assert len(batch_keys(prod)) == 1
    assert read_values(other) == []
    # Once the original is gone, the copy owns the path.
    prod.store.delete([prod.folder.key("topics", "orders.json")])
    publish(other, [b"b"])
    assert read_values(other, 1) == [b"b"]
