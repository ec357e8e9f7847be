"""Entropy bits after the prefix: test vectors, and a store that hides them."""

from __future__ import annotations

import pytest

from tests.support.records.disk_segments import write_segments
from tests.support.stores.doubles import CountingStore, ScriptedStore
from tests.support.stores.operation_sweep import copies_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.absence import absence
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.planning import load_catalog
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ConfigError
from tieredstore.kafka.logdir import describe
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.places.opening import place_store
from tieredstore.places.record import all_folders, entropy_bits, layout_key, refuse_other_layout
from tieredstore.remote import RemoteStorageManager


@pytest.mark.parametrize(
    ("cluster", "topic", "partition", "count", "bits"),
    [
        ("kafkaCluster1", "topicA", 0, 5, "01011"),
        ("kafkaCluster1", "topicA", 1, 5, "01010"),
        ("kafkaCluster1", "topicB", 0, 5, "11100"),
        ("kafkaCluster1", "topicA", 0, 8, "01011000"),
        ("my-cluster", "my-topic", 0, 3, "111"),
        ("test-cluster", "test_topic_a", 0, 8, "01010100"),
        ("my_test_kafka_cluster", "my_test_topic", 0, 1, "1"),
        ("my_test_kafka_cluster", "my_test_topic", 0, 0, ""),
    ],
)
def test_the_bits_are_those_of_pinterests_uploader(
    cluster: str, topic: str, partition: int, count: int, bits: str
) -> None:
    assert entropy_bits(cluster, topic, partition, count) == bits


def entropy_settings(bits: int = 5, **others: str) -> Settings:
    names = {"endpoint.prefix.entropy.bits": str(bits), "endpoint.cluster": "kafkaCluster1", "key.prefix": "tiered/"}
    texts = {"storage.backend.class": "memory", "chunk.size": "64", **names}
    return settings_from({**texts, **{name.replace("_", "."): text for name, text in others.items()}})


def partition_of(topic: str, number: int) -> TopicIdPartition:
    return TopicIdPartition(Uuid(topic.encode().ljust(16, b"i")), topic, number)


@pytest.fixture(scope="module")
def within(tmp_path_factory: pytest.TempPathFactory) -> MemoryObjectStore:
    """Make three partitions, two segments each, stored with five bits."""
    store = MemoryObjectStore()
    folder = tmp_path_factory.mktemp("logs")
    with RemoteStorageManager(entropy_settings(), store=place_store(store, entropy_settings())) as manager:
        for where in (partition_of("topicA", 0), partition_of("topicA", 1), partition_of("topicB", 0)):
            for found_segment in write_segments(folder / str(where.partition), 3, where)[:2]:
                segment = describe(found_segment)
                manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), 1, 1000), segment.files)
    return store


def test_segments_lie_behind_their_bits_and_the_layout_is_recorded(within: MemoryObjectStore) -> None:
    folders = {tuple(info.key.split("/")[1:3]) for info in within.list("tiered/") if "!" not in info.key}
    assert {(bits, name.rpartition("-")[0][:6]) for bits, name in folders} == {
        ("01011", "topicA"), ("01010", "topicA"), ("11100", "topicB")
    }  # fmt: skip
    assert b'"entropy_bits":5' in within.get(layout_key("tiered/"))


@pytest.mark.parametrize("bits", [5])
def test_the_catalog_and_readers_see_keys_without_bits(within: MemoryObjectStore, bits: int) -> None:
    settings = entropy_settings(bits)
    with RemoteStorageManager(settings, store=place_store(within, settings)) as manager:
        catalog = load_catalog(manager)
        assert catalog.topics() == ("topicA", "topicB")
        assert catalog.incarnation("topicA").partitions == (0, 1)
        lineage = catalog.lineage("topicA", 1)
        assert [(span.start, span.stop) for span in lineage.spans] == [(0, 10), (10, 20)]
        with manager.open(lineage.spans[1].segment) as stream:
            assert len(stream.read()) == lineage.spans[1].segment.segment_size_in_bytes
        keys = [info.key for info in manager.store.list("tiered/")]
    assert keys == sorted(keys)
    assert len(keys) == 3 * 3 * 2 + 1  # one more object is the record of the layout


def test_a_partition_is_one_listing_and_a_topic_one_for_each_folder(within: MemoryObjectStore) -> None:
    counting = CountingStore(within)
    store = place_store(counting, entropy_settings())
    assert len(list(listed_of(store, partition=1))) == 2
    assert [operation.name for operation in counting.operations] == ["get", "list"]
    assert len(list(listed_of(store, partition=None))) == 4
    assert len(counting.operations) == 2 + len(all_folders(5))


def listed_of(store: ObjectStore, partition: int | None) -> list[object]:
    where = partition_of("topicA", 0)
    return list(list_segments(store, "tiered/", Scope(where.topic, where.topic_id, partition)))


def test_more_bits_than_folders_can_be_listed_give_the_same(
    within: MemoryObjectStore, tmp_path_factory: object
) -> None:
    del tmp_path_factory
    settings = entropy_settings(12)
    inner = MemoryObjectStore()
    source = place_store(within, entropy_settings())
    target = place_store(inner, settings)
    for info in source.list("tiered/"):
        if "!tieredstore" not in info.key:
            target.put(info.key, source.get(info.key))
    assert [info.key for info in target.list("tiered/")] == [info.key for info in source.list("tiered/")]
    some = [info.key for info in target.list("tiered/")][7]
    assert [info.key for info in target.list("tiered/", some)] == [info.key for info in source.list("tiered/", some)]


@pytest.mark.parametrize("other", [entropy_settings(4), entropy_settings(endpoint_cluster="another")])
def test_another_number_of_bits_or_cluster_is_refused(within: MemoryObjectStore, other: Settings) -> None:
    with pytest.raises(ConfigError, match=r"were written with endpoint.layout=plugin, endpoint.prefix.entropy.bits=5"):
        list(place_store(within, other).list("tiered/"))


def test_bits_are_refused_where_the_plugin_wrote(within: MemoryObjectStore) -> None:
    plain = MemoryObjectStore()
    key = next(place_store(within, entropy_settings()).list("tiered/topicB")).key
    plain.put(key, b"")
    with pytest.raises(ConfigError, match="would not find them"):
        place_store(plain, entropy_settings()).put(key, b"x")
    assert [info.key for info in plain.list() if "!" in info.key] == []


def test_of_two_who_record_other_layouts_at_once_one_is_told() -> None:
    layout = b'{"version": 1, "layout": "plugin", "entropy_bits": 3, "cluster": "c"}'
    plain = MemoryObjectStore()
    racing = ScriptedStore(plain).on("put", do=lambda operation: plain.put(operation.keys[0], layout))
    store = place_store(racing, entropy_settings())
    with pytest.raises(ConfigError, match=r"entropy\.bits=3"):
        store.put(f"tiered/topicB-{partition_of('topicB', 0).topic_id}/0/x.log", b"")


def test_what_is_deleted_goes(within: MemoryObjectStore) -> None:
    copy = copies_of(within)()
    store = place_store(copy, entropy_settings())
    store.delete([info.key for info in store.list("tiered/topic")])
    assert [info.key for info in copy.list()] == [layout_key("tiered/")]


def test_an_absent_topic_tells_of_the_bits_that_the_settings_do_not_say(within: MemoryObjectStore) -> None:
    error = absence(within, "tiered/", {"topicA": ()})
    assert "entropy.bits=5, endpoint.cluster=kafkaCluster1, which the settings lack" in str(error)
    assert "entropy.bits" not in str(absence(place_store(within, entropy_settings()), "tiered/", {"none": ()}))


def test_who_would_write_the_plugins_keys_there_is_refused(within: MemoryObjectStore) -> None:
    with pytest.raises(ConfigError, match=r"entropy\.bits=5.*which the settings lack"):
        refuse_other_layout(within, "tiered/")
    refuse_other_layout(place_store(within, entropy_settings()), "tiered/")
    refuse_other_layout(within, "others/")
